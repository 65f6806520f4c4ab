"""New data in a corpus: what is requested look by look, and what a version says about the one before."""

import os
import shutil
import time

import dagster as dg
import pytest

from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog, load_catalog
from pamp_pipelines.evaluation.trace import describe, trace
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.details import training_details
from pamp_pipelines.orchestration.retraining import NAME, Look
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.resolve import train_job

MODEL, CONFIG, CORPUS = "scratch", "sonnets-only", "sonnets"


def age(project: Project) -> None:
    """Files that were written a moment ago may change again unseen, and are not remembered."""
    for file in (project.data / "corpora").rglob("*.*"):
        os.utime(file, (time.time() - 60,) * 2)


@pytest.fixture
def project(own_project: Project) -> Project:
    with (own_project.assets / f"training_configs/{CONFIG}.yaml").open("a") as file:
        file.write("retrain_on_new_data: true\n")
    age(own_project)
    return own_project


@pytest.fixture
def catalog(project: Project) -> Catalog:
    return load_catalog(project)


@pytest.fixture
def lake(project: Project) -> Lake:
    return Lake(project.lake)


def scan(catalog: Catalog, lake: Lake) -> None:
    scan_corpus(corpus_job(catalog, lake, CORPUS))


def make_shards(catalog: Catalog, lake: Lake) -> None:
    tokenize(tokenize_job(catalog, lake, CORPUS, MODEL))


def finish_a_version(catalog: Catalog, lake: Lake) -> str:
    """The manifest of a training with the inputs that there are now, and nothing that it would have trained."""
    converted = import_job(catalog, lake, MODEL)
    if not converted.output.exists():
        with publish(converted.output, kind="megatron_checkpoint", id=converted.id) as draft:
            shutil.copytree(catalog.project.data / "models/imported", draft.dir / "hf_template")
    job = train_job(catalog, lake, MODEL, CONFIG)
    manifest = Manifest(
        kind="pretrained_checkpoint",
        id=job.id,
        content=f"content of {job.run_dir.name}",
        created="2026-01-01T00:00:00Z",
        inputs=job.inputs,
        declaration=job.declaration,
    )
    write_text(job.run_dir / "job.json", job.model_dump_json())
    write_text(job.run_dir / MANIFEST, manifest.model_dump_json())
    return job.run_dir.name


class Looks:
    """Looks one after the other, with what the one before saw."""

    def __init__(self, catalog: Catalog, lake: Lake) -> None:
        self.catalog, self.lake, self.states = catalog, lake, dict[str, str]()
        self.keys: set[str] = set()
        self.notes: list[str] = []

    def next(self) -> list[tuple[str, str]]:
        """Job and partition of what is requested and was not before."""
        look = Look(self.catalog, self.lake, self.states)
        requests = [r for r in look.requests([CONFIG]) if r.run_key not in self.keys]
        self.keys |= {str(r.run_key) for r in requests}
        self.notes = look.notes
        return [(str(r.job_name), str(r.partition_key)) for r in requests]


def add_text(project: Project) -> None:
    file = project.data / "corpora/sonnets.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines, lines[0].replace("the", "that")]))
    age(project)


def test_new_text_is_scanned_tokenized_and_trained_on_once_each(project: Project, catalog: Catalog, lake: Lake) -> None:
    looks = Looks(catalog, lake)
    assert looks.next() == []
    assert looks.notes == ["No model has a finished version that a retraining could follow"]
    scan(catalog, lake)
    make_shards(catalog, lake)
    assert finish_a_version(catalog, lake) == "v0001"
    assert (looks.next(), looks.next()) == ([], [])

    add_text(project)
    assert looks.next() == []
    assert "have changed; they have to be the same in the next look" in looks.notes[0]
    assert looks.next() == [("prepare_corpus", CORPUS)]
    assert looks.next() == []
    scan(catalog, lake)
    assert looks.next() == [("tokenize", f"{CORPUS}|{MODEL}")]
    make_shards(catalog, lake)
    assert looks.next() == [("train", f"{MODEL}|{CONFIG}")]
    assert looks.next() == []

    assert finish_a_version(catalog, lake) == "v0002"
    assert Looks(catalog, lake).next() == []
    artifact = read_artifact(lake.version_dir(MODEL, CONFIG, 2), verify="none")
    first = read_artifact(lake.version_dir(MODEL, CONFIG, 1), verify="none").manifest
    assert "follows" not in first.declaration
    assert artifact.manifest.declaration["follows"] == {
        "version": "v0001",
        "id": first.id,
        "content": "content of v0001",
    }
    assert training_details(artifact)["follows"] == f"v0001 (id {first.id[:12]})"
    assert f"follows v0001 {first.id[:12]}" in next(iter(describe(trace(artifact.path, lake), lake.root)))


def test_an_edited_config_is_no_new_data(project: Project, catalog: Catalog, lake: Lake) -> None:
    scan(catalog, lake)
    make_shards(catalog, lake)
    finish_a_version(catalog, lake)
    file = project.assets / f"training_configs/{CONFIG}.yaml"
    file.write_text(file.read_text().replace("lr: 5e-3", "lr: 1e-3"))
    looks = Looks(load_catalog(project), lake)
    assert (looks.next(), looks.next()) == ([], [])


def test_a_source_that_is_gone_is_said(project: Project, catalog: Catalog, lake: Lake) -> None:
    scan(catalog, lake)
    make_shards(catalog, lake)
    finish_a_version(catalog, lake)
    (project.data / "corpora/sonnets.jsonl").unlink()
    looks = Looks(catalog, lake)
    assert looks.next() == []
    assert "sonnets.yaml" in looks.notes[0]


def test_the_sensor_is_there_where_a_config_asks_and_ships_stopped(
    project: Project, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    assert not definitions.get_repository_def().has_sensor_def(NAME)
    made = build_definitions(project)
    sensor = made.get_repository_def().get_sensor_def(NAME)
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert {target.job_name for target in sensor.targets} >= {"prepare_corpus", "tokenize", "train"}
    context = dg.build_sensor_context(
        instance=instance, repository_def=made.get_repository_def(), resources={"pamp": made.resources["pamp"]}
    )
    result = sensor.evaluate_tick(context)
    assert "No model has a finished version" in str(result.skip_message)
