"""The running system: what its users do with `dagster dev`, in one session on one tiny project."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.instance import ensure_home, open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.orchestration.reindex import reindex
from pamp_pipelines.orchestration.versions import recorded_version
from pamp_pipelines.project import Project
from pamp_pipelines.training.job import read_job
from pamp_pipelines.training.lineage import last_finished
from pamp_pipelines.training.versions import version_id

MODEL, CONFIG, CORPUS = "scratch", "sonnets-only", "sonnets"
CHECKED = dg.DagsterEventType.ASSET_CHECK_EVALUATION
DEAD_S = 10.0
CHECKPOINT = f"{MODEL}/{CONFIG}/v0001/0000004"
RETRAINED = f"{MODEL}/{CONFIG}/v0002/0000004"
EARLY = f"{MODEL}/long/v0001/0000004"
ASKS = "topical"
"""A config that asks to be trained again on new data."""
TOPICAL = f"{MODEL}/{ASKS}/v0001/0000020"
PREPARED = {
    "raw_corpus": CORPUS,
    "tokenized_shards": f"{CORPUS}|{MODEL}",
    "megatron_checkpoint": MODEL,
}
TRAINING = "pretrained_checkpoint"
STAGES = {**PREPARED, TRAINING: f"{MODEL}|{CONFIG}", "hf_export": CHECKPOINT}
"""One partition of each stage up to the export, in order."""
SCORES = ["eval_scores/perplexity", "eval_scores/sums"]
AUTOMATION, RETRAINING = "evaluate_checkpoints_as_they_appear", "retrain_on_new_data"

LONG = """
description: Trains until somebody ends it, and keeps an early checkpoint.
models: [scratch]
corpora: {sonnets: 1}
sequence_length: 64
iterations: 200000
global_batch_size: 2
optimizer: {lr: 1e-3}
precision: fp32
checkpoint: {interval: 100}
validation: {interval: 200000}
evaluation: {steps: [4], final: false}
log_interval: 50
"""

TOPICAL_YAML = """
description: Trained again when there is new text.
models: [scratch]
corpora: {sonnets: 1}
sequence_length: 64
iterations: 20
global_batch_size: 4
optimizer: {lr: 5e-3}
precision: fp32
checkpoint: {interval: 20}
validation: {interval: 20}
retrain_on_new_data: true
"""

QUICK = """
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.project import Project

defs = build_definitions(Project.discover(), interval_s=5)
"""


@pytest.fixture
def project(own_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The tiny project with a training that does not end and one that follows its text; what looks, looks often."""
    monkeypatch.setenv("PAMP_LAKE", str(own_project.data / "lake"))
    (own_project.assets / "training_configs/long.yaml").write_text(LONG)
    (own_project.assets / f"training_configs/{ASKS}.yaml").write_text(TOPICAL_YAML)
    (own_project.root / "quick.py").write_text(QUICK)
    (own_project.root / "workspace.yaml").write_text(
        "load_from:\n  - python_file: {relative_path: quick.py, location_name: pamp}\n"
    )
    settings = ensure_home(own_project) / "dagster.yaml"
    text = settings.read_text()
    assert "poll_interval_seconds: 30" in text
    settings.write_text(text.replace("poll_interval_seconds: 30", "poll_interval_seconds: 2"))
    return own_project


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(3000)
def test_a_week_of_work(
    dagster_dev_of: Callable[[Project], Any], browser: Any, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = dagster_dev_of(project)
    a_missing_input_fails_once_and_says_what_to_materialise(dev)
    versions: dict[str, str] = {}
    for asset, partition in PREPARED.items():
        versions |= dev.materialize([asset], partition)

    run = evaluate_while_it_trains(dev)
    dev, run = restart_while_it_trains(dev, run, dagster_dev_of, project)
    cancel_a_training(dev, run)
    assert "iteration" in output_of(project, run)

    backfill_the_grid(dev)
    scored = dev.materialize(["hf_export", *SCORES], CHECKPOINT)
    assert scored.keys() == {"hf_export", *SCORES}
    versions |= scored
    if browser:
        look_around(browser, f"http://127.0.0.1:{dev.port}", project)

    add_an_evaluation(dev, project)
    retrain(dev, project)
    edit_the_model(dev, project)
    retrain_on_new_text(dev, project)

    # in process, on the same instance, everything is there already
    for asset, partition in STAGES.items():
        (found,) = materialize(project, asset, partition)
        assert asset == TRAINING or found.data_version == versions[asset], asset
    assert unjudged(project) == []
    assert dev.stop() == []
    lose_the_home(project)

    # and made from nothing elsewhere, the same declarations and sources give the same model
    monkeypatch.setenv("PAMP_LAKE", str(project.data / "other_lake"))
    monkeypatch.setenv("DAGSTER_HOME", str(project.data / "other_home"))
    made = {asset: materialize(project, asset, partition)[0] for asset, partition in STAGES.items()}
    for asset in PREPARED:
        assert made[asset].data_version == versions[asset], asset
    # Megatron writes absolute paths into its checkpoints, and the export's card names the checkpoint it is made of
    lake = Lake(project.data / "lake")
    assert weights(made["hf_export"].path) == weights(lake.export_dir(CheckpointKey.parse(CHECKPOINT)))


def a_missing_input_fails_once_and_says_what_to_materialise(dev: Any) -> None:
    run = dev.wait(dev.launch([TRAINING], STAGES[TRAINING]))
    assert run["status"] == "FAILURE"
    events = run["eventConnection"]["events"]
    assert "ExecutionStepUpForRetryEvent" not in {e["__typename"] for e in events}
    assert any(f"pamp materialize megatron_checkpoint --partition '{MODEL}'" in str(e) for e in events)


def evaluate_while_it_trains(dev: Any) -> str:
    """With the automation switched on, a checkpoint is exported and scored, and the leaderboard shows it, before the
    training has ended; returns the run of the training, which goes on."""
    dev.switch(AUTOMATION, on=True)
    run: str = dev.launch([TRAINING], f"{MODEL}|long")
    dev.until(lambda: all(EARLY in dev.filled(asset) for asset in SCORES), f"{EARLY} is not scored")
    assert dev.status(run) == "STARTED"
    dev.until(lambda: dev.materializations("leaderboard") > 0, "the leaderboard is not refreshed")
    assert dev.status(run) == "STARTED"
    # the scores of a checkpoint come in one run, and the table after them once
    assert dev.materializations("leaderboard") == 1
    (scoring,) = dev.runs("dagster/partition", EARLY)
    assert {"/".join(key["path"]) for key in scoring["assetSelection"]} == {"hf_export", *SCORES}
    return run


def backfill_the_grid(dev: Any) -> None:
    """A backfill over models and configs trains one after the other, as the pool has it."""
    runs = dev.backfill(TRAINING, [STAGES[TRAINING], f"{MODEL}|{ASKS}"])
    (one,), (other,) = sorted((run["stepStats"] for run in runs), key=lambda steps: steps[0]["startTime"])
    assert one["endTime"] <= other["startTime"]


def restart_while_it_trains(
    dev: Any, run: str, dagster_dev_of: Callable[[Project], Any], project: Project
) -> tuple[Any, str]:
    """Dagster is killed while a training runs: its processes end, the next Dagster knows and fails its run, and a new
    launch goes on from its newest checkpoint, in the same version. Returns the new Dagster and that launch."""
    tracker = Lake(project.lake).version_dir(MODEL, "long", 1) / "checkpoints/latest_checkpointed_iteration.txt"
    dev.until(lambda: int(tracker.read_text()) >= 100, "no resume point")
    workers = dev.workers()
    assert workers
    dev.kill()
    dev.until(lambda: not dev.workers(), "processes of the training are alive", DEAD_S)

    again = dagster_dev_of(project)
    assert again.wait(run)["status"] == "FAILURE"
    reached = int(tracker.read_text())
    resumed = again.launch([TRAINING], f"{MODEL}|long")
    again.until(lambda: int(tracker.read_text()) > reached, "the training does not go on")
    (started,) = [message for message in again.messages(resumed) if message.startswith("started: ")]
    assert f"iteration {reached}," in started
    assert "mode resume" in started
    assert Lake(project.lake).versions(MODEL, "long") == [1]
    return again, resumed


def cancel_a_training(dev: Any, run_id: str) -> None:
    """It ends as canceled, is not tried again, leaves no process, and holds no slot of the pool: the next one runs."""
    dev.switch(AUTOMATION, on=False)
    dev.terminate(run_id)
    dev.until(lambda: not dev.workers(), "processes of the training are alive")
    run = dev.wait(run_id)
    assert run["status"] == "CANCELED"
    assert "ExecutionStepUpForRetryEvent" not in {e["__typename"] for e in run["eventConnection"]["events"]}
    # what it had kept before is announced, and it has no result
    assert {event["assetKey"]["path"][0] for event in run["assetMaterializations"]} <= {"checkpoint"}


def output_of(project: Project, run: str) -> str:
    """The stdout tab of a run of one step."""
    with open_instance(project) as instance:
        (captured,) = instance.all_logs(run, of_type=dg.DagsterEventType.LOGS_CAPTURED)
        assert captured.dagster_event is not None
        key = [run, "compute_logs", captured.dagster_event.logs_captured_data.file_key]
        return (instance.compute_log_manager.get_log_data(key).stdout or b"").decode()


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
    browser.see(f"{ui}/assets/leaderboard?view=events", EARLY, "sums: exact_match")
    browser.see((Lake(project.lake).reports_dir / "index.html").as_uri(), "Leaderboard", "All scores")


def add_an_evaluation(dev: Any, project: Project) -> None:
    """The sensor says that it is not loaded; loaded, it is missing everywhere, and a backfill fills what is chosen."""
    folder = project.assets / "evaluations"
    shutil.copy(folder / "sums.yaml", folder / "more-sums.yaml")
    dev.until(lambda: "evaluations/more-sums" in dev.message_of("watch_declarations"), "the new YAML goes unnoticed")
    dev.reload()
    dev.until(
        lambda: dev.message_of("watch_declarations") == "Every declaration is as loaded.", "the sensor still complains"
    )
    asset = "eval_scores/more-sums"
    assert dev.partitions(asset) == [EARLY, CHECKPOINT, TOPICAL]
    assert dev.filled(asset) == set()
    dev.backfill(asset, [CHECKPOINT])
    assert dev.filled(asset) == {CHECKPOINT}


def retrain(dev: Any, project: Project) -> None:
    """``mode: fresh`` makes a new version with checkpoints of its own; scores of the old one stay what they were.

    On a profile that lays it out in another way it is the same run all the same.
    """
    (project.resources / "other.yaml").write_text("parallelism: {distributed_optimizer: false}\n")
    lake = Lake(project.lake)
    first, second = (lake.version_dir(MODEL, CONFIG, version) for version in (1, 2))
    before = {path: path.read_bytes() for path in lake.root.glob(f"scores/{CHECKPOINT}/**/*") if path.is_file()}
    assert len(before) > 3
    dev.materialize([TRAINING], STAGES[TRAINING], config={"mode": "fresh", "profile": "other"})
    assert lake.versions(MODEL, CONFIG) == [1, 2]
    assert version_id(first) == version_id(second)
    assert [read_job(v / "job.json").parallelism.distributed_optimizer for v in (first, second)] == [True, False]
    assert dev.partitions("checkpoint") == [EARLY, CHECKPOINT, TOPICAL, RETRAINED]
    assert {path: path.read_bytes() for path in before} == before
    assert dev.stale(dict.fromkeys(("hf_export", *SCORES), CHECKPOINT)) == set()
    assert all(dev.filled(asset) == {EARLY, CHECKPOINT} for asset in SCORES)
    with open_instance(project) as instance:
        (run,) = instance.get_runs(dg.RunsFilter(tags={"version": "v0002"}))
    told = {name: run.tags.get(name) for name in ("model", "training_config", "profile")}
    assert told == {"model": MODEL, "training_config": CONFIG, "profile": "other"}


def edit_the_model(dev: Any, project: Project) -> None:
    """Exactly what reads the model's YAML is out of date, and no more once the edit is taken back.

    That takes a tick of a sensor that looks every 15 seconds (test_staleness.py), on a machine that is not overloaded.
    """
    readers = {"tokenized_shards", "megatron_checkpoint", TRAINING}
    file = project.assets / f"models/{MODEL}.yaml"
    text = file.read_text()
    assert dev.stale(STAGES) == set()
    for edited, expected in ((text.replace("hidden_size: 32", "hidden_size: 64"), readers), (text, set())):
        file.write_text(edited)
        dev.until(lambda expected=expected: dev.stale(STAGES) == expected, f"not stale: {expected}")


def retrain_on_new_text(dev: Any, project: Project) -> None:
    """New text is scanned, tokenized and trained on, each once, where a config asks for it; the new version says which
    one it follows."""
    lake = Lake(project.lake)
    file = project.data / "corpora/sonnets.jsonl"
    text = file.read_text()
    dev.switch(RETRAINING, on=True)
    dev.until(lambda: dev.message_of(RETRAINING) == "No corpus has new data.", "the sensor does not look")
    file.write_text(text + json.dumps({"text": "A fifteenth line that nobody has read so far."}) + "\n")
    dev.until(lambda: len(dev.runs("retrain", "new data")) == 3, "no training was requested")
    requested = dev.runs("retrain", "new data")
    assert [run["pipelineName"] for run in requested] == ["train", "tokenize", "prepare_corpus"]
    assert dev.wait(requested[0]["runId"])["status"] == "SUCCESS"
    dev.switch(RETRAINING, on=False)
    newest = last_finished(lake, MODEL, ASKS)
    assert newest is not None
    version, manifest = newest
    assert (version, manifest.declaration["follows"]["version"]) == (2, "v0001")
    assert lake.versions(MODEL, CONFIG) == [1, 2]
    assert len(dev.runs("retrain", "new data")) == 3
    file.write_text(text)


def lose_the_home(project: Project) -> None:
    """Deleted, it comes back from the lake: partitions, data versions, what is filled, what is stale."""
    before = shown(project)
    assert before["hf_export"].keys() >= {EARLY, CHECKPOINT}
    shutil.rmtree(project.dagster_home)
    reindex(project)
    assert shown(project) == before


def shown(project: Project) -> dict[str, dict[str | None, tuple[str | None, str]]]:
    """Data version and staleness of every filled partition of every asset, as the UI shows them."""
    graph = build_definitions(project).resolve_asset_graph()
    with open_instance(project) as instance:
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        found = {}
        for key in graph.get_all_asset_keys():
            filled = instance.get_materialized_partitions(key) if graph.get(key).is_partitioned else {None}
            found[key.to_user_string()] = {
                partition: (recorded_version(instance, key, partition), resolver.get_status(key, partition).value)
                for partition in filled
            }
    return found


def weights(export: Path) -> list[str]:
    """Hashes of the weights of an export."""
    return [f.sha256 for f in read_artifact(export, verify="hash").manifest.files if f.path.endswith(".safetensors")]


def unjudged(project: Project) -> list[str]:
    """Checks that are declared on an asset and that its stage does not write."""
    with open_instance(project) as instance:
        logs = [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id, of_type=CHECKED)]
    checks = [entry.dagster_event.asset_check_evaluation_data for entry in logs if entry.dagster_event]
    return [check.check_name for check in checks if (check.description or "").startswith("Not judged")]
