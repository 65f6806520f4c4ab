"""Whatever happens to the caller, nothing of the worker is alive ten seconds later."""

import fcntl
import os
import signal
import time

import pytest

from pamp_pipelines.launchers.local import LocalLauncher, kill_leftovers
from tests.launchers.conftest import living, wait_for

HANG = """
    import time, stubborn
    from pathlib import Path
    from pamp_pipelines.lake.events import EventLog
    stubborn.start_children()
    stubborn.go_deaf()
    EventLog(Path("events.jsonl")).write("started")
    time.sleep(300)
"""


@pytest.mark.parametrize(
    ("number", "grace_s"),
    [(signal.SIGKILL, 1.0), (signal.SIGKILL, 300.0), (signal.SIGTERM, 300.0), (signal.SIGINT, 1.0)],
)
def test_the_callers_death_ends_the_worker(bench, number, grace_s):
    """A long grace is for saving on request; a dead caller's GPU may belong to somebody else already."""
    parent = bench.parent(bench.write("hang", HANG), grace_s=grace_s)
    wait_for(bench.started, 20, "start of the worker")
    assert len(living(bench.token())) == 4  # supervisor, worker, two children
    parent.send_signal(number)
    bench.assert_all_dead(10)


def test_a_caller_that_ignores_sigterm_passes_no_deafness_on(bench):
    """``dagster dev &`` in a script ignores SIGINT, and so does all that it starts."""
    module = bench.write(
        "handlers",
        """
        import signal, time
        from pathlib import Path
        from pamp_pipelines.lake.events import EventLog
        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        deaf = [s.name for s in numbers if signal.getsignal(s) != signal.SIG_DFL]
        Path("deaf").write_text(",".join(deaf))
        EventLog(Path("events.jsonl")).write("started")
        """,
    )
    prelude = (
        "for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT): signal.signal(s, signal.SIG_IGN)"
    )
    assert bench.parent(module, prelude=prelude).wait(20) == 0
    assert (bench.run_dir / "deaf").read_text() == ""


def test_caller_and_supervisor_killed_together_leave_what_a_retry_finds(bench):
    """Nobody is left to end the worker then; the next attempt does, by the token."""
    parent = bench.parent(bench.write("hang", HANG))
    wait_for(bench.started, 20, "start of the worker")
    supervisor = bench.handle_pid()
    os.kill(supervisor, signal.SIGSTOP)
    parent.kill()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: supervisor not in living(bench.token()), 5, "end of the supervisor")
    assert len(living(bench.token())) == 3
    launcher = LocalLauncher()
    handle = launcher.find(bench.run_dir)
    assert handle is not None
    launcher.cancel(handle)
    bench.assert_all_dead(0.5)
    assert launcher.find(bench.run_dir) is None
    assert kill_leftovers(handle.token) == 0


def test_a_stranger_with_the_same_process_id_is_left_alone(bench, quick):
    from pamp_pipelines.launchers import run_worker
    from pamp_pipelines.launchers.base import HANDLE, Handle

    run_worker(bench.write("nothing", ""), bench.job, bench.run_dir, profile=quick)
    handle = Handle.model_validate_json((bench.run_dir / HANDLE).read_bytes())
    stranger = handle.model_copy(update={"id": str(os.getpid())})
    (bench.run_dir / HANDLE).write_text(stranger.model_dump_json())
    launcher = LocalLauncher()
    assert launcher.find(bench.run_dir) is None
    launcher.cancel(stranger)  # would end this test
    assert not launcher.poll(stranger).running


def test_another_process_finds_polls_reads_and_cancels(bench):
    module = bench.write(
        "polite",
        """
        import time
        from pathlib import Path
        from pamp_pipelines.lake.events import EventLog
        print("first", flush=True)
        EventLog(Path("events.jsonl")).write("started")
        time.sleep(300)
        """,
    )
    parent = bench.parent(module)
    wait_for(bench.started, 20, "start of the worker")
    launcher = LocalLauncher()
    handle = launcher.find(bench.run_dir)
    assert handle is not None
    assert launcher.poll(handle).running
    text, offset = launcher.logs(handle)
    assert text == "first\n"
    assert launcher.logs(handle, offset) == ("", offset)
    status = launcher.cancel(handle)
    assert (status.reason, status.exit_code) == ("canceled", -signal.SIGTERM)
    bench.assert_all_dead(0.5)
    _, errors = parent.communicate(timeout=10)
    assert b"WorkerCanceled" in errors


def test_a_fork_that_holds_the_pipe_does_not_hide_the_callers_death(bench):
    """End of file never comes while a forked sibling holds the write end: the supervisor looks at its parent too."""
    prelude = """
import os, threading, time
def later():
    time.sleep(1.5)
    if os.fork() == 0:
        os.setsid()
        os.close(2)  # or the test would wait for its end as well
        time.sleep(20)
        os._exit(0)
threading.Thread(target=later, daemon=True).start()
"""
    parent = bench.parent(bench.write("hang", HANG), prelude=prelude)
    wait_for(bench.started, 20, "start of the worker")
    time.sleep(2.0)
    os.kill(parent.pid, signal.SIGKILL)
    bench.assert_all_dead(10)


def test_a_lease_is_held_until_the_last_process_is_dead(bench):
    """flock belongs to the open file: the supervisor's copy keeps it when the caller is gone; workers have none."""
    lease = bench.root / "lease"
    prelude = f"""
import fcntl
lease = open({str(lease)!r}, "w")
fcntl.flock(lease, fcntl.LOCK_EX)
"""
    parent = bench.parent(bench.write("hang", HANG), prelude=prelude, options="hold=[lease.fileno()]")
    wait_for(bench.started, 20, "start of the worker")
    parent.kill()
    parent.wait()
    with lease.open("a") as stream:
        with pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert living(bench.token())
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert not living(bench.token())
