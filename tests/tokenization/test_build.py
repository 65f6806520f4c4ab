import errno
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamp_pipelines.corpus import progress
from pamp_pipelines.declarations.corpus import Filter
from pamp_pipelines.errors import DiskFull, InputError
from pamp_pipelines.lake.artifact import Artifact, read_artifact
from pamp_pipelines.lake.events import Event
from pamp_pipelines.tokenization import indexed, join
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job
from pamp_pipelines.tokenization.pieces import Piece, PieceMaker, Staging

MakeJob = Callable[..., TokenizeJob]
PROPERTY = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.characters(codec="utf-8"), min_size=1)
BAD = {"malformed": "{", "missing_field": "{}", "wrong_type": '{"text": 0}', "empty": '{"text": ""}'}


def side(artifact: Artifact, name: str) -> list[str]:
    """Texts decoded from shards, without their EOD."""
    engine = open_tokenizer(artifact.path)
    reader = IndexedReader(artifact.path / name)
    assert all(reader[i][-1] == artifact.manifest.stats["eod_id"] for i in range(len(reader)))
    return [engine.decode(reader[i][:-1].tolist()) for i in range(len(reader))]


def left_beside(job: TokenizeJob) -> list[str]:
    """What a build left under the output's name or a temporary one."""
    return [p.name for p in job.output.parent.iterdir() if p == job.output or p.suffix in {".partial", ".pieces"}]


def test_every_document_is_accounted_for(make_job: MakeJob, plays: list[str]) -> None:
    job = make_job([*plays[:200], "", " \n", *plays[200:]], files=4, fraction=0.1)
    events: list[Event] = []
    artifact = tokenize(job, events.append)
    assert artifact == read_artifact(artifact.path, verify="hash")
    stats = artifact.manifest.stats
    assert stats["documents_read"] == len(plays) + 2
    assert stats["documents_written"] == len(plays) + 1
    assert stats["dropped"] == {"empty": 1}
    assert stats["train"]["documents"] + stats["heldout"]["documents"] == len(plays) + 1
    assert (stats["dtype"], stats["vocab_size"], stats["eod"], stats["eod_id"]) == ("uint16", 2048, "<|endoftext|>", 0)
    train, heldout = side(artifact, "train"), side(artifact, "heldout")
    assert Counter(train + heldout) == Counter([*plays, " \n"])
    assert train == [t for t in [*plays[:200], " \n", *plays[200:]] if t not in set(heldout)]
    texts = [json.loads(line)["text"] for line in (artifact.path / "heldout.jsonl").read_text().splitlines()]
    assert texts == heldout
    assert {c.name: c.passed for c in artifact.manifest.checks} == {
        "counts_agree": True,
        "index_agrees": True,
        "documents_end_with_eod": True,
        "ids_within_vocabulary": True,
        "eod_only_at_the_end": True,
        "held_out_not_empty": True,
        "held_out_text_matches": True,
        "ids_are_the_references": True,
    }
    assert [e.kind for e in events] == ["started", "finished"]


@PROPERTY
@given(
    content=st.lists(st.one_of(TEXT, st.sampled_from(list(BAD)).map(lambda r: ("bad", r)))),
    files=st.integers(1, 4),
    batch_bytes=st.sampled_from([1, 100, 1 << 20]),
)
def test_read_is_written_plus_dropped(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Path, content: list[Any], files: int, batch_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("property")
    lines = [json.dumps({"text": row}) if isinstance(row, str) else BAD[row[1]] for row in ["first", *content]]
    for index in range(files):
        (folder / f"{index}.jsonl").write_text("".join(line + "\n" for line in lines[index::files]))
    job = plain_tokenize_job([str(folder)], tokenizer, folder / "out", on_error="drop")
    artifact = tokenize(job.model_copy(update={"batch_bytes": batch_bytes}))
    stats = artifact.manifest.stats
    rows = [row for index in range(files) for row in ["first", *content][index::files]]
    assert side(artifact, "train") == [row for row in rows if isinstance(row, str)]
    assert stats["dropped"] == dict(sorted(Counter(r[1] for r in content if not isinstance(r, str)).items()))
    assert stats["documents_read"] == len(rows) == stats["documents_written"] + sum(stats["dropped"].values())
    reader = IndexedReader(artifact.path / "train")
    assert int(reader.lengths.sum()) == stats["train"]["tokens"] == len(reader.tokens)
    assert not artifact.manifest.failed_checks


@PROPERTY
@given(order=st.permutations(range(40)), files=st.integers(1, 6))
def test_neither_order_nor_layout_moves_a_document_across_the_split(
    make_job: MakeJob, order: list[int], files: int
) -> None:
    texts = [f"document {i}" for i in range(40)]
    whole = set(side(tokenize(make_job(texts, fraction=0.2, out="one")), "heldout"))
    other = tokenize(make_job([texts[i] for i in order], files=files, fraction=0.2, out="two"))
    assert set(side(other, "heldout")) == whole
    assert side(other, "train") == [texts[i] for i in order if texts[i] not in whole]


def test_equal_documents_are_on_one_side(make_job: MakeJob) -> None:
    texts = [f"document {i % 20}" for i in range(100)]
    artifact = tokenize(make_job(texts, fraction=0.3))
    assert not set(side(artifact, "train")) & set(side(artifact, "heldout"))


def test_sentencepiece_shards(make_job: MakeJob, sentencepiece_model: Path, plays: list[str]) -> None:
    import sentencepiece

    reference = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    artifact = tokenize(make_job(plays[:30], tokenizer=sentencepiece_model))
    reader = IndexedReader(artifact.path / "train")
    assert [reader[i].tolist() for i in range(30)] == [[*reference.encode_as_ids(t), 2] for t in plays[:30]]
    assert (artifact.path / "tokenizer.model").read_bytes() == sentencepiece_model.read_bytes()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_499, "uint16"), (65_500, "int32")])
def test_type_at_the_edge(make_job: MakeJob, tmp_path: Path, vocab_size: int, dtype: str) -> None:
    import tokenizers

    model = tokenizers.models.WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    highest = vocab_size - 1
    artifact = tokenize(make_job([f"w{highest} w1"], tokenizer=tmp_path / "tokenizer.json", eod="w2"))
    assert artifact.manifest.stats["dtype"] == dtype
    assert artifact.manifest.stats["vocab_size"] == vocab_size
    assert (artifact.path / "train.bin").stat().st_size == 3 * np.dtype(dtype).itemsize
    assert IndexedReader(artifact.path / "train")[0].tolist() == [highest, 1, 2]


def test_text_that_spells_eod_is_reported(make_job: MakeJob) -> None:
    artifact = tokenize(make_job(["a <|endoftext|> b", "c"]))
    (check,) = (c for c in artifact.manifest.checks if not c.passed)
    assert (check.name, check.severity, check.metadata) == ("eod_only_at_the_end", "WARN", {"inside": 1})


def test_nothing_held_out_leaves_no_held_out_files(make_job: MakeJob) -> None:
    artifact = tokenize(make_job(["a", "b"]))
    assert sorted(p.name for p in artifact.path.iterdir()) == [
        "manifest.json",
        "tokenizer.json",
        "train.bin",
        "train.idx",
    ]
    assert artifact.manifest.stats["heldout"] == {"documents": 0, "tokens": 0, "pairs": []}


def test_an_empty_corpus_is_named(make_job: MakeJob) -> None:
    job = make_job(["", ""])
    with pytest.raises(InputError, match=r"corpus 'out': no document is left \(dropped: \{'empty': 2\}\)"):
        tokenize(job)
    assert left_beside(job) == []


def test_an_empty_side_of_the_split_is_named(make_job: MakeJob) -> None:
    with pytest.raises(InputError, match=r"none of 2 documents is held out.*fraction is 0\.001.*Raise the fraction"):
        tokenize(make_job(["a", "b"], fraction=0.001))
    with pytest.raises(InputError, match=r"all 2 documents are held out .*Lower the fraction\.$"):
        tokenize(make_job(["a", "b"], fraction=0.9999))


def test_an_empty_side_tells_what_the_filters_dropped(make_job: MakeJob) -> None:
    filters = [Filter(deduplicate="exact")]
    texts = ["a", "b", *["a"] * 48, ""]
    dropped = r"2 documents that are left \(dropped: \{'empty': 1, 'duplicate': 48\}\)"
    with pytest.raises(InputError, match=rf"all {dropped} are held out.*Lower the fraction, or check the filters"):
        tokenize(make_job(texts, fraction=0.9999, filters=filters))
    with pytest.raises(InputError, match=rf"none of {dropped} is held out.*check the filters"):
        tokenize(make_job(texts, fraction=0.001, filters=filters))


def test_a_source_that_changed_is_refused(make_job: MakeJob) -> None:
    job = make_job(["a", "b"])
    with Path(job.files[0].url).open("a") as stream:
        stream.write('{"text": "c"}\n')
    with pytest.raises(InputError, match=r"000\.jsonl.*Materialise raw_corpus again"):
        tokenize(job)
    assert left_beside(job) == []


def test_a_source_that_grows_meanwhile_is_refused(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    job = make_job([f"document {i}" for i in range(100)])

    def grow(event: Event) -> None:
        if event.kind == "progress":
            with Path(job.files[0].url).open("a") as stream:
                stream.write('{"text": "more"}\n')

    with pytest.raises(InputError, match="was written while it was read"):
        tokenize(job, grow)
    assert left_beside(job) == []


def test_a_changed_tokenizer_is_refused(make_job: MakeJob, tokenizer: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tokenizer.json"
    copy.write_bytes((tokenizer / "tokenizer.json").read_bytes())
    job = make_job(["a"], tokenizer=copy, eod="<|endoftext|>")
    copy.write_text(copy.read_text().replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}'))
    with pytest.raises(InputError, match="tokenizer was changed"):
        tokenize(job)


def test_progress_counts_up_and_can_cancel(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    job = make_job([f"document {i:02}" for i in range(50)]).model_copy(
        update={"expected_documents": 50, "batch_bytes": 240, "workers": 1}
    )
    events: list[Event] = []
    tokenize(job, events.append)
    shown = [e.data for e in events if e.kind == "progress"]
    assert [s["documents"] for s in shown] == list(range(10, 51, 10))  # a line has 24 bytes
    assert shown[-1]["fraction"] == 1.0
    assert shown[-1]["tokens"] > 0
    assert shown[-1]["megabytes"] > 0
    assert all(s["documents_per_second"] > 0 for s in shown)

    class Canceled(Exception):
        pass

    def cancel(event: Event) -> None:
        if event.kind == "progress":
            raise Canceled

    other = job.model_copy(update={"output": job.output.with_name("canceled")})
    with pytest.raises(Canceled):
        tokenize(other, cancel)
    assert left_beside(other) == [".canceled.pieces"]  # the next build goes on with them


@pytest.mark.parametrize(("module", "writes"), [(join, "bin_path"), (indexed, "idx_path")])
def test_a_disk_that_is_full_when_pieces_are_joined_leaves_them(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, module: ModuleType, writes: str
) -> None:
    job = make_job([f"document {i}" for i in range(5000)], fraction=0.5).model_copy(update={"task_bytes": 40_000})
    with monkeypatch.context() as patch:
        # every write to /dev/full fails with ENOSPC
        patch.setattr(module, writes, lambda _: Path("/dev/full"))
        with pytest.raises(DiskFull, match=r"no space left.*goes on with 4 finished pieces in .*out\.pieces"):
            tokenize(job)
    assert left_beside(job) == [".out.pieces"]
    assert resumed(job) == 4
    assert left_beside(job) == ["out"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_while_pieces_are_made_leaves_the_finished_ones(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    job = make_job([f"document {i}" for i in range(5000)]).model_copy(update={"task_bytes": 40_000, "workers": 1})
    whole = tokenize(job.model_copy(update={"output": job.output.with_name("whole")}))

    def full(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    def run_out(self: PieceMaker, task: int, on_batch: Any) -> Piece:
        with monkeypatch.context() as patch:
            if task in unlucky:
                patch.setattr(Piece, "model_dump_json", full)
            return make(self, task, on_batch)

    make = PieceMaker.make
    with monkeypatch.context() as patch:
        patch.setattr(PieceMaker, "make", run_out)
        unlucky = {0}
        with pytest.raises(DiskFull, match=r"run again\.$"):
            tokenize(job)
        assert left_beside(job) == []
        unlucky = {2}
        with pytest.raises(DiskFull, match="2 finished pieces"):
            tokenize(job)
    staging = Staging.of(job.output)
    assert {path.name[:7] for path in staging.folder.glob("0*")} == {"0000000", "0000001"}
    assert resumed(job) == 2
    assert read_artifact(job.output).content == whole.content


def test_a_worker_tells_of_a_full_quota(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = make_job([f"document {i}" for i in range(5000)]).model_copy(update={"task_bytes": 40_000, "workers": 2})
    (tmp_path / "full").mkdir()
    (tmp_path / "full/sitecustomize.py").write_text(
        "import errno, pathlib\ndef rename(self, target):\n    raise OSError(errno.EDQUOT, 'quota')\n"
        "pathlib.Path.rename = rename\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "full")  # workers get it as PYTHONPATH
    with pytest.raises(DiskFull, match="no space left"):
        tokenize(job)


def resumed(job: TokenizeJob) -> int:
    """Builds; gives how many pieces of an earlier build were used."""
    events: list[Event] = []
    tokenize(job, events.append)
    return sum(event.data.get("resumed", 0) for event in events)


def test_counts_that_differ_from_raw_corpus_fail_the_check(make_job: MakeJob) -> None:
    artifact = tokenize(make_job(["a", "b"]).model_copy(update={"expected_documents": 3}))
    assert [c.name for c in artifact.manifest.failed_checks] == ["counts_agree"]


def test_a_disk_that_is_too_small_is_named_and_nothing_unfinished_is_left(
    make_job: MakeJob, small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job([f"document {i} " * 20 for i in range(2000)])
    disk = small_disk(64 * 1024)
    if not disk.is_mount():  # no process of this stage syncs before the end
        monkeypatch.setattr(join, "bin_path", lambda _: Path("/dev/full"))
    job = job.model_copy(update={"output": disk / job.output.name})
    with pytest.raises(DiskFull, match=f"{disk}: no space left on the disk; free some and run again"):
        tokenize(job)
    assert left_beside(job) == ([] if disk.is_mount() else [".out.pieces"])
