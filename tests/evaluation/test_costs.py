import csv
import dataclasses
import json
import shutil

import pandas as pd
import pytest

from pamp_pipelines.commands.leaderboard import table
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.costs import PRICE, costs
from pamp_pipelines.evaluation.leaderboard import build_leaderboard, leaderboard_id, training_runs
from pamp_pipelines.lake.store import CheckpointKey

KEY = CheckpointKey("tiny", "poems", 1, 20)


@pytest.fixture
def trained(builder):
    builder.export(KEY)
    builder.metrics(
        KEY,
        [
            {"iteration": 1, "loss": 7.0, "seconds_per_iteration": 4.0},
            {"iteration": 11, "loss": 6.0, "seconds_per_iteration": 2.0},  # logged every ten
            {"iteration": 21, "loss": 5.0, "seconds_per_iteration": 2.0},
            {"iteration": 22, "loss": 5.0},
        ],
    )
    return builder


def test_cost_is_time_by_processes(trained, monkeypatch):
    monkeypatch.delenv(PRICE, raising=False)
    [cost] = costs(training_runs(trained.lake))
    assert (cost.run, cost.processes, cost.price) == ("tiny · poems", 1, None)
    assert cost.seconds == pytest.approx(4 + 10 * 2 + 10 * 2)
    assert cost.hours == pytest.approx(44 / 3600)
    assert cost.tokens == 21 * 4 * 64
    assert cost.tokens_per_second == pytest.approx(128), "of the usual iteration"


def test_a_price_is_shown_where_it_is_known(trained, monkeypatch):
    trained.scores(KEY, "sums", "sums", {"exact_match": (0.5, 0.1)})
    first = build_leaderboard(trained.lake)
    assert "<th>price</th>" not in (first.path / "index.html").read_text()
    monkeypatch.setenv(PRICE, "3600")
    second = build_leaderboard(trained.lake)
    assert second.id != first.id
    assert "<td>44.00</td>" in (second.path / "index.html").read_text()
    monkeypatch.delenv(PRICE)
    job = trained.lake.version_dir("tiny", "poems", 1) / "job.json"
    declared = json.loads(job.read_text())
    declared["profile"]["price_per_gpu_hour"] = 7200
    job.write_text(json.dumps(declared))
    third = build_leaderboard(trained.lake)
    assert third.id not in (first.id, second.id)
    assert "<td>88.00</td>" in (third.path / "index.html").read_text()
    monkeypatch.setenv(PRICE, "cheap")
    with pytest.raises(InputError, match="expected a number"):
        costs(training_runs(trained.lake))


def test_what_a_checkpoint_cost_stands_beside_each_of_its_scores(trained, monkeypatch):
    monkeypatch.setenv(PRICE, "3600")
    for step in (0, 11, 20):
        key = dataclasses.replace(KEY, step=step)
        trained.scores(key, "sums", "sums", {"exact_match": (0.5, 0.1), "math_verify": (0.5, 0.1)}, contamination=0.25)
    trained.scores(CheckpointKey("other", "plain", 1, 0), "sums", "sums", {"exact_match": (0.5, 0.1)})
    folder = build_leaderboard(trained.lake).path
    long = pd.read_parquet(folder / "leaderboard.parquet")
    spent = long.drop_duplicates(["model", "step"])[["model", "step", "gpu_hours", "cost"]].set_index(["model", "step"])
    # Of 44 s, four in the first iteration and two in each of the next ten, logged at 11.
    assert spent.loc[("tiny", 0)].tolist() == [0, 0]
    assert spent.loc[("tiny", 11)].tolist() == pytest.approx([24 / 3600, 24])
    assert spent.loc[("tiny", 20)].tolist() == pytest.approx([24 / 3600, 24]), "as of the last line of the log"
    assert spent.loc[("other", 0)].isna().all()
    assert len(long[long.model == "tiny"]) == 6
    wide = pd.read_csv(folder / "leaderboard.csv").set_index(["model", "step"])
    assert wide.loc[("tiny", 11), "cost"] == pytest.approx(24)
    assert wide.loc[("tiny", 11), "sums/sums/contamination"] == 0.25
    with (folder / "leaderboard.csv").open(encoding="utf-8") as file:
        heading, _, first, *_ = table(list(csv.DictReader(file)), ["exact_match"])
    assert heading.split() == [
        "model",
        "training_config",
        "version",
        "step",
        "tokens_seen",
        "gpu_hours",
        "cost",
        "sums",
    ]
    assert "0.5" in first
    html = (folder / "index.html").read_text()
    assert ">24.00</td>" in html
    assert html.count("25% share a 13-gram") == 6


def test_a_log_that_cannot_be_read_is_named_and_passed_over(trained):
    for config in ("dangling", "folder", "closed"):
        shutil.copytree(trained.lake.versions_dir("tiny", "poems"), trained.lake.versions_dir("tiny", config))
        trained.lake.version_dir("tiny", config, 1).joinpath("metrics.jsonl").unlink()
    logs = {c: trained.lake.version_dir("tiny", c, 1) / "metrics.jsonl" for c in ("dangling", "folder", "closed")}
    logs["dangling"].symlink_to("nowhere")
    logs["folder"].mkdir()
    logs["closed"].symlink_to(logs["closed"].name)  # as root, permissions close nothing; a circle of links does
    shutil.copytree(trained.lake.version_dir("tiny", "poems", 1), trained.lake.versions_dir("tiny", "poems") / "vold")
    events = []
    build_leaderboard(trained.lake, events.append)
    warned = [event.data["message"] for event in events if event.kind == "warning"]
    assert [name for name, log in logs.items() if sum(str(log) in message for message in warned) != 1] == []
    assert list(training_runs(trained.lake)) == ["tiny · poems"]
    assert leaderboard_id(trained.lake) == build_leaderboard(trained.lake).id


def test_runs_without_timings_have_no_cost(builder):
    builder.metrics(KEY, [{"iteration": 1, "loss": 7.0}])
    assert costs(training_runs(builder.lake)) == []
