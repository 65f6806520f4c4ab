"""Workers and pieces: the same bytes whoever makes them, whatever ends in the middle."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.errors import InputError, WorkerFailed
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.tokenization import pool
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.inspect import prefixes
from pamp_pipelines.tokenization.job import TokenizeJob
from pamp_pipelines.tokenization.pieces import PieceMaker, Staging

MakeJob = Callable[..., TokenizeJob]


def with_sizes(job: TokenizeJob, name: str, **changes: Any) -> TokenizeJob:
    return job.model_copy(update={"output": job.output.with_name(name), **changes})


@pytest.fixture
def whole(make_job: MakeJob, plays: list[str]) -> tuple[TokenizeJob, Artifact]:
    """All plays in one piece."""
    job = make_job(plays, files=3, fraction=0.1)
    return job, tokenize(job)


def test_pieces_and_workers_do_not_show(whole: tuple[TokenizeJob, Artifact]) -> None:
    job, expected = whole
    contents = {
        tokenize(with_sizes(job, f"{task_bytes}-{workers}", task_bytes=task_bytes, workers=workers)).content
        for task_bytes, workers in ((1000, 1), (150_000, 2), (70_000, 3))
    }
    assert contents == {expected.content}
    assert not list(job.output.parent.glob(".*.pieces"))


def test_several_pairs_are_cut_at_documents(whole: tuple[TokenizeJob, Artifact]) -> None:
    job, expected = whole
    results = [
        tokenize(with_sizes(job, f"pairs-{task_bytes}", task_bytes=task_bytes, workers=1, pair_bytes=100_000))
        for task_bytes in (20_000, 64 << 20)
    ]
    assert results[0].content == results[1].content
    stats = results[0].manifest.stats
    names = prefixes(stats, "train")
    assert names == [f"train_{i:05}" for i in range(len(names))]
    assert len(names) > 2
    one = (expected.path / "train.bin").read_bytes()
    assert b"".join((results[0].path / f"{name}.bin").read_bytes() for name in names) == one
    assert all((results[0].path / f"{name}.bin").stat().st_size >= 100_000 for name in names[:-1])
    assert sum(pair["documents"] for pair in stats["train"]["pairs"]) == stats["train"]["documents"]
    assert not results[0].manifest.failed_checks


def test_pieces_of_a_cancelled_build_are_used(
    whole: tuple[TokenizeJob, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, expected = whole
    other = with_sizes(job, "resumed", task_bytes=60_000, workers=1)
    made: list[int] = []
    make = PieceMaker.make

    def stop_after_three(self: PieceMaker, task: int, on_batch: Any) -> Any:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(task)
        return make(self, task, on_batch)

    monkeypatch.setattr(PieceMaker, "make", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        tokenize(other)
    # one of the three is damaged meanwhile
    damaged = Staging.of(other.output).file(1, "train.bin")
    damaged.write_bytes(damaged.read_bytes()[:-2])
    again: list[int] = []
    monkeypatch.setattr(
        PieceMaker, "make", lambda self, task, on_batch: (again.append(task), make(self, task, on_batch))[1]
    )
    assert tokenize(other).content == expected.content
    assert made == [0, 1, 2]
    assert again[0] == 1
    assert again[1] == 3


KILLED_LATE = """
import os, signal, sys
from pathlib import Path
from pamp_pipelines.tokenization import pool
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob

give, tasks = pool._Link.give, []

def kill_at_ninety_percent(link, waiting):
    tasks.append(len(waiting))
    give(link, waiting)
    if len(waiting) <= tasks[0] // 10:
        os.killpg(0, signal.SIGKILL)

pool._Link.give = kill_at_ninety_percent
tokenize(TokenizeJob.model_validate_json(Path(sys.argv[1]).read_text()))
"""


def test_a_build_killed_at_ninety_percent_makes_one_piece_a_worker_again(
    whole: tuple[TokenizeJob, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, expected = whole
    other = with_sizes(job, "killed", task_bytes=8000, workers=2)
    file = tmp_path / "job.json"
    file.write_text(other.model_dump_json())
    # SIGKILL for all its processes at once
    process = subprocess.run([sys.executable, "-c", KILLED_LATE, str(file)], start_new_session=True)
    assert process.returncode == -signal.SIGKILL
    staging = Staging.of(other.output)
    finished = {int(path.stem) for path in staging.folder.glob("*[0-9].json")}
    begun = {int(path.name.split(".")[0]) for path in staging.folder.glob("*.bin")} - finished
    again: list[int] = []
    make = PieceMaker.make
    monkeypatch.setattr(
        PieceMaker, "make", lambda self, task, on_batch: (again.append(task), make(self, task, on_batch))[1]
    )
    assert tokenize(with_sizes(other, "killed", workers=1)).content == expected.content
    tasks = finished | set(again)
    assert not finished & set(again)
    assert len(tasks) > 50
    assert 0.85 < len(finished) / len(tasks) < 1
    assert len(begun) <= 2, "each of the two workers had one piece in work"
    assert not staging.folder.exists()


def test_a_lost_worker_is_named_and_its_work_is_kept(
    whole: tuple[TokenizeJob, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, expected = whole
    other = with_sizes(job, "lost", task_bytes=60_000, workers=2)
    killed: list[int] = []
    give = pool._Link.give

    def kill_the_second(self: Any, waiting: Any) -> None:
        give(self, waiting)
        if not killed and len(waiting) < 6:
            killed.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGKILL)

    monkeypatch.setattr(pool._Link, "give", kill_the_second)
    with pytest.raises(WorkerFailed, match="run again: finished pieces are kept"):
        tokenize(other)
    assert killed
    assert tokenize(other).content == expected.content


def test_a_bad_row_in_a_later_piece_is_named_with_its_line(make_job: MakeJob) -> None:
    job = make_job([f"document {i}" for i in range(300)])
    source = Path(job.files[0].url)
    lines = source.read_text().splitlines()
    lines[250] = '{"text": 3}'
    source.write_text("\n".join(lines) + "\n")
    from pamp_pipelines.corpus.fingerprints import fingerprint
    from pamp_pipelines.corpus.sources import Location

    files = fingerprint([Location(str(source), "a.jsonl")])
    for workers in (1, 2):
        bad = job.model_copy(update={"files": files, "task_bytes": 1000, "workers": workers})
        with pytest.raises(InputError, match=r"a\.jsonl: row 251: .*\(wrong_type\)"):
            tokenize(bad)
        assert not list(job.output.parent.glob(".*.pieces"))


def test_zero_workers_are_refused(make_job: MakeJob) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError, match="workers"):
        TokenizeJob.model_validate(make_job(["a"]).model_dump() | {"workers": 0})


def test_more_workers_than_rows(make_job: MakeJob) -> None:
    artifact = tokenize(make_job(["a", "b"], files=2).model_copy(update={"workers": 9, "task_bytes": 1}))
    assert artifact.manifest.stats["documents_written"] == 2


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_exact_duplicates_over_all_pieces(make_job: MakeJob, fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from pamp_pipelines.declarations.corpus import Filter
    from pamp_pipelines.tokenization import duplicates

    texts = [f"document {i % 40} of the corpus" for i in range(200)]
    job = make_job(texts, files=4, fraction=fraction, filters=[Filter(deduplicate="exact")])
    contents = set()
    for task_bytes, at_once in ((1 << 20, 10**6), (500, 7)):
        monkeypatch.setattr(duplicates.first_occurrences, "__defaults__", (at_once,))
        artifact = tokenize(with_sizes(job, f"{task_bytes}", task_bytes=task_bytes, workers=1))
        contents.add(artifact.content)
        assert artifact.manifest.stats["dropped"] == {"duplicate": 160}
        assert artifact.manifest.stats["documents_written"] == 40
        assert not artifact.manifest.failed_checks
    assert len(contents) == 1
    first = tokenize(make_job(texts[:40], fraction=fraction, out="first"))
    assert (artifact.path / "train.bin").read_bytes() == (first.path / "train.bin").read_bytes()
    if fraction:
        kept = [json.loads(line) for line in (artifact.path / "heldout.jsonl").read_text().splitlines()]
        assert kept == [json.loads(line) for line in (first.path / "heldout.jsonl").read_text().splitlines()]
