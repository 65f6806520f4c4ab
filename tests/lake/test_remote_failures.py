"""What goes wrong between a machine and a real S3 server, and what is left and said then."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec  # noqa: F401
import pytest

from pamp_pipelines.errors import InputError, StorageError, VerificationFailed
from pamp_pipelines.lake import publication, remote
from pamp_pipelines.lake.artifact import Artifact, find, read_artifact
from pamp_pipelines.lake.cache import CacheTooSmall, trim
from pamp_pipelines.lake.catalogue import refresh
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.leases import leasing
from pamp_pipelines.lake.mirror import attach
from pamp_pipelines.lake.publication import publish_all, published
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.remote import RemoteStore
from tests.s3_server import KEY_ID, SECRET, Machines, S3Server, environment, forget_clients, tree

EXPORT = "exports/m/c/v0001/0000500"


def build(final: Path, files: dict[str, bytes], kind: str = "hf_export", id: str = "one") -> Artifact:
    with publish(final, kind=kind, id=id) as draft:
        for name, data in files.items():
            (draft.dir / name).write_bytes(data)
    return draft.artifact


@pytest.fixture
def there(machines: Machines) -> Artifact:
    """An export that the first machine has published, as the second sees it."""
    first, second = machines.mirror("first"), machines.mirror("second")
    published(build(first.root / EXPORT, {"model.bin": b"w" * 5000, "config.json": b"{}"}))
    refresh(second)
    return read_artifact(second.root / EXPORT)


def test_a_missing_object_is_named(machines: Machines, there: Artifact) -> None:
    machines.store.delete([f"payload/{EXPORT}/model.bin"])
    with pytest.raises(VerificationFailed) as caught:
        require_intact_artifact(there)
    assert f"{machines.url}/payload/{EXPORT}/model.bin: missing in the store" in str(caught.value)
    assert "pamp publish" in str(caught.value)


@pytest.mark.parametrize("content", [b"x" * 5000, b"short", b""], ids=["other", "cut", "empty"])
def test_a_damaged_object_never_gets_its_name(machines: Machines, there: Artifact, content: bytes) -> None:
    machines.store.write(f"payload/{EXPORT}/model.bin", content)
    for _ in range(2):
        with pytest.raises(VerificationFailed, match=rf"payload/{EXPORT}/model\.bin: "):
            require_intact_artifact(there)
    assert not (there.path / "model.bin").exists()
    # the remedy that the message names
    machines.store.delete([f"catalogue/{EXPORT}/manifest.json"])
    refresh(first := machines.mirror("first"))
    assert (first.root / EXPORT / "model.bin").is_file()
    assert publish_all(first.root) == [first.root / EXPORT]
    refresh(machines.mirror("second"))
    require_intact_artifact(there)


def test_a_damaged_score_is_left_out_and_does_not_hide_the_others(machines: Machines) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    for name in ("math", "text"):
        published(build(first.root / f"scores/m/c/v0001/0000500/{name}", {"scores.parquet": b"1"}, "eval_scores"))
    machines.store.write("catalogue/scores/m/c/v0001/0000500/math/scores.parquet", b"2")
    (damage,) = refresh(second)
    assert f"{machines.url}/catalogue/scores/m/c/v0001/0000500/math/scores.parquet" in damage
    assert find(second.root / "scores/m/c/v0001/0000500/math", "one") is None
    assert find(second.root / "scores/m/c/v0001/0000500/text", "one") is not None
    assert refresh(second) == [damage]
    machines.store.write("catalogue/scores/m/c/v0001/0000500/math/scores.parquet", b"1")
    assert refresh(second) == []
    assert find(second.root / "scores/m/c/v0001/0000500/math", "one") is not None


def test_an_artifact_that_is_replaced_while_it_is_fetched_asks_for_another_attempt(
    machines: Machines, there: Artifact
) -> None:
    first = machines.mirror("first")
    published(build(first.root / EXPORT, {"model.bin": b"v" * 5000}, id="two"))
    with pytest.raises(StorageError, match="was replaced meanwhile; run it again"):
        require_intact_artifact(there)
    with leasing():
        pass
    assert not (there.path / "model.bin").exists()


@pytest.fixture
def impatient(own_clients: None, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"connect_timeout": 1, "read_timeout": 1, "retries": {"max_attempts": 1, "mode": "standard"}}
    monkeypatch.setitem(remote._DEFAULTS, "s3", {"config_kwargs": options})


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_not_there(machines: Machines, there: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    away = attach(machines.folder / "second", machines.url + "/", 10**9)
    forget_clients()
    with pytest.raises(StorageError, match=r"does not answer \(EndpointConnectionError") as caught:
        refresh(away)
    assert SECRET not in str(caught.value)
    assert find(there.path, "one") is not None, "what was known before is known still"


@pytest.mark.usefixtures("impatient", "s3")
def test_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StorageError, match=r"does not answer \(.*[Tt]imeout"):
            RemoteStore("s3://bucket/lake").read("catalogue/x")


@pytest.mark.usefixtures("own_clients")
def test_without_credentials_the_variables_are_named(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    forget_clients()
    with pytest.raises(InputError, match="no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        RemoteStore(machines.url).list("catalogue")


def test_a_bucket_that_does_not_exist(s3: S3Server) -> None:
    with pytest.raises(InputError, match="the bucket does not exist; create it, or correct the URL"):
        RemoteStore("s3://no-such-bucket/lake").write("catalogue/x", b"1")


def test_a_url_that_holds_credentials_is_refused_without_being_shown() -> None:
    with pytest.raises(InputError) as caught:
        RemoteStore("s3://AKIAKEY:hush-hush@bucket/lake")
    assert "hush" not in str(caught.value)
    with pytest.raises(InputError, match="names no bucket"):
        RemoteStore("s3://")


@pytest.mark.usefixtures("own_clients")
def test_a_backend_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(InputError, match=r"uv pip install --python \S+ -e '\.\[s3\]'"):
        RemoteStore("s3://bucket/lake").list("catalogue")
    with pytest.raises(InputError, match="cannot be opened"):
        RemoteStore("nowhere://bucket/lake").list("catalogue")


def test_what_a_backend_says_is_shown_without_secrets(s3: S3Server) -> None:
    error = OSError(f"http://user:pw@host/key?X-Amz-Signature=abc failed with {SECRET} of {KEY_ID}")
    said = remote._said(error)
    assert said == "http://…@host/key failed with … of …"


UPLOADER = """
import sys, time
from pathlib import Path
from pamp_pipelines.lake import publication
from pamp_pipelines.lake.mirror import attach
from pamp_pipelines.lake.remote import RemoteStore

root, url = Path(sys.argv[1]), sys.argv[2]
upload = RemoteStore.upload
def slow(self, file, path, on_bytes):
    if file.name == "3.bin":
        print("half-way", flush=True)
        time.sleep(60)
    upload(self, file, path, on_bytes)
RemoteStore.upload = slow
publication.THREADS = 1
attach(root, url, 10**9)
publication.publish_all(root)
"""


def test_a_killed_upload_is_invisible_and_goes_on(
    machines: Machines, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    build(first.root / EXPORT, {f"{n}.bin": bytes([n]) * 1000 for n in range(6)})
    command = [sys.executable, "-c", UPLOADER, str(first.root), machines.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment(s3.endpoint)}) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"half-way\n"
        killed.send_signal(signal.SIGKILL)
    refresh(second)
    assert not tree(second.root)
    uploaded: list[str] = []
    upload = RemoteStore.upload
    monkeypatch.setattr(
        RemoteStore, "upload", lambda self, file, *more: (uploaded.append(file.name), upload(self, file, *more))[1]
    )
    publish_all(first.root)
    assert sorted(uploaded) in (["2.bin", "3.bin", "4.bin", "5.bin"], ["3.bin", "4.bin", "5.bin"])
    refresh(second)
    require_intact_artifact(read_artifact(second.root / EXPORT))


def test_an_object_that_somebody_else_put_is_not_taken_for_ours(machines: Machines) -> None:
    """Of the same size, left by whoever: only what this upload has confirmed counts."""
    first, second = machines.mirror("first"), machines.mirror("second")
    machines.store.write(f"payload/{EXPORT}/model.bin", b"evil")
    published(build(first.root / EXPORT, {"model.bin": b"good"}))
    refresh(second)
    require_intact_artifact(read_artifact(second.root / EXPORT))


def test_an_upload_that_fails_is_tried_again_by_the_next_call(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machines.mirror("first")
    artifact = build(first.root / EXPORT, {"model.bin": b"good"})

    def refuse(*_: object) -> None:
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "upload", refuse)
        with pytest.raises(StorageError):
            published(artifact)
    assert not publication.is_published(artifact.path)
    assert machines.store.list("catalogue") == {}
    published(artifact)
    assert publication.is_published(artifact.path)


def test_a_cache_smaller_than_one_artifact(machines: Machines, there: Artifact) -> None:
    machines.mirror("second", budget=4000)
    with pytest.raises(CacheTooSmall, match=r"5,002 bytes have to be staged and the cache may take 4,000; raise PAMP_"):
        require_intact_artifact(there)
    assert not (there.path / "model.bin").exists()


def test_the_least_recently_used_goes_and_what_is_leased_stays(machines: Machines) -> None:
    first = machines.mirror("first")
    for step in (1, 2, 3):
        published(build(first.root / f"exports/m/c/v0001/000000{step}", {"model.bin": bytes([step]) * 1000}))
    second = machines.mirror("second", budget=2000)
    refresh(second)
    places = [second.root / f"exports/m/c/v0001/000000{step}" for step in (1, 2, 3)]
    for number in (0, 1):
        with leasing():
            require_intact_artifact(read_artifact(places[number]))
        os.utime(places[number].parent / f".{places[number].name}.lease", (number + 1, number + 1))
    with leasing():
        require_intact_artifact(read_artifact(places[0]))  # used again, and in use
        with leasing():
            require_intact_artifact(read_artifact(places[2]))
            assert [(place / "model.bin").exists() for place in places] == [True, False, True]
            with pytest.raises(CacheTooSmall, match="are in use and cannot go"):
                require_intact_artifact(read_artifact(places[1]))
        assert find(places[1], "one") is not None, "its manifest stays"
        require_intact_artifact(read_artifact(places[1]))
        assert [(place / "model.bin").exists() for place in places] == [True, True, False]


def test_what_is_not_published_never_goes(machines: Machines) -> None:
    first = machines.mirror("first", budget=10)
    alone = build(first.root / "shards/c/0123", {"train.bin": b"x" * 100}, "tokenized_shards")
    published(build(first.root / EXPORT, {"model.bin": b"y" * 100}))
    assert (alone.path / "train.bin").exists()


def test_a_job_that_cannot_be_read_keeps_nothing_from_being_trimmed(machines: Machines) -> None:
    first = machines.mirror("first", budget=10)
    for version, lost in (("v0001", "nowhere"), ("v0002", "job.json")):
        run = first.root / "runs/m/c" / version
        run.mkdir(parents=True)
        (run / "job.json").symlink_to(lost)
    with leasing():
        published(build(first.root / EXPORT, {"model.bin": b"y" * 100}))
    assert trim(first) == 0
    assert not (first.root / EXPORT / "model.bin").exists()


def fetch_once(root: Path, url: str) -> list[str]:
    """What this process had to ask the store for."""
    asked: list[str] = []
    read = RemoteStore.read_range

    def slow(self: RemoteStore, path: str, start: int, end: int) -> bytes:
        asked.append(path)
        time.sleep(0.3)
        return read(self, path, start, end)

    RemoteStore.read_range = slow  # type: ignore[method-assign]
    attach(root, url, 10**9)
    require_intact_artifact(read_artifact(root / EXPORT))
    return asked


def test_two_processes_fetch_it_once(machines: Machines, there: Artifact) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        asked = pool.starmap(fetch_once, [(machines.folder / "second", machines.url)] * 2)
    assert sorted(len(one) for one in asked) == [0, 2]
    assert read_artifact(there.path, verify="hash") == there
    assert not list((machines.folder / "second/.remote/parts").glob("*"))


def test_what_a_killed_fetch_left_is_removed(machines: Machines, there: Artifact) -> None:
    left = machines.folder / "second/.remote/parts/dead"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "0").write_bytes(b"x" * 10_000)
    machines.mirror("second", budget=6000)
    require_intact_artifact(there)
    assert not left.exists()
