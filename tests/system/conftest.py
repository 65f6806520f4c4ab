"""Programs of the operating system, started for the tests and ended by them."""

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.system.slurm_cluster import SlurmCluster, missing


@contextlib.contextmanager
def running_cluster(**options: int) -> Iterator[SlurmCluster]:
    if absent := missing():
        message = f"not installed: {', '.join(absent)}; on Debian: apt-get install slurm-wlm slurmctld slurmd munge"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    cluster = SlurmCluster.start(**options)
    try:
        yield cluster
    finally:
        cluster.stop()
    assert cluster.left() == []


@pytest.fixture(scope="session")
def _slurm() -> Iterator[SlurmCluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def own_slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster whose daemons the test may kill."""
    with running_cluster(timeout_s=15, message_s=8) as cluster:
        for name, value in cluster.env.items():
            monkeypatch.setenv(name, value)
        yield cluster


@pytest.fixture
def slurm(_slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Two idle nodes; the launcher's commands reach them."""
    for name, value in _slurm.env.items():
        monkeypatch.setenv(name, value)
    _slurm.idle()
    yield _slurm
    for job in _slurm.jobs():
        _slurm.command("scancel", "--signal=KILL", "--full", job)
        _slurm.command("scancel", job)
    _slurm.idle()
