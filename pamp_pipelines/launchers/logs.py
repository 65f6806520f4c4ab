"""Which rank failed first, and what it said last."""

import json
import os
import re
from pathlib import Path

_FAILED = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_TAIL_BYTES = 64 * 1024


def main_log(log_dir: Path) -> Path:
    """Output of the process that the supervisor started: the worker, or torchrun's agent."""
    return log_dir / "worker.log"


def last_lines(file: Path, lines: int) -> list[str]:
    """The last non-empty ``lines`` of a log; carriage returns of progress bars end a line too."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in map(str.rstrip, text.splitlines()) if line][-lines:]


def rank_dir(log_dir: Path, rank: int) -> Path | None:
    """torchrun writes ``<rendezvous id>_<random>/attempt_0/<rank>/{stdout,stderr}.log``."""
    return next(log_dir.glob(f"*/attempt_0/{rank}"), None)


def failed_rank(log_dir: Path) -> int | None:
    """The rank that failed first.

    An exception recorded by a rank itself comes first (torch's ``record`` writes error.json with a time); a rank that
    was killed could not write one, and then the agent's log names it.
    """
    recorded = []
    for file in log_dir.glob("*/attempt_0/*/error.json"):
        try:
            time = json.loads(file.read_text())["message"]["extraInfo"]["timestamp"]
            recorded.append((int(time), file.stat().st_mtime, int(file.parent.name)))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    if recorded:
        return min(recorded)[2]
    try:
        named = _FAILED.findall(main_log(log_dir).read_bytes())
    except OSError:
        return None
    return int(named[-1][1]) if named else None


def failure(log_dir: Path, lines: int) -> tuple[str, list[str]]:
    """Name of the process that failed first and the last lines of its log; its stderr goes last."""
    rank = failed_rank(log_dir)
    folder = None if rank is None else rank_dir(log_dir, rank)
    if folder is None:
        return "", last_lines(main_log(log_dir), lines)
    errors = last_lines(folder / "stderr.log", lines)
    return f"rank {rank}", [*last_lines(folder / "stdout.log", max(0, lines - len(errors)) or 5), *errors]
