"""A real S3 server over HTTP on loopback, and lakes that several machines have in one of its buckets."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pamp_pipelines.lake.mirror import Mirror, attach, detach
from pamp_pipelines.lake.remote import RemoteStore

_served: list[str] = []
"""The endpoint that cached clients talk to."""

KEY_ID, SECRET = "tester-key-id", "tester-secret-key"


@dataclass(frozen=True)
class S3Server:
    endpoint: str

    def bucket(self) -> str:
        """URL of a new bucket."""
        import s3fs

        name = f"lake-{uuid.uuid4().hex[:12]}"
        s3fs.S3FileSystem().mkdir(name)
        return f"s3://{name}"


@contextmanager
def running() -> Iterator[S3Server]:
    """The server, with environment variables by which clients find it and may use it."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(f"http://{host}:{port}")
    server.stop()


def environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def forget_clients() -> None:
    """fsspec keeps its clients, with the endpoint and credentials that they were made with."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    _served.clear()


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture
def s3(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in environment(_s3_server.endpoint).items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    if _served != [_s3_server.endpoint]:
        forget_clients()
        _served.append(_s3_server.endpoint)
    return _s3_server


@pytest.fixture
def own_clients() -> Iterator[None]:
    """For tests that change the endpoint or the credentials: a client takes a quarter of a second to make, so others
    share one."""
    forget_clients()
    yield
    forget_clients()


@dataclass(frozen=True)
class Machines:
    """Working directories for one bucket: what one publishes, another finds."""

    folder: Path
    url: str

    @property
    def store(self) -> RemoteStore:
        return RemoteStore(self.url)

    def mirror(self, name: str, budget: int = 10**9) -> Mirror:
        return attach(self.folder / name, self.url, budget)


@pytest.fixture
def machines(s3: S3Server, tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path, f"{s3.bucket()}/team/lake")
    yield machines
    for root in tmp_path.iterdir():
        detach(root)


def tree(folder: Path) -> dict[str, bytes]:
    """Files that are no private ones, by path."""
    found = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                path = Path(parent) / name
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found
