"""The Slurm launcher against a real controller and two real nodes, with small workers under the real torchrun."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InfrastructureFailed, InputError, LauncherError, WorkerCanceled, WorkerFailed
from pamp_pipelines.lake.events import Event
from pamp_pipelines.launchers import find_worker, run_worker
from pamp_pipelines.launchers.base import WorkerSpec, read_handle
from pamp_pipelines.launchers.slurm import SlurmLauncher
from tests.launchers.conftest import Bench, bench, wait_for  # noqa: F401
from tests.system.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.system

LONG = 120
"""Seconds that a thing may take on a machine with other work; nothing here waits for that long on an idle one."""

RANKS = """
    import os, signal, sys, time
    from pathlib import Path
    from pamp_pipelines.lake.events import EventLog
    rank = int(os.environ.get("RANK", 0))
    log = EventLog(Path("events.jsonl"))
    log.write("started", rank=rank, node=os.environ["SLURMD_NODENAME"], world=os.environ.get("WORLD_SIZE"),
              restarts=os.environ.get("SLURM_RESTART_COUNT", "0"))
    def wait_for_all(n):
        while Path("events.jsonl").read_text().count('"started"') < n:
            time.sleep(0.05)
    def save(*_):
        time.sleep(1.0)
        Path(f"saved{rank}").touch()
        log.write("progress", saved=rank)
        sys.exit(75)
"""


def profile(nodes: int = 2, grace_s: float = 60, **slurm: object) -> ComputeProfile:
    return ComputeProfile(
        launcher="slurm", nodes=nodes, processes_per_node=1, grace_s=grace_s, slurm={"poll_s": 0.3, **slurm}
    )


def submit(bench: Bench, module: str, compute: ComputeProfile, processes: int | None) -> tuple[SlurmLauncher, object]:  # noqa: F811
    launcher = SlurmLauncher()
    bench.run_dir.mkdir(exist_ok=True)
    spec = WorkerSpec(module, bench.job, bench.run_dir, compute, processes)
    return launcher, launcher.submit(spec)


def test_ranks_of_two_nodes_meet(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write(
        "meet",
        RANKS
        + """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    log.write("metric", rank=rank, total=total.item())
    dist.destroy_process_group()
""",
    )
    seen = []
    run_worker(module, bench.job, bench.run_dir, nproc=2, profile=profile(), on_event=seen.append)
    started = {e.data["rank"]: e.data["node"] for e in seen if e.kind == "started"}
    assert started == {0: "n1", 1: "n2"}  # in the order of the nodes
    assert [e.data["total"] for e in seen if e.kind == "metric"] == [3.0, 3.0]
    wait_for(lambda: slurm.jobs() == [], LONG, "end of the job in the queue")


def test_a_worker_without_torchrun_runs_on_one_node_and_the_group_reads_what_it_leaves(
    slurm: SlurmCluster,
    bench: Bench,  # noqa: F811
) -> None:
    module = bench.write(
        "alone",
        """
    import os, sys
    print('argument', sys.argv[1])
    print(os.environ['ANSWER'])
    os.mkdir('checkpoints')
    open('checkpoints/weights', 'w').close()
""",
    )
    before = os.umask(0o077)
    try:
        run_worker(module, bench.job, bench.run_dir, profile=profile(), env={"ANSWER": "it's $HOME; `x`\n2"})
    finally:
        os.umask(before)
    left = {path.relative_to(bench.run_dir): path for path in bench.run_dir.rglob("*")}
    assert {Path("checkpoints/weights"), Path("events.jsonl")} & left.keys()
    assert any(path.name == "batch.log" for path in left)
    for path in left.values():
        wanted = 0o050 if path.is_dir() else 0o040
        assert path.name.startswith(".") or path.stat().st_mode & wanted == wanted, path
    launcher, handle = SlurmLauncher(), read_handle(bench.run_dir)
    text, offset = launcher.logs(handle)
    assert text == f"argument {bench.job}\nit's $HOME; `x`\n2\n"
    assert launcher.logs(handle, 9) == (text[9:], offset)
    assert launcher.logs(handle, offset) == ("", offset)


def test_a_killed_rank_is_named_with_its_signal(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write(
        "killed", RANKS + "\n    wait_for_all(2)\n    os.kill(os.getpid(), 9) if rank == 1 else time.sleep(300)\n"
    )
    with pytest.raises(WorkerFailed, match="killed rank 1: killed by signal 9"):
        run_worker(module, bench.job, bench.run_dir, nproc=2, profile=profile(grace_s=1))


def test_cancel_lets_all_ranks_save_and_leaves_no_job(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("savers", RANKS + "\n    signal.signal(signal.SIGTERM, save)\n    time.sleep(300)\n")

    def interrupt(_: object) -> None:
        if bench.started(2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_worker(module, bench.job, bench.run_dir, nproc=2, profile=profile(), on_event=interrupt)
    assert sorted(p.name for p in bench.run_dir.glob("saved*")) == ["saved0", "saved1"]
    wait_for(lambda: slurm.jobs() == [], LONG, "end of the job in the queue")
    bench.assert_all_dead(LONG)


def test_a_deaf_worker_is_killed_after_its_grace(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write(
        "deaf",
        """
    import stubborn, time
    stubborn.start_children()
    stubborn.go_deaf()
    print("deaf", flush=True)
    time.sleep(300)
""",
    )
    launcher, handle = submit(bench, module, profile(nodes=1, grace_s=0), None)
    wait_for(lambda: "deaf" in launcher.logs(handle)[0], LONG, "start")
    assert launcher.cancel(handle).reason == "canceled"
    wait_for(lambda: slurm.jobs() == [], LONG, "end of the job in the queue")
    bench.assert_all_dead(LONG)


def test_a_queued_job_is_taken_out_of_the_queue(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("never", "raise SystemExit('started')")
    launcher, handle = submit(bench, module, profile(directives={"begin": "now+1hour"}), None)
    status = launcher.poll(handle)
    assert (status.reason, status.running) == ("queued", True)
    assert launcher.cancel(handle).reason == "canceled"
    wait_for(lambda: slurm.jobs() == [], LONG, "end of the job in the queue")


def test_scancel_by_somebody_else_is_a_cancel(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("canceled", RANKS + "\n    time.sleep(300)\n")

    def cancel(event: Event) -> None:
        if event.kind == "started":
            slurm.command("scancel", read_handle(bench.run_dir).id)

    with pytest.raises(WorkerCanceled):
        run_worker(module, bench.job, bench.run_dir, profile=profile(requeue=False), on_event=cancel)


def test_what_slurm_refuses_is_an_input_error(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    with pytest.raises(InputError, match=r"sbatch refused .*invalid partition"):
        run_worker("json.tool", bench.job, bench.run_dir, profile=profile(partition="nowhere"))


CALLER = """
import json, sys
from pathlib import Path
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.launchers import run_worker
def show(event): print(event.kind, event.data, flush=True)
run_worker(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), on_event=show,
           profile=ComputeProfile.model_validate_json(sys.argv[4]))
"""


def test_the_job_of_a_killed_caller_is_found_and_not_submitted_twice(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write(
        "counts",
        RANKS
        + """
    for step in range(100):
        if rank == 0:
            log.write("metric", step=step)
        if step > 5 and Path("go").exists():
            break
        time.sleep(0.2)
""",
    )
    compute = profile()
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, module, bench.job, bench.run_dir, compute.model_dump_json(exclude_unset=True)],
        stdout=subprocess.PIPE,
        text=True,
    )
    heard = [next(line for line in caller.stdout if line.startswith("metric"))]
    caller.send_signal(signal.SIGKILL)
    heard += [line for line in caller.stdout if line.startswith("metric")]
    caller.wait()
    first = read_handle(bench.run_dir)
    assert find_worker(bench.run_dir)[1] == first
    (bench.run_dir / "go").touch()
    seen = []
    run_worker(module, bench.job, bench.run_dir, profile=compute, on_event=seen.append)
    assert read_handle(bench.run_dir) == first
    steps = [e.data["step"] for e in seen if e.kind == "metric"]
    said = [int(line.split("'step': ")[1].split("}")[0]) for line in heard]
    assert sorted({*said, *steps}) == list(range(steps[-1] + 1))  # nothing lost; at most what was being said twice
    assert len(said) + len(steps) <= steps[-1] + 1 + 2


def test_a_submission_that_was_never_confirmed_is_found_by_name(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("waits", "import time; time.sleep(300)")
    launcher, handle = submit(bench, module, profile(), None)
    unconfirmed = handle.model_copy(update={"id": ""})
    (bench.run_dir / "handle.json").write_text(unconfirmed.model_dump_json())
    assert SlurmLauncher().find(bench.run_dir) == handle
    stranger = handle.model_copy(update={"details": {**handle.details, "name": "another"}})
    (bench.run_dir / "handle.json").write_text(stranger.model_dump_json())
    assert SlurmLauncher().find(bench.run_dir) is None
    launcher.cancel(handle)
    assert launcher.poll(handle).reason == "canceled"


def test_preemption_saves_and_the_job_goes_on(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write(
        "preempted",
        RANKS
        + """
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    time.sleep(300)
""",
    )
    before = bench.write("before", "from pathlib import Path; import sys; Path('before').write_text(sys.argv[1])")
    urgent = []

    def preempt() -> None:
        wait_for(lambda: bench.started(2), LONG, "start of both ranks")
        command = ["sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]
        urgent.append(slurm.command(*command))
        job = read_handle(bench.run_dir).id
        wait_for(lambda: slurm.command("squeue", "-h", "-j", job, "-o", "%T") == "PENDING", LONG, "requeue")
        slurm.hurry(job)

    seen = []
    other = threading.Thread(target=preempt)
    other.start()
    run_worker(
        module, bench.job, bench.run_dir, nproc=2, profile=profile(), on_event=seen.append, before_restart=before
    )
    other.join()
    assert sorted(e.data["saved"] for e in seen if e.kind == "progress") == [0, 1]
    assert [e.data["restarts"] for e in seen if e.kind == "started"] == ["0", "0", "1", "1"]
    assert (bench.run_dir / "before").read_text() == str(bench.job)
    assert urgent


def test_a_dead_controller_does_not_end_a_worker(own_slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("goes_on", RANKS + "\n    while not Path('go').exists(): time.sleep(0.1)\n")
    launcher, handle = submit(bench, module, profile(), None)
    wait_for(lambda: bench.started(1), LONG, "start")
    own_slurm.saved()
    own_slurm.kill_daemon("slurmctld")
    seen = []
    wait_for(lambda: "does not answer" in (seen.append(launcher.poll(handle)) or seen[-1].detail), LONG, "no answer")
    assert {status.reason for status in seen} == {"running"}
    with pytest.raises(LauncherError, match="does not answer"):
        launcher.find(bench.run_dir)  # a second job must not start beside the first
    own_slurm.start_daemon("slurmctld")
    wait_for(lambda: launcher.poll(handle).detail.startswith("RUNNING"), LONG, "recovery")
    (bench.run_dir / "go").touch()
    wait_for(lambda: not launcher.poll(handle).running, LONG, "end")
    assert launcher.poll(handle).exit_code == 0


def test_a_dead_node_is_told_from_a_failed_worker(own_slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("on_a_dead_node", RANKS + "\n    time.sleep(300)\n")

    def pull_the_plug(event: Event) -> None:
        if event.kind == "started":
            own_slurm.kill_node("n1")

    with pytest.raises(InfrastructureFailed, match=r"NODE_FAIL|JobLaunchFailure"):
        run_worker(module, bench.job, bench.run_dir, profile=profile(requeue=False), on_event=pull_the_plug)


def test_a_time_limit_saves_and_requeues(bench: Bench, slurm: SlurmCluster) -> None:  # noqa: F811
    """The batch shell gets the signal that Slurm sends before the limit; a minute's wait is spared by sending it."""
    module = bench.write(
        "limited",
        RANKS
        + """
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    time.sleep(300)
""",
    )
    launcher, handle = submit(bench, module, profile(), None)
    wait_for(lambda: bench.started(1), LONG, "start")
    slurm.command("scancel", "--batch", "--signal=USR1", handle.id)
    wait_for(lambda: launcher.poll(handle).reason == "queued", LONG, "requeue")
    slurm.hurry(handle.id)
    wait_for(lambda: not launcher.poll(handle).running, LONG, "end")
    assert launcher.poll(handle).exit_code == 0
    assert json.loads((handle.log_dir / "exit.json").read_text()) == {"exit_code": 0, "stopped": "", "restarts": 1}
    assert (bench.run_dir / "saved0").exists()


def test_a_requeue_that_is_not_wanted_ends_as_preempted(bench: Bench, slurm: SlurmCluster) -> None:  # noqa: F811
    module = bench.write("limited", RANKS + "\n    signal.signal(signal.SIGTERM, save)\n    time.sleep(300)\n")
    launcher, handle = submit(bench, module, profile(nodes=1, requeue=False), None)
    wait_for(lambda: bench.started(1), LONG, "start")
    slurm.command("scancel", "--batch", "--signal=USR1", handle.id)
    wait_for(lambda: not launcher.poll(handle).running, LONG, "end")
    assert (launcher.poll(handle).reason, launcher.poll(handle).exit_code) == ("preempted", 75)
    assert Path(bench.run_dir, "saved0").exists()


def test_paths_with_spaces_and_percents(slurm: SlurmCluster, bench: Bench, tmp_path: Path) -> None:  # noqa: F811
    module = bench.write("odd", "import os; print(os.getcwd())")
    odd = tmp_path / "a run %j 100%, it's (odd)"
    run_worker(module, bench.job, odd, profile=profile())
    assert SlurmLauncher().logs(read_handle(odd))[0] == f"{odd}\n"
    assert (read_handle(odd).log_dir / "batch.log").exists()
    assert os.environ["SLURM_CONF"] == slurm.env["SLURM_CONF"]


def test_slurm_takes_what_a_profile_says(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("declared", "import os, time; print(os.environ['FROM_SETUP'], flush=True); time.sleep(300)")
    compute = profile(
        nodes=1,
        partition="urgent",
        account="llm",
        qos="long",
        gres="tape:1",
        constraint="cpu&local",
        time="0-00:10",
        cpus_per_node=2,
        directives={"comment": "two words, one 'quote'", "nice": 7, "mem": "100M"},
        setup=["export FROM_SETUP='set by a line of the profile'"],
    )
    launcher, handle = submit(bench, module, compute, None)
    wait_for(lambda: launcher.logs(handle)[0] == "set by a line of the profile\n", LONG, "the line")
    shown = slurm.command("scontrol", "show", "job", handle.id)
    for text in (
        *("Partition=urgent", "Features=cpu&local", "TimeLimit=00:10:00", "NumCPUs=2", "Nice=7"),
        *("Comment=two words, one 'quote'", "MinMemoryNode=100M", "Requeue=1"),
        *("Account=llm", "TresPerNode=gres:tape:1"),
    ):
        assert text in shown
    assert launcher.cancel(handle).reason == "canceled"


def test_a_node_is_drained_and_another_is_down(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write("drained", RANKS + "\n    time.sleep(300)\n")
    launcher, handle = submit(bench, module, profile(nodes=1, requeue=False), None)
    wait_for(lambda: bench.started(1), LONG, "start")
    node = slurm.command("squeue", "-h", "-j", handle.id, "-o", "%N")
    try:
        slurm.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=broken fan")
        assert launcher.poll(handle).reason == "running"  # a drained node takes no new jobs
        wide = Bench(bench.root / "wide")
        wide.root.mkdir()
        (wide.root / "job.json").write_text("{}")
        other, waiting = submit(wide, module, profile(nodes=2), 2)
        wait_for(lambda: "drain" in other.poll(waiting).detail.lower(), LONG, "the reason why it waits")
        assert other.poll(waiting).reason == "queued"
        assert other.cancel(waiting).reason == "canceled"
        slurm.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=broken fan")
        wait_for(lambda: not launcher.poll(handle).running, LONG, "end")
        ended = launcher.poll(handle)
        assert (ended.reason, "NODE_FAIL" in ended.detail) == ("infrastructure", True), ended
    finally:
        slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"gres": "tape:3"}, "Requested node configuration is not available"),
        ({"gres": "gpu:8"}, "Invalid generic resource"),
        ({"constraint": "h100"}, "Invalid feature specification"),
        ({"cpus_per_node": 5}, "configuration is not available"),
        ({"directives": {"reservation": "theirs"}}, "reservation"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_in_its_words(
    slurm: SlurmCluster,
    bench: Bench,  # noqa: F811
    asked: dict[str, object],
    words: str,
) -> None:
    with pytest.raises(InputError, match=f"(?i){words}.*change the profile's `slurm` fields"):
        run_worker("json.tool", bench.job, bench.run_dir, profile=profile(nodes=1, **asked))
    assert slurm.jobs() == []


def test_a_container_where_pyxis_is_not_installed(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    """Slurm's own srun does not know pyxis' options."""
    contained = profile(nodes=1, container={"image": "registry/pamp:1", "mounts": ["/lake:/lake"]})
    with pytest.raises(WorkerFailed, match="unrecognized option '--container-image=registry/pamp:1'"):
        run_worker("json.tool", bench.job, bench.run_dir, profile=contained)
    assert slurm.jobs() == []
