"""Two machines, a lake in a bucket: what one makes, the other goes on from, and a lost home comes back."""

import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import yaml

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.lake.catalogue import open_lake
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.mirror import detach
from pamp_pipelines.lake.publication import published
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.orchestration.reindex import reindex
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.resolve import train_job
from pamp_pipelines.training.run import train
from tests.launchers.conftest import wait_for
from tests.s3_server import SECRET, Machines, tree

RUN = "scratch|sonnets-only"
KEPT = "scratch/sonnets-only/v0001/0000004"


@pytest.fixture
def on(machines: Machines, own_project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Go on at a machine: its working directory and Dagster home; returns the former."""

    def go(name: str) -> Path:
        monkeypatch.setattr("pamp_pipelines.lake.catalogue._OPENED", {})
        monkeypatch.setenv("PAMP_LAKE", machines.url)
        monkeypatch.setenv("PAMP_LAKE_CACHE", str(machines.folder / name))
        monkeypatch.setenv("PAMP_LAKE_CACHE_BYTES", "1GB")
        monkeypatch.setenv("DAGSTER_HOME", str(machines.folder / f"{name}-home"))
        return machines.folder / name

    return go


def shown(project: Project, asset: str, partition: str | None) -> dict[str, dg.MetadataValue]:
    with open_instance(project) as instance:
        partitions = [partition] if partition else None
        wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset.split("/")), asset_partitions=partitions)
        made = instance.fetch_materializations(wanted, limit=1).records[0].asset_materialization
        assert made is not None
        return dict(made.metadata)


def test_a_fresh_machine_gets_the_home_back_from_the_bucket(
    on: Callable[[str], Path], machines: Machines, own_project: Project
) -> None:
    on("first")
    (made,) = materialize(own_project, "raw_corpus", "plays")
    (shards,) = materialize(own_project, "tokenized_shards", "plays|scratch")
    uri = shown(own_project, "tokenized_shards", "plays|scratch")["dagster/uri"].value
    assert uri == f"{machines.url}/payload/shards/plays/{shards.path.name}"
    assert "train.bin" in machines.store.list(f"payload/shards/plays/{shards.path.name}")

    recorded = machines.store.list("catalogue/recorded/tokenized_shards")
    assert set(recorded) == {"plays/scratch.recorded.json"}

    second = on("second")
    found = {(one.asset, one.partition) for one in reindex(own_project).reported}
    assert found >= {("raw_corpus", "plays"), ("tokenized_shards", "plays|scratch")}
    assert shown(own_project, "tokenized_shards", "plays|scratch")["dagster/uri"].value == uri
    assert not list(second.rglob("*.bin"))
    assert reindex(own_project).reported == []
    (same,) = materialize(own_project, "raw_corpus", "plays")
    assert same.data_version == made.data_version
    assert same.path.is_relative_to(second)
    assert SECRET not in "".join(str(value) for value in shown(own_project, "raw_corpus", "plays").values())


@pytest.mark.slow
def test_one_prepares_another_trains_a_third_scores(
    on: Callable[[str], Path], machines: Machines, own_project: Project
) -> None:
    first = on("first")
    materialize(own_project, "raw_corpus", "sonnets")
    materialize(own_project, "tokenized_shards", "sonnets|scratch")
    materialize(own_project, "megatron_checkpoint", "scratch")
    detach(first)

    second = on("second")
    (trained,) = materialize(own_project, "pretrained_checkpoint", RUN)
    assert trained.path.is_relative_to(second)
    there = machines.store.list("catalogue/runs/scratch/sonnets-only/v0001")
    assert {"claim.json", "job.json", "kept/0000004.json", "manifest.json", "metrics.jsonl"} <= there.keys()
    detach(second)

    third = on("third")
    assert [str(key) for key in open_lake(own_project).kept_checkpoints()] == [KEPT]
    materialize(own_project, "hf_export", KEPT)
    (scores,) = materialize(own_project, "eval_scores/perplexity", KEPT)
    (again,) = materialize(own_project, "pretrained_checkpoint", RUN)
    assert again.data_version == trained.data_version
    assert scores.path.is_relative_to(third)

    on("first")
    open_lake(own_project)
    assert tree(first / "scores") == tree(third / "scores")


@pytest.mark.slow
def test_a_training_that_was_interrupted_goes_on_at_another_machine(
    on: Callable[[str], Path], machines: Machines, own_project: Project
) -> None:
    """From the newest checkpoint in the bucket, with the metrics up to there."""
    config = yaml.safe_load((own_project.root / "assets/training_configs/sonnets-only.yaml").read_text())
    config |= {"iterations": 12, "evaluation": {"steps": [4]}, "log_interval": 1}
    (own_project.root / "assets/training_configs/sonnets-only.yaml").write_text(yaml.safe_dump(config))
    first = on("first")
    catalog, lake = load_catalog(own_project), open_lake(own_project)
    published(scan_corpus(corpus_job(catalog, lake, "sonnets")))
    published(tokenize(tokenize_job(catalog, lake, "sonnets", "scratch")))
    published(import_hf(import_job(catalog, lake, "scratch")))
    job = train_job(catalog, lake, "scratch", "sonnets-only")

    def interrupt(event: Event) -> None:
        if event.kind == "metric" and event.data["iteration"] > 4:
            kept = "catalogue/runs/scratch/sonnets-only/v0001"
            wait_for(lambda: "kept/0000004.json" in machines.store.list(kept), 60, "checkpoint in the bucket")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(job, interrupt)
    shutil.rmtree(first)
    detach(first)

    second = on("second")
    catalog, lake = load_catalog(own_project), open_lake(own_project)
    job = train_job(catalog, lake, "scratch", "sonnets-only", take_over=True)
    assert job.run_dir == second / "runs/scratch/sonnets-only/v0001"
    seen: list[Event] = []
    artifact = train(job, seen.append)
    assert next(event.data["iteration"] for event in seen if event.kind == "started") == 4
    assert any("goes on from step 4" in event.data["message"] for event in seen if event.kind == "warning")
    assert [entry["iteration"] for entry in read_metrics(job.metrics_path) if entry["iteration"]] == list(range(1, 13))
    published(artifact)
    on("third")
    assert [key.step for key in open_lake(own_project).kept_checkpoints()] == [4, 12]
