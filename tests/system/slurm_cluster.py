"""A real Slurm cluster of two nodes on this machine, without systemd and without touching /etc.

One slurmctld and two slurmd (``n1``, ``n2``) of the distribution's packages, with a munged of their own, all on
loopback and below one folder. `debug` is the default partition; jobs in `urgent` preempt those in `debug`. Each node
has two generic resources `tape`, for which no device is needed.

Several clusters may run on a machine at once: each has ports, a munge key and socket, and numbers of jobs of its own,
and tells its processes from others by their SLURM_CONF.
"""

import contextlib
import getpass
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol", "srun")
START_S = 120
_PORTS = range(10_000, 20_000)
"""For the daemons: below what Linux gives to outgoing connections (32768), so that a daemon that was killed gets its
port again, and below the rendezvous of the launcher's jobs (20000)."""

CONFIG = """
ClusterName=pamp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
FirstJobId={first_job}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdParameters=config_overrides
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/%n
SlurmdLogFile={root}/slurmd-%n.log
SlurmctldLogFile={root}/slurmctld.log
SlurmdPidFile={root}/%n.pid
SlurmctldPidFile={root}/slurmctld.pid
ReturnToService=2
SlurmdTimeout={node_timeout}
SlurmctldTimeout=30
KillWait=5
MessageTimeout={message_timeout}
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=tape
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000 Feature=cpu,local Gres=tape:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000 Feature=cpu,local Gres=tape:2
PartitionName=debug Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10
"""
_JOBS = 1_000
"""Numbers that one cluster may give to its jobs."""
_STEP = re.compile(r"slurmstepd: \[(\d+)\.")


class PortTaken(Exception):
    """Somebody else took a daemon's port between its choice and its use."""


def missing() -> list[str]:
    """Programs that are not installed here."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


@dataclass
class SlurmCluster:
    """The running cluster. ``env`` makes Slurm's commands, and the launcher, talk to it."""

    root: Path
    timeout_s: int = 60
    """Seconds without an answer after which a node counts as down."""
    message_s: int = 20
    """Seconds that every command and daemon waits for an answer."""
    first_job: int = field(default_factory=lambda: random.randrange(1_000_000, 60_000_000))
    """Jobs of two clusters share this machine's ports, and meet at one that follows from their number."""
    env: dict[str, str] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def start(cls, **options: int) -> "SlurmCluster":
        """Returns when both nodes are idle."""
        for attempt in (1, 2, 3):
            # munge's socket must have a short path in folders that others cannot write to
            root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
            root.chmod(0o755)
            cluster = cls(root, **options)
            try:
                cluster._configure()
                cluster._start_munge()
                for daemon in ("slurmctld", "n1", "n2"):
                    cluster.start_daemon(daemon)
                cluster.idle(START_S)
                return cluster
            except PortTaken:
                cluster.stop()
                if attempt == 3:
                    raise
            except BaseException:
                cluster.stop()
                raise
        raise AssertionError("unreachable")

    def _configure(self) -> None:
        for name in ("state", "n1", "n2"):
            (self.root / name).mkdir()
        text = CONFIG.format(
            host=socket.gethostname().split(".")[0],
            root=self.root,
            ports=_free_ports(3),
            first_job=self.first_job,
            user=getpass.getuser(),
            node_timeout=self.timeout_s,
            message_timeout=self.message_s,
        )
        (self.root / "slurm.conf").write_text(text)
        (self.root / "gres.conf").write_text("NodeName=n[1-2] Name=tape Count=2\n")
        path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
        self.env = {"SLURM_CONF": str(self.root / "slurm.conf"), "PATH": path}

    def start_daemon(self, name: str) -> None:
        """``slurmctld``, or the slurmd of node ``n1`` or ``n2``."""
        command = ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name]
        self._spawn(name, command)

    def kill_daemon(self, name: str) -> None:
        """SIGKILL for the daemon; what it started lives on."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def kill_node(self, name: str) -> None:
        """As when a machine with all running jobs loses its power: SIGKILL for its daemon and all jobs' processes."""
        daemons = {process.pid for process in self.daemons.values()}
        for process in self.left():
            if process.pid not in daemons:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.kill_daemon(name)

    def command(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.env}, timeout=60)
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """Numbers of the jobs that have not ended."""
        return self.command("squeue", "-h", "-o", "%A").split()

    def hurry(self, job: str) -> None:
        """Have a requeued job started soon, and wait for that: Slurm lets it wait two minutes.

        Not at once: a node refuses what is started within the second in which it ended the job ("credential revoked").
        And again where needed: the end of the last start sets the two minutes once more.
        """
        asked = float("-inf")

        def started() -> bool:
            nonlocal asked
            state = self.command("squeue", "-h", "--states=all", "-j", job, "-o", "%T %r")
            if state == "PENDING BeginTime" and time.monotonic() - asked > 6:
                self.command("scontrol", "update", f"JobId={job}", "StartTime=now+2")
                asked = time.monotonic()
            return state.split()[0] in ("RUNNING", "COMPLETED", "FAILED")

        self._wait(started, f"start of job {job}", 180)

    def saved(self) -> None:
        """Wait until the controller has written its jobs to the disk, which it does every five seconds."""
        state, now = self.root / "state/job_state", time.time()
        self._wait(lambda: state.exists() and state.stat().st_mtime > now, "saved state of the controller")

    def idle(self, seconds: float = 120) -> None:
        """Wait until no job is left and both nodes are free."""
        self._wait(lambda: not self.jobs() and self._idle_nodes() == "2", "two idle nodes", seconds)

    def _idle_nodes(self) -> str:
        return self.command("sinfo", "-h", "-t", "idle", "-p", "debug", "-o", "%D")

    def stop(self) -> None:
        for job in self.jobs() if "slurmctld" in self.daemons else []:
            self.command("scancel", "--signal=KILL", "--full", job)
            self.command("scancel", job)
        for name in ("n1", "n2", "slurmctld", "munged"):
            process = self.daemons.pop(name, None)
            if process is not None:
                # a slurmd ends at once on SIGTERM; its steps are ended below
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def left(self) -> list[psutil.Process]:
        """Living processes that this cluster started."""
        found = self._steps()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = process.environ().get("SLURM_CONF") == self.env["SLURM_CONF"]
                if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _steps(self) -> list[psutil.Process]:
        """Slurm's own processes that run the steps of jobs; their title takes their environment's place."""
        jobs = range(self.first_job, self.first_job + _JOBS)
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                title = _STEP.match(" ".join(process.cmdline()))
                if title and int(title[1]) in jobs:
                    found.append(process)
        return found

    def _start_munge(self) -> None:
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        suffixes = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = [f"--{name}={self.root}/munge.{suffix}" for name, suffix in suffixes.items()]
        self._spawn("munged", ["munged", "--foreground", "--force", *files])
        self._wait((self.root / "munge.socket").exists, "munge's socket")

    def _output(self, name: str) -> str:
        """What a daemon said, on its standard error and in its log."""
        log = self.root / (f"{name}.log" if name == "slurmctld" else f"slurmd-{name}.log")
        files = [file for file in (self.root / f"{name}.out", log) if file.exists()]
        return "".join(file.read_text(errors="replace") for file in files)

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.root / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                command, env={**os.environ, **self.env}, stdout=output, stderr=output, start_new_session=True
            )

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = START_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            for name, process in self.daemons.items():
                if process.poll() is not None and "in use" in self._output(name):
                    raise PortTaken(name)
            if time.monotonic() > deadline:
                files = [*self.root.glob("*.log"), *self.root.glob("*.out")]
                logs = "\n".join(f"== {f.name}\n{f.read_text(errors='replace')[-1500:]}" for f in files)
                raise AssertionError(f"Slurm: no {what} within {seconds:g} s\n{logs}")
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", random.choice(_PORTS)))
            port = int(listener.getsockname()[1])
            found += [port] if port not in found else []
    return found
