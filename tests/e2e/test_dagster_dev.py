"""The running system: one partition of every asset through the daemon, and in process to the same content."""

import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.orchestration.reindex import reindex
from pamp_pipelines.orchestration.versions import recorded_version
from pamp_pipelines.project import Project

MODEL, CONFIG, CORPUS = "scratch", "sonnets-only", "sonnets"
CHECKED = dg.DagsterEventType.ASSET_CHECK_EVALUATION
STALE_S = 60.0
CHECKPOINT = f"{MODEL}/{CONFIG}/v0001/0000004"
STAGES = {
    "raw_corpus": CORPUS,
    "tokenized_shards": f"{CORPUS}|{MODEL}",
    "megatron_checkpoint": MODEL,
    "pretrained_checkpoint": f"{MODEL}|{CONFIG}",
    "hf_export": CHECKPOINT,
}
"""One partition of each stage up to the export, in order."""


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(1500)
def test_every_asset_through_the_daemon_as_in_process(
    dagster_dev: Any, browser: Any, own_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: dict[str, str] = {}
    for asset, partition in STAGES.items():
        if asset == "pretrained_checkpoint":
            cancel_a_training(dagster_dev, partition)
        versions |= dagster_dev.materialize([asset], partition)
    assert dagster_dev.partitions("checkpoint") == [CHECKPOINT]
    scores = ["eval_scores/perplexity", "eval_scores/sums"]
    assert set(dagster_dev.materialize(scores, CHECKPOINT)) == set(scores)
    assert set(dagster_dev.materialize(["leaderboard"], None)) == {"leaderboard"}
    if browser:
        look_around(browser, f"http://127.0.0.1:{dagster_dev.port}", own_project)

    edit_the_model(dagster_dev, own_project)

    # in process, on the same instance, everything is there already
    monkeypatch.setenv("PAMP_LAKE", str(own_project.data / "lake"))
    for asset, partition in STAGES.items():
        (found,) = materialize(own_project, asset, partition)
        assert found.data_version == versions[asset], asset

    assert unjudged(own_project) == []

    # a lost home comes back from the lake
    monkeypatch.setenv("DAGSTER_HOME", str(own_project.data / "reindexed_home"))
    reindex(own_project)
    with open_instance(own_project) as instance:
        known = {asset: recorded_version(instance, dg.AssetKey(asset), key) for asset, key in STAGES.items()}
        assert known == {asset: versions[asset] for asset in STAGES}
        assert instance.get_dynamic_partitions("checkpoint") == [CHECKPOINT]
    monkeypatch.delenv("DAGSTER_HOME")

    # and made from nothing elsewhere, the same declarations and sources give the same model
    monkeypatch.setenv("PAMP_LAKE", str(own_project.data / "other_lake"))
    monkeypatch.setenv("DAGSTER_HOME", str(own_project.data / "other_home"))
    made = {asset: materialize(own_project, asset, partition)[0] for asset, partition in STAGES.items()}
    for asset in ("raw_corpus", "tokenized_shards", "megatron_checkpoint"):
        assert made[asset].data_version == versions[asset], asset
    # Megatron writes absolute paths into its checkpoints, and the export's card names the checkpoint it is made of
    lake = Lake(own_project.data / "lake")
    assert weights(made["hf_export"].path) == weights(lake.export_dir(CheckpointKey.parse(CHECKPOINT)))


def look_around(browser: Any, ui: str, project: Project) -> None:
    """Graph, grid of partitions, plots and loss curve of a training run, checks, leaderboard and its page."""
    browser.see(f"{ui}/asset-groups", "declarations", "data", "model", "training", "evaluation")
    browser.see(f"{ui}/assets/pretrained_checkpoint?view=partitions", MODEL, CONFIG, "both")
    browser.see(f"{ui}/assets/pretrained_checkpoint?view=overview", "final_loss", "tokens_per_second", click="Plots")
    assert browser.count("canvas") > 0
    browser.see(
        f"{ui}/assets/pretrained_checkpoint?view=partitions&partition={MODEL}%7C{CONFIG}", click="[Show Markdown]"
    )
    assert browser.count("img[alt='loss curve']") == 1
    browser.see(f"{ui}/assets/hf_export?view=checks", "loss_matches_megatron", "coverage", "Passed")
    browser.see(f"{ui}/assets/leaderboard?view=events", CHECKPOINT, "sums: exact_match")
    browser.see((Lake(project.data / "lake").reports_dir / "index.html").as_uri(), "Leaderboard", "All scores")


def weights(export: Path) -> list[str]:
    """Hashes of the weights of an export."""
    return [f.sha256 for f in read_artifact(export, verify="hash").manifest.files if f.path.endswith(".safetensors")]


def unjudged(project: Project) -> list[str]:
    """Checks that are declared on an asset and that its stage does not write."""
    with open_instance(project) as instance:
        logs = [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id, of_type=CHECKED)]
    checks = [entry.dagster_event.asset_check_evaluation_data for entry in logs if entry.dagster_event]
    return [check.check_name for check in checks if (check.description or "").startswith("Not judged")]


def edit_the_model(dev: Any, project: Project) -> None:
    """Exactly what reads the model's YAML is out of date within a minute, and no more once the edit is taken back."""
    readers = {"tokenized_shards", "megatron_checkpoint", "pretrained_checkpoint"}
    file = project.assets / f"models/{MODEL}.yaml"
    text = file.read_text()
    assert dev.stale(STAGES) == set()
    for edited, expected in ((text.replace("hidden_size: 32", "hidden_size: 64"), readers), (text, set())):
        file.write_text(edited)
        deadline = time.monotonic() + STALE_S
        while (found := dev.stale(STAGES)) != expected:
            assert time.monotonic() < deadline, found
            time.sleep(1)


def cancel_a_training(dev: Any, partition: str) -> None:
    """It ends as canceled, is not tried again, leaves no process, and holds no slot of the pool: the next one runs."""
    run = dev.cancel_once_it_works(dev.launch(["pretrained_checkpoint"], partition))
    assert run["status"] == "CANCELED"
    assert dev.workers() == []
    assert "ExecutionStepUpForRetryEvent" not in {e["__typename"] for e in run["eventConnection"]["events"]}
    assert run["assetMaterializations"] == []


@pytest.mark.slow
def test_a_missing_input_fails_once_and_says_what_to_materialise(dagster_dev: Any) -> None:
    run = dagster_dev.wait(dagster_dev.launch(["pretrained_checkpoint"], f"{MODEL}|{CONFIG}"))
    assert run["status"] == "FAILURE"
    events = run["eventConnection"]["events"]
    assert "ExecutionStepUpForRetryEvent" not in {e["__typename"] for e in events}
    assert any("pamp materialize megatron_checkpoint --partition 'scratch'" in str(e) for e in events)
