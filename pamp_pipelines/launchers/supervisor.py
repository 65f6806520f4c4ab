"""Owns every process of one worker: when its parent dies or asks, nothing of the worker stays alive.

    python -I -S supervisor.py '{"command": [...], "status": "…/status.json", "parent": 3, "hold": [4], …}'

Run as a script with nothing but the standard library: it must start in milliseconds and outlive whatever breaks in the
package. It is the leader of its own session, so the terminal's Ctrl-C reaches only the parent, which then decides.

* The parent holds the write end of the pipe ``parent``. End of file, or another parent process, means that the parent
  is gone: SIGTERM, at most ``orphan_grace_s``, SIGKILL. That grace is short because a scheduler that saw the parent die
  has already given its GPU to somebody else.
* SIGTERM to the supervisor is a cancel: SIGTERM, ``grace_s`` (time to save a checkpoint), SIGKILL.
* torchrun puts each rank into a session of its own, so killing a process group misses them. On Linux the supervisor is
  a child subreaper: whatever the worker starts stays its descendant, and it is found by walking /proc. Elsewhere (no
  Megatron there) the process group has to do.
* After any end, also a good one, descendants that are left are killed.
* Descriptors in ``hold`` (a lease's lock) stay open until the last process is gone.
* What the worker writes may be read by the group, whatever the umask of its caller.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

_POLL_S = 0.1
_SWEEP_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
# A shell that starts a job in the background has it ignore SIGINT and SIGQUIT, and children inherit that.
_DEFAULT_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD]
EXIT_CANCELED = 250
"""Exit status of the supervisor after a cancel that it could not write down. Otherwise it ends as its worker did, with
128 + the number of a signal."""
LINUX = sys.platform.startswith("linux")


def descendants(root: int) -> list[int]:
    """Living processes below ``root``, read from /proc; zombies are left out."""
    children: dict[int, list[int]] = {}
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # the command in brackets may hold spaces and brackets: fields start after the last one
                state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry) if state not in "ZX" else -int(entry))
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), []):
            queue.append(abs(child))
            if child > 0:
                found.append(child)
    return found


class Supervisor:
    """Runs one command to its end, or ends it."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.parent = os.getppid()
        self.canceled = False
        self.exit_code: int | None = None

    def start(self) -> None:
        for fd in (self.spec["parent"], *self.spec["hold"]):
            os.set_inheritable(fd, False)
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, self._cancel)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(os.umask(0o077) & ~0o050)
        if LINUX:
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        command = self.spec["command"]
        self.main = os.posix_spawn(
            command[0], command, os.environ, setpgroup=0, setsigmask=[], setsigdef=_DEFAULT_SIGNALS
        )

    def _cancel(self, *_: object) -> None:
        self.canceled = True

    def _reap(self) -> None:
        """Collect every child that ended; adopted orphans too."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.main:
                    self.exit_code = os.waitstatus_to_exitcode(ended[1])

    def _orphaned(self) -> bool:
        # a forked sibling may hold a copy of the pipe's write end, so look at the parent as well
        if os.getppid() != self.parent:
            return True
        try:
            readable, _, _ = select.select([self.spec["parent"]], [], [], _POLL_S)
        except InterruptedError:
            return False
        return bool(readable) and not os.read(self.spec["parent"], 1)

    def run(self) -> str:
        """Wait for the end of the command. Returns ``exited``, ``canceled`` or ``orphaned``."""
        while True:
            self._reap()
            if self.exit_code is not None:
                self._sweep()
                return "exited"
            if self.canceled:
                self._end(self.spec["grace_s"])
                return "canceled"
            if self._orphaned():
                self._end(min(self.spec["grace_s"], self.spec["orphan_grace_s"]))
                return "orphaned"

    def _end(self, grace_s: float) -> None:
        """SIGTERM to the command's group, wait, SIGKILL.

        Of torchrun only the agent is in that group: it passes the signal on to its ranks, which can save, and waits.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.main, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        orphaned = False
        while self.exit_code is None and time.monotonic() < deadline:
            if orphaned:
                time.sleep(_POLL_S)
            elif orphaned := self._orphaned():
                # the parent died during the grace, or was asked twice and let go
                deadline = min(deadline, time.monotonic() + self.spec["orphan_grace_s"])
            self._reap()
        self._sweep()

    def _sweep(self) -> None:
        """SIGKILL whatever is left, again and again until nothing is: a process may fork while it is being killed."""
        deadline = time.monotonic() + _SWEEP_S
        while time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.main, signal.SIGKILL)
            left = descendants(os.getpid()) if LINUX else []
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not left and self.exit_code is not None:
                return
            time.sleep(0.02)

    def write_status(self, reason: str) -> None:
        path = Path(self.spec["status"])
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps({"reason": reason, "exit_code": self.exit_code}) + "\n")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def main() -> None:
    supervisor = Supervisor(json.loads(sys.argv[1]))
    supervisor.start()
    reason = supervisor.run()
    code = supervisor.exit_code
    # a full disk must not hide the end of the worker: the exit status says it too
    try:
        supervisor.write_status(reason)
    except OSError:
        if reason == "canceled":
            sys.exit(EXIT_CANCELED)
    sys.exit(1 if code is None else code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
