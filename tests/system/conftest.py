"""Programs of the operating system, started for the tests and ended by them."""

import os
from collections.abc import Iterator

import pytest

from tests.system.slurm_cluster import SlurmCluster, missing


@pytest.fixture(scope="session")
def _slurm() -> Iterator[SlurmCluster]:
    if absent := missing():
        message = f"not installed: {', '.join(absent)}; on Debian: apt-get install slurm-wlm slurmctld slurmd munge"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    cluster = SlurmCluster.start()
    yield cluster
    cluster.stop()
    assert cluster.left() == []


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
