"""Job files of workers that outlive their caller."""

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.launchers import WorkerSpec, launcher_for, worker
from pamp_pipelines.launchers.local import LocalLauncher
from pamp_pipelines.launchers.prepared import prepared, remove, still_runs
from tests.launchers.conftest import Bench, living


def test_the_folder_of_a_worker_that_a_cluster_still_runs_is_left_alone(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its handle it could not be found again, and a second one would be submitted."""

    class Cluster(LocalLauncher):
        outlives_caller = True

    monkeypatch.setitem(worker._LAUNCHERS, "local", Cluster)
    module = bench.write("waits", "import time; time.sleep(300)")
    folder = bench.root / "work"
    file = prepared(folder, "{}")
    launcher = launcher_for(ComputeProfile())
    handle = launcher.submit(WorkerSpec(module, file, folder, ComputeProfile()))
    assert still_runs(folder, "{}")
    assert prepared(folder, "{}") == file
    assert launcher.find(folder) == handle
    prepared(folder, '{"other": 1}')
    assert launcher.find(folder) is None
    assert not launcher.poll(handle).running
    assert [entry.name for entry in folder.iterdir()] == ["job.json"]
    handle = launcher.submit(WorkerSpec(module, file, folder, ComputeProfile()))
    remove(folder)
    assert not folder.exists()
    assert not living(handle.token)
