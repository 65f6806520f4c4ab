"""A worker's ordinary life and its failures, as the caller sees them."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, WorkerCanceled, WorkerFailed
from pamp_pipelines.lake.events import Event, EventLog
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.base import RUN_TOKEN

HANG = """
    import time, stubborn
    from pathlib import Path
    from pamp_pipelines.lake.events import EventLog
    stubborn.start_children()
    print("about to hang", flush=True)
    EventLog(Path("events.jsonl")).write("started")
    stubborn.go_deaf()
    time.sleep(300)
"""


def test_events_arrive_in_order_while_the_worker_runs(bench, quick):
    module = bench.write(
        "good",
        """
        import json, sys, time
        from pathlib import Path
        from pamp_pipelines.lake.events import EventLog
        log = EventLog(Path("events.jsonl"))
        log.write("started", job=json.loads(Path(sys.argv[1]).read_text()))
        gate = Path("gate")
        while not gate.exists():
            time.sleep(0.02)
        for i in range(200):
            log.write("metric", i=i)
        print("said on stdout")
        """,
    )
    EventLog(bench.run_dir / "events.jsonl").write("finished", attempt="an earlier one")
    seen: list[Event] = []

    def on_event(event: Event) -> None:
        seen.append(event)
        if event.kind == "started":
            (bench.run_dir / "gate").touch()  # the worker waits for it: this event came while it was running

    run_worker(module, bench.job, bench.run_dir, profile=quick, on_event=on_event)
    assert seen[0].data == {"job": {"answer": 42}}
    assert [e.data["i"] for e in seen[1:]] == list(range(200))
    (log,) = bench.run_dir.glob("logs/*/worker.log")
    assert "said on stdout" in log.read_text()


def test_environment_is_the_callers_then_the_profiles_then_the_calls(bench, monkeypatch):
    module = bench.write(
        "env",
        """
        import json, os, signal
        from pathlib import Path
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE", "A", "B", "PAMP_RUN_TOKEN")
        values = {name: os.environ.get(name) for name in names}
        values["SIGINT"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        Path("env.json").write_text(json.dumps(values))
        """,
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv(RUN_TOKEN, "of an outer run")
    profile = ComputeProfile(threads_per_process=3, env={"A": "profile", "B": "profile"})
    # as in a job that a shell started in the background: such a process ignores SIGINT, and so would its children
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_worker(module, bench.job, bench.run_dir, profile=profile, env={"B": "call"})
    finally:
        signal.signal(signal.SIGINT, before)
    env = json.loads((bench.run_dir / "env.json").read_text())
    assert env == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "HF_HUB_OFFLINE": "1",
        "A": "profile",
        "B": "call",
        "PAMP_RUN_TOKEN": bench.token(),
        "SIGINT": True,
    }
    run_worker(module, bench.job, bench.run_dir, profile=ComputeProfile())
    assert json.loads((bench.run_dir / "env.json").read_text())["OMP_NUM_THREADS"] == "7"


def test_a_failing_worker_shows_its_last_lines(bench, quick):
    module = bench.write(
        "bad",
        """
        import stubborn
        stubborn.start_children()
        for i in range(100):
            print("line", i)
        raise ValueError("the reason")
        """,
    )
    with pytest.raises(WorkerFailed, match="bad: exit status 1") as error:
        run_worker(module, bench.job, bench.run_dir, profile=quick)
    assert error.value.exit_code == 1
    assert error.value.last_lines[-1] == "ValueError: the reason"
    assert "line 99" in str(error.value)
    assert "line 10\n" not in str(error.value)
    bench.assert_all_dead(0.5)


def test_a_worker_says_why_it_failed_in_its_last_event(bench, quick):
    module = bench.write(
        "told",
        """
        import sys
        from pathlib import Path
        from pamp_pipelines.lake.events import EventLog
        EventLog(Path("events.jsonl")).write("failed", message="no tokens left")
        sys.exit(3)
        """,
    )
    with pytest.raises(WorkerFailed, match=r"exit status 3\. no tokens left\.") as error:
        run_worker(module, bench.job, bench.run_dir, profile=quick)
    assert error.value.exit_code == 3


def test_a_killed_worker_names_the_signal_and_its_children_die(bench, quick):
    module = bench.write("killed", "import os, stubborn\nstubborn.start_children()\nos.kill(os.getpid(), 9)")
    with pytest.raises(WorkerFailed, match="killed by signal 9") as error:
        run_worker(module, bench.job, bench.run_dir, profile=quick)
    assert error.value.exit_code == -9
    bench.assert_all_dead(0.5)


def test_children_are_swept_after_a_good_end(bench, quick):
    module = bench.write("leaky", "import stubborn\nstubborn.start_children()")
    run_worker(module, bench.job, bench.run_dir, profile=quick)
    bench.assert_all_dead(0.5)


def test_an_error_of_the_callback_ends_the_worker(bench, quick):
    module = bench.write("hang", HANG)

    def on_event(_: Event) -> None:
        raise RuntimeError("the caller's own error")

    with pytest.raises(RuntimeError, match="the caller's own error"):
        run_worker(module, bench.job, bench.run_dir, profile=quick, on_event=on_event)
    bench.assert_all_dead(0.5)


def test_an_interrupt_in_the_caller_ends_the_worker(bench, quick):
    module = bench.write("hang", HANG)
    main = threading.main_thread().ident

    def on_event(_: Event) -> None:
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_worker(module, bench.job, bench.run_dir, profile=quick, on_event=on_event)
    finally:
        signal.signal(signal.SIGINT, before)
    bench.assert_all_dead(0.5)


def test_a_second_interrupt_cuts_a_long_grace_short(bench):
    module = bench.write("hang", HANG)
    patient = ComputeProfile(grace_s=300, threads_per_process=1)
    main = threading.main_thread().ident

    def twice() -> None:
        for _ in range(2):
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.5)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=twice)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_worker(module, bench.job, bench.run_dir, profile=patient, on_event=lambda _: thread.start())
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    bench.assert_all_dead(0.5)
    assert time.monotonic() - start < 12


def test_a_worker_without_events_is_ended(bench):
    module = bench.write("hang", HANG)
    profile = ComputeProfile(grace_s=0.5, stall_timeout_s=4.0, threads_per_process=1)
    with pytest.raises(WorkerFailed, match="no event for 4 s") as error:
        run_worker(module, bench.job, bench.run_dir, profile=profile)
    assert "about to hang" in error.value.last_lines
    bench.assert_all_dead(0.5)


def test_a_worker_that_reports_is_not_taken_for_hung_but_its_time_is_limited(bench):
    module = bench.write(
        "busy",
        """
        import time
        from pathlib import Path
        from pamp_pipelines.lake.events import EventLog
        log = EventLog(Path("events.jsonl"))
        while True:
            log.write("progress")
            time.sleep(0.05)
        """,
    )
    profile = ComputeProfile(grace_s=0.5, stall_timeout_s=4.0, timeout_s=5.0, threads_per_process=1)
    with pytest.raises(WorkerFailed, match="still running after 5 s"):
        run_worker(module, bench.job, bench.run_dir, profile=profile)
    bench.assert_all_dead(0.5)


def test_a_slow_callback_is_not_the_workers_stall(bench):
    module = bench.write(
        "two_events",
        """
        import time
        from pathlib import Path
        from pamp_pipelines.lake.events import EventLog
        log = EventLog(Path("events.jsonl"))
        log.write("started")
        time.sleep(3.6)
        log.write("finished")
        """,
    )
    profile = ComputeProfile(stall_timeout_s=3.0, threads_per_process=1)
    run_worker(module, bench.job, bench.run_dir, profile=profile, on_event=lambda _: time.sleep(3.3))


def test_a_canceled_worker_may_save_first_and_is_reported_as_canceled(bench):
    module = bench.write(
        "saver",
        """
        import signal, sys, time
        from pathlib import Path
        from pamp_pipelines.lake.events import EventLog
        def save(*_):
            time.sleep(1.0)
            Path("saved").touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        EventLog(Path("events.jsonl")).write("started")
        time.sleep(300)
        """,
    )

    def cancel(_: Event) -> None:
        os.kill(bench.handle_pid(), signal.SIGTERM)  # what another process that found the handle does

    with pytest.raises(WorkerCanceled, match="stopped on request"):
        run_worker(module, bench.job, bench.run_dir, profile=ComputeProfile(grace_s=20), on_event=cancel)
    assert (bench.run_dir / "saved").exists()


def test_a_killed_supervisor_is_noticed_and_its_worker_ended(bench, quick):
    module = bench.write("hang", HANG)
    with pytest.raises(WorkerFailed, match="its supervisor was killed"):
        run_worker(
            module,
            bench.job,
            bench.run_dir,
            profile=quick,
            on_event=lambda _: os.kill(bench.handle_pid(), signal.SIGKILL),
        )
    bench.assert_all_dead(0.5)


def test_several_machines_are_refused(bench):
    with pytest.raises(InputError, match="nodes: 2"):
        run_worker("any", bench.job, bench.run_dir, nproc=1, profile=ComputeProfile(nodes=2))


def test_a_relative_job_is_found_from_the_run_folder(bench, quick, monkeypatch):
    monkeypatch.chdir(bench.root)
    module = bench.write(
        "reads", "import sys\nfrom pathlib import Path\nPath('copy').write_text(Path(sys.argv[1]).read_text())"
    )
    run_worker(module, Path("job.json"), Path("run"), profile=quick)
    assert json.loads((bench.run_dir / "copy").read_text()) == {"answer": 42}
