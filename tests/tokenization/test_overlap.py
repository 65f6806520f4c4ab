"""Rows of declared benchmarks that a corpus holds, counted where it is tokenized."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pamp_pipelines.corpus import grams
from pamp_pipelines.corpus.grams import GRAM, gram_hashes
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.lake.events import Event
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization import overlap
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob
from pamp_pipelines.tokenization.overlap import Benchmark, declared_benchmarks

MakeJob = Callable[..., TokenizeJob]


def rows(path: Path, *content: Any) -> Benchmark:
    data = "".join(json.dumps(row) + "\n" for row in content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return Benchmark(name=path.name, file=path)


@pytest.mark.parametrize("block", [100, 1 << 22])
def test_rows_that_the_training_text_holds(
    make_job: MakeJob, plays: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(overlap, "_BLOCK", block)
    quoted = [{"question": "x", "answer": {"text": [play[600:900]]}} for play in plays[:40]]
    unseen = [{"question": f"how many are {i} and {i} {'and so on ' * 10}"} for i in range(5)]
    asked = (rows(tmp_path / "a.jsonl", *quoted, *unseen), rows(tmp_path / "b.jsonl.gz", *unseen, {"n": 3}))
    job = make_job(plays[:40], pair_bytes=20_000)
    artifact = tokenize(job.model_copy(update={"benchmarks": asked}))
    assert artifact.manifest.stats["overlap"] == {
        "a.jsonl": {"rows": 45, "seen": 40},
        "b.jsonl.gz": {"rows": 6, "seen": 0},
    }
    assert len(artifact.manifest.stats["train"]["pairs"]) > 1
    plain = tokenize(job.model_copy(update={"output": job.output.with_name("plain")}))
    assert plain.content == artifact.content
    assert plain.id == artifact.id
    assert "overlap" not in plain.manifest.stats


def test_held_out_text_is_not_training_text(make_job: MakeJob, tmp_path: Path) -> None:
    texts = [f"document {i} " * 10 for i in range(100)]
    asked = (rows(tmp_path / "a.jsonl", *({"text": text} for text in texts)),)
    stats = tokenize(make_job(texts, fraction=0.3).model_copy(update={"benchmarks": asked})).manifest.stats
    assert 0 < stats["overlap"]["a.jsonl"]["seen"] == stats["train"]["documents"] < 100


def test_a_file_that_cannot_be_read_is_a_warning(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{")
    asked = (Benchmark(name="gone", file=tmp_path / "gone.jsonl"), Benchmark(name="bad", file=tmp_path / "bad.jsonl"))
    events: list[Event] = []
    artifact = tokenize(make_job(["a", "b"]).model_copy(update={"benchmarks": asked}), events.append)
    assert artifact.manifest.stats["overlap"] == {}
    warnings = [e.data["message"] for e in events if e.kind == "warning"]
    assert [w.split(": ")[1] for w in warnings] == [f"the overlap of {name} is not counted" for name in ("gone", "bad")]


def test_those_with_files_are_declared(tmp_path: Path) -> None:
    data = {"a": "rows/a.jsonl", "b": "held_out", "c": "hub:x/y", "d": "package:no-such-package/x.jsonl"}
    catalog = Catalog(Project(tmp_path), evaluations={"e": Evaluation(tasks=tuple(data), data=data)})
    assert declared_benchmarks(catalog) == (Benchmark(name="e/a", file=tmp_path / "rows/a.jsonl"),)


def by_definition(tokens: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    count = max(0, len(tokens) - GRAM + 1)
    hashes = np.zeros(count, np.uint64)
    for place in range(GRAM):
        hashes = hashes * np.uint64(grams._BASE) + tokens[place : place + count] + np.uint64(1)
    return hashes


@pytest.mark.parametrize("count", [0, 12, 13, 50, 75, 76, 77, 200])
def test_hashes_are_those_of_the_definition(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grams, "CHUNK", 64)
    tokens = np.random.default_rng(count).integers(0, 1 << 64, count, dtype=np.uint64)
    assert np.array_equal(gram_hashes(tokens), by_definition(tokens))
