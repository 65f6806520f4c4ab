"""Workers of several ranks under the real torchrun, on two processes without Megatron."""

import os
import signal
import time

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import WorkerCanceled, WorkerFailed
from pamp_pipelines.launchers import run_worker
from tests.launchers.conftest import living, wait_for

pytestmark = pytest.mark.slow

START = """
    import os, signal, sys, time, stubborn
    from pathlib import Path
    from pamp_pipelines.lake.events import EventLog
    rank = int(os.environ["RANK"])
    assert os.environ["WORLD_SIZE"] == "2"
    log = EventLog(Path("events.jsonl"))
    def wait_for_both():
        log.write("started", rank=rank)
        while Path("events.jsonl").read_text().count('"started"') < 2:
            time.sleep(0.05)
"""


def test_the_failing_rank_shows_its_lines_and_the_deaf_one_dies(bench, quick):
    module = bench.write(
        "one_fails",
        START
        + """
    if rank == 0:
        stubborn.start_children()
        stubborn.go_deaf()  # as a rank is that waits in a collective
        print("rank 0 waits", flush=True)
    wait_for_both()
    if rank == 1:
        print("rank 1 on stdout", flush=True)
        raise ValueError("only rank 1 knows")
    time.sleep(300)
""",
    )
    start = time.monotonic()
    with pytest.raises(WorkerFailed, match="one_fails rank 1: exit status 1") as error:
        run_worker(module, bench.job, bench.run_dir, nproc=2, profile=quick)
    assert error.value.last_lines[-1] == "ValueError: only rank 1 knows"
    assert "rank 1 on stdout" in error.value.last_lines
    assert "rank 0 waits" not in str(error.value)
    bench.assert_all_dead(0.5)
    assert time.monotonic() - start < 20  # torch's own wait would be 30 s


def test_a_killed_rank_is_named_with_its_signal(bench, quick):
    module = bench.write(
        "one_killed", START + "\n    wait_for_both()\n    os.kill(os.getpid(), 9) if rank == 0 else time.sleep(300)\n"
    )
    with pytest.raises(WorkerFailed, match=r"rank 0: killed by signal 9") as error:
        run_worker(module, bench.job, bench.run_dir, nproc=2, profile=quick)
    assert error.value.exit_code == -9
    bench.assert_all_dead(0.5)


def test_a_cancel_lets_all_ranks_save(bench):
    module = bench.write(
        "savers",
        START
        + """
    def save(*_):
        time.sleep(1.0)
        Path(f"saved{rank}").touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    wait_for_both()
    time.sleep(300)
""",
    )

    def cancel(event):
        if bench.started(2):
            os.kill(bench.handle_pid(), signal.SIGTERM)

    with pytest.raises(WorkerCanceled):
        run_worker(
            module,
            bench.job,
            bench.run_dir,
            nproc=2,
            profile=ComputeProfile(grace_s=20, threads_per_process=1),
            on_event=cancel,
        )
    assert sorted(p.name for p in bench.run_dir.glob("saved*")) == ["saved0", "saved1"]
    bench.assert_all_dead(0.5)


def test_the_callers_death_reaches_ranks_in_sessions_of_their_own(bench):
    module = bench.write(
        "deaf_ranks",
        START + "\n    stubborn.start_children()\n    stubborn.go_deaf()\n    wait_for_both()\n    time.sleep(300)\n",
    )
    parent = bench.parent(module, nproc=2, grace_s=1.0)
    wait_for(lambda: bench.started(2), 40, "start of both ranks")
    assert len(living(bench.token())) == 8  # supervisor, agent, two ranks with two children each
    parent.send_signal(signal.SIGKILL)
    bench.assert_all_dead(10)
