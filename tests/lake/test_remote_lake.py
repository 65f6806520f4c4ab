"""What one machine publishes, another finds, stages and checks: over HTTP, from a real S3 server."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.callbacks import Callback
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamp_pipelines.errors import VerificationFailed
from pamp_pipelines.lake import staging
from pamp_pipelines.lake.artifact import Artifact, find, read_artifact
from pamp_pipelines.lake.catalogue import refresh
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.mirror import CATALOGUE, PAYLOAD, detach, uri_of
from pamp_pipelines.lake.publication import is_published, publish_all, published
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.staging import here, looking
from tests.s3_server import Machines, tree

names = st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3}){0,2}\.bin", fullmatch=True)


def build(final: Path, files: dict[str, bytes], kind: str = "hf_export", id: str = "one") -> Artifact:
    with publish(final, kind=kind, id=id) as draft:
        for name, data in files.items():
            (draft.dir / name).parent.mkdir(parents=True, exist_ok=True)
            (draft.dir / name).write_bytes(data)
    return draft.artifact


def test_a_second_machine_finds_by_manifest_and_stages_what_it_reads(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    files = {"model.safetensors": b"w" * 1000, "config.json": b"{}", "empty": b""}
    seen: list[Event] = []
    made = published(build(first.root / "exports/m/c/v0001/0000500", files), seen.append)
    assert seen[-1].data["megabytes"] == 0.001
    assert seen[-1].data["megabytes_per_second"] > 0
    refresh(second)
    place = second.root / "exports/m/c/v0001/0000500"
    assert tree(second.root).keys() == {"exports/m/c/v0001/0000500/manifest.json"}
    found = find(place, "one")
    assert found is not None
    assert found.manifest == made.manifest
    with looking():
        require_intact_artifact(found)
    assert not (place / "model.safetensors").exists()
    assert here(place / "config.json").read_bytes() == b"{}"
    assert not (place / "model.safetensors").exists()
    require_intact_artifact(found)
    assert {name: (place / name).read_bytes() for name in files} == files
    assert uri_of(place, "hf_export") == f"{machines.url}/payload/exports/m/c/v0001/0000500"


def test_an_export_in_the_store_is_an_ordinary_folder(machines: Machines) -> None:
    first = machines.mirror("first")
    files = {"a.bin": b"a", "sub/b.bin": b"b"}
    published(build(first.root / "exports/m/c/v0001/0000500", files))
    assert machines.store.list(f"{PAYLOAD}/exports/m/c/v0001/0000500").keys() == files.keys()
    assert machines.store.list(CATALOGUE).keys() == {"exports/m/c/v0001/0000500/manifest.json"}


def test_small_artifacts_come_whole_with_the_catalogue(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    files = {"scores.parquet": b"rows", "samples.jsonl": b"{}\n"}
    published(build(first.root / "scores/m/c/v0001/0000500/math", files, "eval_scores"))
    refresh(second)
    assert tree(second.root) == tree(first.root)
    read_artifact(second.root / "scores/m/c/v0001/0000500/math", verify="hash")


def test_publishing_again_moves_nothing(machines: Machines) -> None:
    first = machines.mirror("first")
    artifact = build(first.root / "exports/m/c/v0001/0000500", {"a.bin": b"a"})
    assert not is_published(artifact.path)
    assert publish_all(first.root) == [artifact.path]
    assert is_published(artifact.path)
    before = machines.store.list("")
    assert publish_all(first.root) == []
    published(artifact)
    refresh(first)
    assert machines.store.list("") == before


def test_what_is_no_manifest_stops_no_publication(machines: Machines) -> None:
    first = machines.mirror("first")
    artifact = build(first.root / "exports/m/c/v0001/0000500", {"a.bin": b"a"})
    (first.root / "exports/a/manifest.json").mkdir(parents=True)
    (first.root / "exports/b").mkdir()
    (first.root / "exports/b/manifest.json").write_text("{")
    told: list[str] = []
    assert publish_all(first.root, lambda event: told.append(str(event.data))) == [artifact.path]
    assert [name for name in ("exports/a/manifest.json", "exports/b/manifest.json") if name not in "".join(told)] == []


def test_a_replaced_artifact_replaces_the_old_one_everywhere(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    for kind, folder in (("hf_export", "exports/m/c/v0001/0000500"), ("leaderboard", "reports")):
        published(build(first.root / folder, {"same": b"same", "a": b"old", "gone": b"x"}, kind))
        refresh(second)
        require_intact_artifact(read_artifact(second.root / folder))
        staging_leases_end()
        published(build(first.root / folder, {"same": b"same", "a": b"new"}, kind, id="two"))
        refresh(second)
        artifact = read_artifact(second.root / folder)
        assert artifact.id == "two"
        require_intact_artifact(artifact)
        assert tree(second.root / folder) == tree(first.root / folder)
        staging_leases_end()


def staging_leases_end() -> None:
    from pamp_pipelines.lake import leases

    for stream in leases._HELD[0].values():
        stream.close()
    leases._HELD[0].clear()


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(files=st.dictionaries(names, st.binary(max_size=300), min_size=1, max_size=4), large=st.booleans())
def test_whatever_is_published_is_fetched_unchanged(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], large: bool
) -> None:
    monkeypatch.setattr(staging, "RANGE_BYTES", 100)
    number = len(list(machines.folder.iterdir()))
    first, second = machines.mirror(f"{number}-a"), machines.mirror(f"{number}-b")
    kind, place = ("tokenized_shards", f"shards/c/{number}") if large else ("raw_corpus", f"corpora/c/{number}")
    try:
        made = published(build(first.root / place, files, kind))
    except IsADirectoryError:
        return
    refresh(second)
    got = require_intact_artifact(read_artifact(second.root / place))
    assert got.manifest == made.manifest
    assert tree(got.path) == tree(made.path)


def test_damage_here_is_found_before_it_is_published(machines: Machines) -> None:
    first = machines.mirror("first")
    artifact = build(first.root / "exports/m/c/v0001/0000500", {"a.bin": b"good"})
    (artifact.path / "a.bin").write_bytes(b"evil")
    with pytest.raises(VerificationFailed, match=r"a\.bin: its content is damaged"):
        published(artifact)
    assert machines.store.list("") == {}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Machines]:
    """Machines with a lake at a URL of another protocol than S3's."""
    yield Machines(tmp_path, f"memory://{uuid.uuid4().hex}/team/lake")
    for root in tmp_path.iterdir():
        detach(root)


def test_nothing_but_the_backend_knows_the_protocol(elsewhere: Machines) -> None:
    first, second = elsewhere.mirror("first"), elsewhere.mirror("second")
    made = published(build(first.root / "exports/m/c/v0001/0000500", {"sub/a.bin": b"a" * 1000}))
    refresh(second)
    found = find(second.root / "exports/m/c/v0001/0000500", "one")
    assert found is not None
    assert found.manifest == made.manifest
    require_intact_artifact(found)
    assert (found.path / "sub/a.bin").read_bytes() == b"a" * 1000
    assert [elsewhere.store.create("claim", name) for name in (b"first", b"second")] == [True, False]
    assert elsewhere.store.read("claim") == b"first"


def test_progress_of_a_backend_that_tells_of_all_it_has_moved(elsewhere: Machines, tmp_path: Path) -> None:
    """As gcsfs does."""

    class Backend(MemoryFileSystem):
        def put_file(self, lpath: str, rpath: str, callback: Callback, **_: object) -> None:
            for moved in (400, 1000):
                callback.absolute_update(moved)

    store = elsewhere.store
    store.__dict__["_fs"] = Backend()
    (tmp_path / "file").write_bytes(b"a" * 1000)
    seen: list[int] = []
    store.upload(tmp_path / "file", "file", seen.append)
    assert seen == [400, 600]
