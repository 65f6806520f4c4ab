"""A real Slurm cluster of two nodes on this machine, without systemd and without touching /etc.

One slurmctld and two slurmd (``n1``, ``n2``) of the distribution's packages, with a munged of their own, all on
loopback and below one folder. `debug` is the default partition; jobs in `urgent` preempt those in `debug`.
"""

import contextlib
import getpass
import os
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
START_S = 60

CONFIG = """
ClusterName=pamp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
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
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=5
MessageTimeout=5
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing() -> list[str]:
    """Programs that are not installed here."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


@dataclass
class SlurmCluster:
    """The running cluster. ``env`` makes Slurm's commands, and the launcher, talk to it."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def start(cls) -> "SlurmCluster":
        """Returns when both nodes are idle."""
        # munge's socket must have a short path in folders that others cannot write to
        root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        root.chmod(0o755)
        cluster = cls(root)
        for name in ("state", "n1", "n2"):
            (root / name).mkdir()
        host = socket.gethostname().split(".")[0]
        text = CONFIG.format(host=host, root=root, ports=_free_ports(3), user=getpass.getuser())
        (root / "slurm.conf").write_text(text)
        path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
        cluster.env = {"SLURM_CONF": str(root / "slurm.conf"), "PATH": path}
        try:
            cluster._start_munge()
            for daemon in ("slurmctld", "n1", "n2"):
                cluster.start_daemon(daemon)
            cluster.idle()
        except BaseException:
            cluster.stop()
            raise
        return cluster

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
        """Start a requeued job now: Slurm lets it wait two minutes."""
        self.command("scontrol", "update", f"JobId={job}", "StartTime=now")

    def idle(self, seconds: float = 60) -> None:
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
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = process.environ().get("SLURM_CONF") == self.env["SLURM_CONF"]
                if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
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

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.root / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                command, env={**os.environ, **self.env}, stdout=output, stderr=output, start_new_session=True
            )

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = START_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                files = [*self.root.glob("*.log"), *self.root.glob("*.out")]
                logs = "\n".join(f"== {f.name}\n{f.read_text(errors='replace')[-1500:]}" for f in files)
                raise AssertionError(f"Slurm: no {what} within {seconds:g} s\n{logs}")
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
