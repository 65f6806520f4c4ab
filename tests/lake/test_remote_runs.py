"""Runs in a lake at a URL: who owns a version, and checkpoints that are published while the run goes on."""

from pathlib import Path

import pytest

from pamp_pipelines.errors import InputError, StorageError
from pamp_pipelines.evaluation.export_cache import evict
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.cache import units_here
from pamp_pipelines.lake.catalogue import refresh
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.leases import leasing
from pamp_pipelines.lake.manifest import FileEntry, Manifest
from pamp_pipelines.lake.mirror import Mirror
from pamp_pipelines.lake.publication import Publisher, publish_all, publish_record, published
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.remote import RemoteStore
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.training.kept import read_intact, read_kept
from pamp_pipelines.training.versions import select_version
from tests.s3_server import Machines

KEY = CheckpointKey("m", "c", 1, 4)


def entry(root: Path, name: str, data: str) -> FileEntry:
    write_text(root / name, data)
    return FileEntry(path=name, bytes=len(data), sha256=sha256_file(root / name))


def run(mirror: Mirror) -> Path:
    """A version that has kept a checkpoint and goes on; returns the record."""
    lake = Lake(mirror.root)
    select_version(lake, "m", "c", "id", fresh=False)
    folder = lake.version_dir("m", "c", 1)
    write_text(folder / "job.json", "{}")
    files = tuple(entry(folder, f"checkpoints/iter_0000004/{name}", name * 50) for name in (".metadata", "0.distcp"))
    record = Manifest(
        kind="checkpoint",
        id="checkpoint",
        content="c",
        created="now",
        files=files,
        stats={"step": 4},
        location="checkpoints/iter_0000004",
    )
    write_text(lake.kept_record(KEY), record.model_dump_json())
    return lake.kept_record(KEY)


def finish(record: Path) -> None:
    folder = record.parent.parent
    files = tuple(entry(folder, name, text) for name, text in (("job.json", "{}"), ("metrics.jsonl", "{}\n")))
    manifest = Manifest(kind="pretrained_checkpoint", id="id", content="r", created="now", files=files)
    write_text(folder / "manifest.json", manifest.model_dump_json())


def test_a_kept_checkpoint_of_a_run_that_goes_on_can_be_staged_elsewhere(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    with Publisher() as publisher:
        publisher.add(run(first))
    assert publisher.problems() == []
    refresh(second)
    lake = Lake(second.root)
    assert list(lake.kept_checkpoints()) == [KEY]
    assert (lake.version_dir("m", "c", 1) / "job.json").is_file()
    location = Path(str(read_kept(lake, KEY).location))
    assert not location.exists()
    read_intact(lake, KEY)
    assert (location / "0.distcp").read_text() == "0.distcp" * 50


def test_a_store_that_is_away_does_not_end_a_run(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machines.mirror("first")
    record = run(first)

    def away(*_: object) -> None:
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "upload", away)
        with Publisher() as publisher:
            publisher.add(record)
            publisher._pool.shutdown(wait=True)
            assert publisher.problems() == ["the store does not answer"]
    assert "runs/m/c/v0001/kept/0000004.json" not in machines.store.list("catalogue")
    # the finished run brings its checkpoints along
    finish(record)
    publish_all(first.root)
    assert "runs/m/c/v0001/kept/0000004.json" in machines.store.list("catalogue")
    assert "runs/m/c/v0001/checkpoints/iter_0000004/0.distcp" in machines.store.list("payload")


def test_a_version_that_is_trained_elsewhere_is_not_taken_over(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    record = run(first)
    assert select_version(Lake(first.root), "m", "c", "id", fresh=False) == 1, "its own is resumed"
    refresh(second)
    assert select_version(Lake(second.root), "m", "c", "id", fresh=False) == 2
    finish(record)
    publish_all(first.root)
    refresh(third := machines.mirror("third"))
    assert select_version(Lake(third.root), "m", "c", "id", fresh=False) == 1, "a finished one is found"


def test_a_version_is_taken_over_by_who_says_so(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    publish_record(run(first))
    refresh(second)
    theirs = Lake(second.root)
    assert select_version(theirs, "m", "c", "id", fresh=False, claim=False, take_over=True) == 1
    assert select_version(theirs, "m", "c", "id", fresh=False, claim=False) == 2, "looking took nothing over"
    assert select_version(theirs, "m", "c", "id", fresh=False, take_over=True) == 1
    assert select_version(theirs, "m", "c", "id", fresh=False) == 1, "it is its own now"
    with pytest.raises(InputError, match="no unfinished run of these inputs and settings"):
        select_version(theirs, "m", "c", "other", fresh=False, take_over=True)
    refresh(first)
    assert select_version(Lake(first.root), "m", "c", "id", fresh=False, claim=False) == 2, "who had it has it no more"


def test_what_has_published_no_checkpoint_is_not_taken_over(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    select_version(Lake(first.root), "m", "c", "id", fresh=False)
    refresh(second)
    with pytest.raises(InputError, match="published no checkpoint yet"):
        select_version(Lake(second.root), "m", "c", "id", fresh=False, take_over=True)
    refresh(first)
    assert select_version(Lake(first.root), "m", "c", "id", fresh=False) == 1, "it keeps it"


def test_of_two_machines_that_take_over_at_once_one_is_refused(machines: Machines) -> None:
    """Neither has seen what the other did when it begins."""
    first, second, third = (machines.mirror(name) for name in ("first", "second", "third"))
    publish_record(run(first))
    refresh(second)
    refresh(third)
    assert select_version(Lake(second.root), "m", "c", "id", fresh=False, take_over=True) == 1
    with pytest.raises(InputError, match="taken this version over just now"):
        select_version(Lake(third.root), "m", "c", "id", fresh=False, take_over=True)
    refresh(third)
    assert select_version(Lake(third.root), "m", "c", "id", fresh=False, claim=False) == 2
    assert select_version(Lake(third.root), "m", "c", "id", fresh=False, take_over=True) == 1, "who asks again may"
    refresh(first)
    assert select_version(Lake(first.root), "m", "c", "id", fresh=False, take_over=True) == 1, "and back"
    for mirror, version in ((second, 2), (third, 2), (first, 1)):
        refresh(mirror)
        assert select_version(Lake(mirror.root), "m", "c", "id", fresh=False, claim=False) == version


def test_a_claim_that_is_killed_is_nobodys_or_ones_own(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    create = RemoteStore.create

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    def killed_after(store: RemoteStore, path: str, data: bytes) -> bool:
        assert create(store, path, data)
        raise KeyboardInterrupt

    for replacement in (killed, killed_after):
        with monkeypatch.context() as patch:
            patch.setattr(RemoteStore, "create", replacement)
            with pytest.raises(KeyboardInterrupt):
                select_version(Lake(first.root), "m", "c", "id", fresh=False)
    refresh(second)
    assert select_version(Lake(second.root), "m", "c", "id", fresh=False) == 3
    refresh(first)
    assert select_version(Lake(first.root), "m", "c", "id", fresh=False) == 2


def test_metrics_that_grow_while_they_are_published_are_published_again(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    record = run(first)
    metrics = record.parent.parent / "metrics.jsonl"
    write_text(metrics, "one\n")
    publish_record(record)
    write_text(metrics, "one\ntwo\n")
    refresh(first)
    assert metrics.read_text() == "one\ntwo\n", "what is newer here stays"
    refresh(second)
    assert (second.root / first.rel(metrics)).read_text() == "one\n"
    publish_record(record)
    refresh(second)
    assert (second.root / first.rel(metrics)).read_text() == "one\ntwo\n"


def test_two_machines_never_claim_the_same_number(machines: Machines) -> None:
    """Neither has seen the other's claim when it makes its own."""
    numbers = [select_version(Lake(machines.mirror(m).root), "m", "c", m, fresh=False) for m in ("first", "second")]
    assert numbers == [1, 2]


def test_checkpoints_of_a_run_that_goes_on_are_no_cache(machines: Machines) -> None:
    first = machines.mirror("first", budget=10)
    record = run(first)
    payload = record.parent.parent / "checkpoints/iter_0000004/0.distcp"
    with leasing():
        publish_record(record)
    assert list(units_here(first)) == []
    assert payload.exists()
    finish(record)
    publish_all(first.root)
    assert not payload.exists(), "published, finished, and over the budget"
    read_kept(Lake(first.root), KEY)


def test_exports_that_the_store_has_are_not_evicted_to_be_made_again(machines: Machines) -> None:
    first = machines.mirror("first")
    lake = Lake(first.root)
    exports = [lake.export_dir(CheckpointKey("m", "c", 1, step)) for step in (4, 8)]
    for export in exports:
        with publish(export, kind="hf_export", id=export.name) as draft:
            (draft.dir / "model.safetensors").write_bytes(b"x" * 100)
    published(read_artifact(exports[0]))
    assert [path for path, _ in evict(lake, 0).evicted] == [exports[1]]
    assert (exports[0] / "model.safetensors").is_file()
