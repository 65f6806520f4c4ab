"""Exports come and go within a budget."""

import dataclasses
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.errors import MissingInput, VerificationFailed
from pamp_pipelines.evaluation import export_cache
from pamp_pipelines.evaluation.checkpoint import evaluate_checkpoint
from pamp_pipelines.evaluation.export_cache import (
    GB,
    evict,
    evicted_export,
    keep_within_budget,
    leased,
    pending_exports,
    ready,
    restore,
)
from pamp_pipelines.evaluation.job import evaluate_job
from pamp_pipelines.evaluation.trace import describe, file_lines, trace
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.publish import lock
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.tokenization.indexed import IndexedWriter
from pamp_pipelines.training.job import read_job
from pamp_pipelines.training.kept import record_import
from pamp_pipelines.training.resolve import export_job

KEYS = [CheckpointKey("tiny", "poems", 1, step) for step in (0, 10, 20)]
REAL = CheckpointKey("imported", "both", 1, 0)


@pytest.fixture
def exported(builder):
    """Three exports of some 22 bytes, used one after another."""
    for age, key in enumerate(KEYS):
        path = builder.export(key).path
        os.utime(path / "manifest.json", (1000 + age, 1000 + age))
    return builder


def sizes(builder):
    return {key.step: builder.lake.export_dir(key).is_dir() for key in KEYS}


def test_the_least_recently_used_go_first(exported):
    one = read_artifact(exported.lake.export_dir(KEYS[0])).bytes
    with leased(exported.lake.export_dir(KEYS[0])):
        pass  # scored just now
    done = evict(exported.lake, budget=2 * one + 2)
    assert sizes(exported) == {0: True, 10: False, 20: True}
    assert [path for path, _ in done.evicted] == [exported.lake.export_dir(KEYS[1])]
    assert done.bytes_left <= 2 * one + 2
    assert not evict(exported.lake, budget=10**9).evicted


def test_what_is_leased_stays(exported):
    with leased(exported.lake.export_dir(KEYS[0])):
        done = evict(exported.lake, budget=0)
        assert sizes(exported) == {0: True, 10: False, 20: False}
        assert done.leased == (exported.lake.export_dir(KEYS[0]),)
    evict(exported.lake, budget=0)
    assert not any(sizes(exported).values())
    with pytest.raises(MissingInput, match="was evicted"), leased(exported.lake.export_dir(KEYS[0])):
        pass


def test_what_is_being_made_stays(exported):
    path = exported.lake.export_dir(KEYS[0])
    with lock(path):
        assert evict(exported.lake, budget=0).leased == (path,)


@pytest.fixture
def exporter(exported, monkeypatch):
    """The export stage, without a model: what it made, by step."""
    made = []
    one_at_a_time = threading.Lock()  # the builder makes the corpus of all exports anew, too

    def export(key, on_event):
        with one_at_a_time, lock(exported.lake.export_dir(key)):
            if not exported.lake.export_dir(key).is_dir():
                made.append(key.step)
                exported.export(key)
            return read_artifact(exported.lake.export_dir(key))

    monkeypatch.setattr(export_cache, "export_job", lambda catalog, lake, key: key)
    monkeypatch.setattr(export_cache, "export_hf", export)
    return made


def test_an_evicted_export_is_made_again_and_keeps_its_verdicts(exported, exporter, monkeypatch):
    path = exported.lake.export_dir(KEYS[0])
    before = (path / "manifest.json").read_text()
    assert not restore(None, exported.lake, KEYS[0]), "it is there"
    evict(exported.lake, budget=0)
    assert restore(None, exported.lake, KEYS[0])
    assert (path / "manifest.json").read_text() == before
    read_artifact(path, verify="hash")
    assert not restore(None, exported.lake, KEYS[0])

    evict(exported.lake, budget=0)

    def another(key, on_event):
        made = exported.export(key)
        manifest = made.manifest.model_copy(update={"content": "f" * 64})
        return type(made)(made.path, manifest)

    monkeypatch.setattr(export_cache, "export_hf", another)
    for _ in range(2):  # it stays refused
        with pytest.raises(VerificationFailed, match=r"made again with content ffffffffffff.* Delete .*evicted\.json"):
            restore(None, exported.lake, KEYS[0])
        file = path / "manifest.json"
        file.write_text(file.read_text().replace(read_artifact(path).content, "f" * 64))


def test_an_export_stays_as_long_as_anyone_needs_it(exported, exporter):
    """Threads that score and one that evicts all the time: no export goes while it is needed."""
    stop = threading.Event()
    evicted = []

    def evict_all():
        while not stop.is_set():
            evicted.extend(evict(exported.lake, budget=0).evicted)

    def score(number):
        key = KEYS[number % len(KEYS)]
        with ready(None, exported.lake, key):
            for _ in range(20):
                read_artifact(exported.lake.export_dir(key), verify="hash")
        return True

    evictor = threading.Thread(target=evict_all)
    evictor.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(score, range(60)))
    finally:
        stop.set()
        evictor.join()
    assert evicted
    assert exporter, "some were made again"
    restored = [ready(None, exported.lake, key) for key in KEYS]
    for key, again in zip(KEYS, restored, strict=True):
        with again:
            read_artifact(exported.lake.export_dir(key), verify="hash")


@pytest.fixture
def declared(exported, tiny_project):
    """The tiny project's declarations with evaluations `perplexity` and `sums`, and a budget of two exports."""
    catalog = load_catalog(tiny_project)
    two = 2 * read_artifact(exported.lake.export_dir(KEYS[0])).bytes + 2
    profile = catalog.profile("local").model_copy(update={"export_budget_gb": two / GB})
    config = catalog.training_configs["both"]
    return dataclasses.replace(catalog, profiles={"local": profile}, training_configs={"poems": config})


def test_what_waits_to_be_scored_stays(exported, declared):
    exports = [exported.lake.export_dir(key) for key in KEYS]
    assert pending_exports(declared, exported.lake) == set(exports)
    events = []
    done = keep_within_budget(declared, exported.lake, KEYS[0], events.append)
    assert (done.evicted, len(done.pending)) == ((), 3)
    assert events[-1].kind == "warning"
    assert "3 wait to be scored" in events[-1].data["message"]

    for evaluation in ("perplexity", "sums"):
        exported.scores(KEYS[2], evaluation, evaluation, {"exact_match": (0.5, 0.1)})
    with leased(exports[1]):
        pass  # scored, without success: it is not waited for
    assert pending_exports(declared, exported.lake) == {exports[0]}
    done = keep_within_budget(declared, exported.lake, KEYS[0], events.append)
    assert len(done.evicted) == 1
    assert exports[0].is_dir()
    assert events[-1].data["evicted"] == str(done.evicted[0][0])
    assert keep_within_budget(declared, exported.lake, CheckpointKey("tiny", "gone", 1, 0)) is None


def test_what_a_worker_without_a_caller_scores_stays(exported, declared):
    """On a cluster the worker outlives its caller, whose lease goes with it."""
    export = exported.lake.export_dir(KEYS[0])
    for key in KEYS:
        with leased(exported.lake.export_dir(key)):
            pass
    assert pending_exports(declared, exported.lake) == set()
    work = exported.lake.scores_dir(KEYS[0], "").parent / ".work-0123"
    work.mkdir(parents=True)
    (work / "job.json").write_text(json.dumps({"subject": {"directory": str(export)}}))
    (work / "events.jsonl").touch()
    assert pending_exports(declared, exported.lake) == {export}
    os.utime(work / "events.jsonl", (1000, 1000))
    assert pending_exports(declared, exported.lake) == set(), "it has been silent for long"


def test_what_a_killed_eviction_left_goes(exported):
    leftover = exported.lake.export_dir(KEYS[0]).with_name(".0000000.evicted.partial")
    leftover.mkdir()
    evict(exported.lake, budget=10**9)
    assert not leftover.exists()


def test_an_evicted_export_still_explains_its_scores(exported, declared):
    scores = exported.scores(KEYS[0], "sums", "sums", {"exact_match": (0.5, 0.1)})
    path = exported.lake.export_dir(KEYS[0])
    before = evaluate_job(declared, exported.lake, KEYS[0], ["sums"])
    evict(exported.lake, budget=0)
    assert evaluate_job(declared, exported.lake, KEYS[0], ["sums"]).evaluations == before.evaluations
    ancestors = trace(scores.path, exported.lake)
    export = ancestors[1]
    assert (export.ref.kind, export.evicted, export.changed) == ("hf_export", True, False)
    assert list(describe(ancestors, exported.lake.root))[1].endswith("  evicted")
    assert list(file_lines(export, exported.lake.root, "hash")), "its files are away, not damaged"
    assert trace(path, exported.lake)[0].ref == export.ref
    assert evicted_export(path).id == export.ref.id


def test_the_command_says_what_went(exported, tmp_path, monkeypatch):
    (tmp_path / "assets").mkdir()
    (tmp_path / "workspace.yaml").write_text("")
    monkeypatch.setenv("PAMP_LAKE", str(exported.lake.root.absolute()))
    result = CliRunner().invoke(pamp, ["evict", "--budget", "0.03kB", "--project", str(tmp_path), "--json"])
    data = json.loads(result.stdout.splitlines()[-1])
    assert len(data["evicted"]) == 2
    assert data["bytes_left"] <= 30
    assert CliRunner().invoke(pamp, ["evict", "--budget", "much", "--project", str(tmp_path)]).exit_code == 2


@pytest.fixture
def real(builder, tiny_project):
    """A lake with the import of a real model as the checkpoint of step 0, and the tokens of a run."""
    catalog = load_catalog(tiny_project)
    imported = import_hf(import_job(catalog, builder.lake, REAL.model))
    shards = builder.lake.shards_dir("poems", "d" * 64)
    shards.mkdir(parents=True)
    for name in ("train", "heldout"):
        with IndexedWriter(shards / name, np.uint16) as writer:
            writer.add(np.arange(40, dtype=np.uint16), np.array([40]))
    run = builder.lake.version_dir(REAL.model, REAL.training_config, REAL.version)
    run.mkdir(parents=True)
    builder.training_job(REAL, run, shards)
    record_import(read_job(run / "job.json"), imported.path / "checkpoint/release", imported.ref)
    return catalog, builder.lake


@pytest.mark.slow
def test_an_evicted_export_comes_back_bit_for_bit_and_is_scored_while_others_evict(real):
    catalog, lake = real
    path = lake.export_dir(REAL)
    export_hf(export_job(catalog, lake, REAL))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert len(evict(lake, budget=0).evicted) == 1
    assert not path.exists()
    stop = threading.Event()

    def evict_all():
        while not stop.wait(0.02):
            evict(lake, budget=0)

    evictor = threading.Thread(target=evict_all)
    evictor.start()
    try:
        [scores] = evaluate_checkpoint(catalog, lake, REAL, ["sums"])
    finally:
        stop.set()
        evictor.join()
    assert read_artifact(scores.path, verify="hash").manifest.stats["samples"] == 2
    evict(lake, budget=0)
    assert not path.exists()
    [again] = evaluate_checkpoint(catalog, lake, REAL, ["sums"])
    assert again.id == scores.id
    assert not path.exists(), "scores that are there need no export"
    with ready(catalog, lake, REAL):
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before
