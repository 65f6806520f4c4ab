import math
import re

import pandas as pd
import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation import fonts
from pamp_pipelines.evaluation.fonts import undrawn
from pamp_pipelines.evaluation.leaderboard import build_leaderboard
from pamp_pipelines.evaluation.scores import COLUMNS, read_scores
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.store import CheckpointKey

TINY0 = CheckpointKey("tiny", "poems-fast", 1, 0)
TINY50 = CheckpointKey("tiny", "poems-fast", 1, 50)
BIG50 = CheckpointKey("大模型", "续写", 1, 50)


@pytest.fixture
def filled(builder):
    for key, perplexity, accuracy in ((TINY0, 900.0, 0.0), (TINY50, 300.0, 0.25), (BIG50, 40.0, 0.5)):
        values = {"word_perplexity": (perplexity, perplexity / 50), "bits_per_byte": (perplexity**0.2, 0.01)}
        builder.scores(key, "heldout", "heldout_perplexity", values)
        if key is not BIG50:
            values = {"exact_match": (accuracy, 0.09), "math_verify": (accuracy, 0.09)}
            builder.scores(key, "sums", "arithmetic_boxed", values, limit=4, n=4, n_available=96)
    losses = [
        {"iteration": i, "loss": 7.0 / i, "validation_loss": 8.0 / i if i % 10 == 0 else None} for i in range(1, 51)
    ]
    builder.metrics(TINY50, losses)
    return builder


def test_tables_hold_every_score(filled):
    artifact = build_leaderboard(filled.lake)
    long = pd.read_parquet(artifact.path / "leaderboard.parquet")
    assert len(long) == 3 * 2 + 2 * 2 == artifact.manifest.stats["rows"]
    wide = pd.read_csv(artifact.path / "leaderboard.csv")
    assert list(zip(wide["model"], wide["step"], strict=True)) == [("tiny", 0), ("tiny", 50), ("大模型", 50)]
    assert wide["heldout/heldout_perplexity/word_perplexity"].tolist() == [900.0, 300.0, 40.0]
    assert wide["sums/arithmetic_boxed/exact_match"].tolist()[:2] == [0.0, 0.25]
    assert wide["sums/arithmetic_boxed/cut"].tolist()[:2] == ["4 of 96"] * 2
    assert not any(name.startswith("heldout/") and name.endswith("/cut") for name in wide)
    assert wide["sums/arithmetic_boxed/exact_match"].isna().tolist() == [False, False, True]


def test_page_is_self_contained_and_complete(filled):
    html = (build_leaderboard(filled.lake).path / "index.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", html)
    assert "@import" not in html
    assert "url(" not in html
    assert "4 of 96" in html, "a limit stands beside the score that it cut"
    assert "CC0-1.0" in html
    assert "toktok" in html
    assert "大模型" in html
    for kind in ("raw_corpus", "tokenized_shards", "megatron_checkpoint", "checkpoint", "hf_export", "eval_scores"):
        assert f"<td>{kind}" in html
    assert "not in this lake" not in html
    assert html.count('src="data:image/png;base64,') == 2
    assert ">right<" in html
    assert ">wrong<" in html


def test_change_is_judged_by_standard_errors(filled):
    html = (build_leaderboard(filled.lake).path / "index.html").read_text()
    assert '<small class="better">-66.7%</small>' in html
    assert '<small class="noise">+0.25</small>' in html, "0.25 is within two errors of hypot(0.09, 0.09) x 2 = 0.2546"


def test_unchanged_lake_builds_nothing_and_a_new_score_does(filled):
    first = build_leaderboard(filled.lake)
    events: list[Event] = []
    again = build_leaderboard(filled.lake, events.append)
    assert again.content == first.content
    assert not events
    filled.scores(BIG50, "sums", "arithmetic_boxed", {"exact_match": (1.0, 0.0)})
    third = build_leaderboard(filled.lake, events.append)
    assert third.id != first.id
    assert events[-1].kind == "finished"
    assert pd.read_csv(third.path / "leaderboard.csv")["sums/arithmetic_boxed/exact_match"].tolist() == [0.0, 0.25, 1.0]


def test_damaged_scores_are_reported_and_the_others_shown(filled):
    (filled.lake.scores_dir(TINY0, "sums") / "scores.parquet").write_bytes(b"half a file")
    events: list[Event] = []
    artifact = build_leaderboard(filled.lake, events.append)
    warning = next(event for event in events if event.kind == "warning")
    assert "scores.parquet" in warning.data["message"]
    assert len(pd.read_parquet(artifact.path / "leaderboard.parquet")) == 8


def test_older_scores_are_shown_and_foreign_tables_are_not(filled):
    file = filled.lake.scores_dir(TINY0, "sums") / "scores.parquet"
    table = pd.read_parquet(file)
    table.drop(columns=["split", "contamination", "checkpoint_content"]).to_parquet(file)
    rows = read_scores(file)
    assert [(row["value"], row["split"], row["contamination"]) for row in rows] == [(0.0, None, None)] * 2
    assert list(rows[0]) == list(COLUMNS)
    table.drop(columns=["value"]).to_parquet(file)
    with pytest.raises(InputError, match=r"scores\.parquet: columns value are missing"):
        read_scores(file)


def test_broken_scores_are_shown_as_what_they_are(filled):
    filled.scores(BIG50, "heldout", "heldout_perplexity", {"bits_per_byte": (math.nan, math.inf)})
    html = (build_leaderboard(filled.lake).path / "index.html").read_text()
    assert "<b>nan</b>" in html


def test_artifacts_made_outside_a_git_checkout_are_shown(filled, monkeypatch):
    monkeypatch.setattr("pamp_pipelines.lake.publish.producer", lambda: {"pamp_pipelines": "0.1.0"})
    filled.scores(BIG50, "sums", "arithmetic_boxed", {"exact_match": (1.0, 0.0)})
    assert (build_leaderboard(filled.lake).path / "index.html").stat().st_size > 0


def test_empty_lake_gives_a_page_that_says_so(builder):
    artifact = build_leaderboard(builder.lake)
    assert "There are no scores yet" in (artifact.path / "index.html").read_text()
    assert artifact.manifest.stats["rows"] == 0


def test_pictures_fit_into_the_event_log_and_draw_chinese(filled, recwarn):
    artifact = build_leaderboard(filled.lake)
    for name in ("leaderboard.png", "losses.png"):
        assert (artifact.path / name).stat().st_size < 100_000
    boxes = [w for w in recwarn if "missing from" in str(w.message)]
    assert bool(boxes) == bool(undrawn(["大模型 续写"])), "as drawn as the installed fonts allow"


def test_characters_that_no_font_has_are_said(filled, monkeypatch):
    assert undrawn(["tiny", "déjà vu", "±"]) == ""
    monkeypatch.setattr(fonts, "families", lambda: (fonts.FIRST,))
    assert undrawn(["大 tiny 大 模"]) == "大模"
    events: list[Event] = []
    build_leaderboard(filled.lake, events.append)
    [warning] = [event.data["message"] for event in events if event.kind == "warning"]
    assert "no installed font has" in warning
    assert "fonts-noto-cjk" in warning
