import math
import re

import pytest

from pamp_pipelines.commands.leaderboard import headline_table, table
from pamp_pipelines.evaluation.headline import headlines
from pamp_pipelines.evaluation.leaderboard import build_leaderboard, read_headlines
from pamp_pipelines.lake.store import CheckpointKey

TASK = "heldout_perplexity"


@pytest.fixture
def trained(builder):
    for step, perplexity in ((0, 900.0), (50, 400.0), (100, 300.0)):
        values = {
            "token_perplexity": (perplexity, 9.0),
            "bits_per_byte": (math.log2(perplexity), 0.1),
            "unigram_perplexity": (500.0, None),
        }
        builder.scores(CheckpointKey("tiny", "poems", 2, step), "heldout", TASK, values)
    builder.scores(CheckpointKey("tiny", "poems", 2, 100), "sums", "sums", {"exact_match": (0.5, 0.1)})
    return builder


def test_first_and_last_checkpoint_stand_beside_the_unigram_model(trained):
    [line] = read_headlines(build_leaderboard(trained.lake).path)
    assert (line.run, line.task) == ("tiny · poems · v2", TASK)
    assert (line.first_step, line.before, line.last_step, line.after) == (0, 900.0, 100, 300.0)
    assert line.unigram == 500.0
    assert (line.bits_before, line.bits_after) == pytest.approx((math.log2(900), math.log2(300)))


def test_the_terminal_and_the_page_say_before_and_after(trained):
    artifact = build_leaderboard(trained.lake)
    heading, line = headline_table(read_headlines(artifact.path))
    assert re.split("  +", heading) == [
        "held-out perplexity a token",
        "before",
        "after",
        "unigram model",
        "bits a byte",
    ]
    assert re.split("  +", line) == [
        "tiny · poems · v2",
        "900.0 (step 0)",
        "300.0 (step 100)",
        "500.0",
        "9.814 → 8.229",
    ]
    html = (artifact.path / "index.html").read_text()
    assert '<td>900.0 <small>step 0</small></td>\n<td><b class="better">300.0</b> <small>step 100</small></td>' in html


def test_the_terminal_table_shows_perplexity_itself():
    row = {"model": "m", **{f"ppl/text/{m}": "1.5" for m in ("bits_per_byte", "token_perplexity", "word_perplexity")}}
    _, metrics, _ = table([row], ["bits_per_byte"])
    assert metrics.split() == ["token_perplexity", "bits_per_byte"]


def test_nothing_scored_is_no_line(tmp_path):
    assert headlines([]) == []
    assert list(headline_table([])) == []
    assert read_headlines(tmp_path) == []
