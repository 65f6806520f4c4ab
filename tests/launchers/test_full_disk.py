"""A full disk: the caller is told so, also where neither log nor status could be written."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.errors import DiskFull, WorkerCanceled, WorkerFailed
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.disk import is_full, is_no_space

NO_STATUS = """
    import json, os, signal, sys, time
    from pathlib import Path
    handle = json.loads((Path(sys.argv[1]).parent / "run/handle.json").read_text())
    # nothing can be written under the name of the status any more
    (Path(handle["log_dir"]) / "status.tmp").mkdir()
"""


def worker(bench: Any, name: str, last: str) -> str:
    return str(bench.write(name, f"{NO_STATUS}    {last}\n"))


def test_an_end_that_could_not_be_written_down_is_no_lost_worker(bench: Any, quick: Any) -> None:
    with pytest.raises(WorkerFailed, match="status_3: exit status 3"):
        run_worker(worker(bench, "status_3", "sys.exit(3)"), bench.job, bench.run_dir, profile=quick)
    with pytest.raises(WorkerFailed, match="killed by signal 9"):
        run_worker(
            worker(bench, "kills", "os.kill(os.getpid(), signal.SIGKILL)"), bench.job, bench.run_dir, profile=quick
        )
    run_worker(worker(bench, "good", "sys.exit(0)"), bench.job, bench.run_dir, profile=quick)


def test_a_cancel_that_could_not_be_written_down_is_a_cancel(bench: Any, quick: Any) -> None:
    name = worker(bench, "waits", "(Path(handle['log_dir']) / 'ready').touch(); time.sleep(60)")

    def cancel() -> None:
        while not any(bench.run_dir.glob("logs/*/ready")):
            pass
        os.kill(bench.handle_pid(), signal.SIGTERM)

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    with pytest.raises(WorkerCanceled):
        run_worker(name, bench.job, bench.run_dir, profile=quick)


@pytest.mark.parametrize(
    "raised",
    ["OSError(errno.ENOSPC, 'x')", "OSError(errno.EDQUOT, 'x')", "RuntimeError('write: No space left on device')"],
)
def test_the_exit_status_says_it(bench: Any, quick: Any, raised: str) -> None:
    body = f"""
        import errno
        from pamp_pipelines.launchers.disk import run_main
        def main(path):
            raise {raised}
        run_main(main)
    """
    with pytest.raises(DiskFull, match=rf"^{bench.root}: no space left on the disk; free some and run again. "):
        run_worker(bench.write("full", body), bench.job, bench.run_dir, profile=quick)
    # what the log said does not matter
    statuses = [json.loads(file.read_text()) for file in bench.run_dir.glob("logs/*/status.json")]
    assert statuses == [{"reason": "exited", "exit_code": 74}]


def test_other_errors_are_not_taken_for_a_full_disk(bench: Any, quick: Any) -> None:
    body = """
        from pamp_pipelines.launchers.disk import run_main
        def main(path):
            raise OSError(13, "Permission denied")
        run_main(main)
    """
    with pytest.raises(WorkerFailed, match="exit status 1"):
        run_worker(bench.write("denied", body), bench.job, bench.run_dir, profile=quick)


def test_a_worker_that_says_nothing_on_a_full_disk(bench: Any, quick: Any, small_disk: Any) -> None:
    disk = small_disk(512 * 1024)
    body = """
        import os, sys
        from pathlib import Path
        with open(Path(sys.argv[1]).read_text(), "wb", 0) as stream:
            try:
                while True:
                    stream.write(bytes(1024))
                    os.fsync(stream.fileno())
            except OSError:
                os._exit(1 if len(sys.argv) == 2 else 0)
    """
    job = disk / "job"
    job.write_text(str(disk / "filler"))
    expected = DiskFull if os.path.ismount(disk) else WorkerFailed
    with pytest.raises(expected, match="exit status 1"):
        run_worker(bench.write("fills", body), job, disk / "run", profile=quick)
    assert not list((disk / "run").glob("logs/*/status.tmp"))
    assert is_full(disk) == os.path.ismount(disk)


def test_causes_are_looked_at() -> None:
    error = RuntimeError("saving failed")
    error.__cause__ = OSError(28, "No space left on device")
    assert is_no_space(error)
    assert not is_no_space(ValueError("space"))
    assert not is_full(Path("/nonexistent"))


def test_causes_that_lead_back_have_an_end() -> None:
    first, second = ValueError("first"), RuntimeError("second")
    first.__cause__, second.__context__ = second, first
    assert not is_no_space(first)
