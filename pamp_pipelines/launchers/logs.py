"""Which rank failed first, and what it said last."""

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

_FAILED = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_TAIL_BYTES = 64 * 1024
_SILENT = 8
"""Ranks of a run that stands still whose lines are shown."""
_CRASHES = frozenset({-4, -7, -8, -9, -11})
"""Signals of a process that failed by itself or was killed; its peers then fail with exceptions of their own."""


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


@dataclass(frozen=True)
class Failure:
    """Who failed first: ``rank`` is None for a worker of one process, or when nothing tells."""

    rank: int | None
    exit_code: int | None
    """Of that rank, negative for a signal; torchrun's own status is always 1."""
    lines: list[str]
    """The last ones that it wrote; what went to stderr is at the end."""
    task: int | None = None
    """Of a worker in several tasks."""


def failure(log_dir: Path, lines: int) -> Failure:
    """Who failed first, by what torchrun and the ranks left in the log folder."""
    codes = _named_by_agent(log_dir)
    rank = next((rank for rank, code in codes.items() if code in _CRASHES), None)
    if rank is None:
        rank = _recorded_by_rank(log_dir)
    if rank is None and codes:
        rank = next(iter(codes))
    folder = None if rank is None else rank_dir(log_dir, rank)
    if rank is None or folder is None:
        return Failure(None, None, [*_of_silent_ranks(log_dir, lines), *last_lines(main_log(log_dir), lines)])
    errors = last_lines(folder / "stderr.log", lines)
    output = last_lines(folder / "stdout.log", max(5, lines - len(errors)))
    return Failure(rank, codes.get(rank), [*output, *errors])


def _of_silent_ranks(log_dir: Path, lines: int) -> list[str]:
    """Where no rank has failed and yet nothing goes on: what ranks said last, the longest silent ones first.

    A rank that hangs lets all others wait for it in a collective, so that only its log can tell which it is.
    """
    logs: dict[str, list[Path]] = {}
    for file in log_dir.glob("*/attempt_0/*/std*.log"):
        logs.setdefault(file.parent.name, []).append(file)
    ranks = sorted(logs, key=lambda rank: max(file.stat().st_mtime for file in logs[rank]))[:_SILENT]
    each = max(2, lines // max(1, 2 * len(ranks)))
    said = ((rank, [line for file in sorted(logs[rank]) for line in last_lines(file, each)]) for rank in ranks)
    return [f"[rank {rank}] {line}" for rank, spoken in said for line in spoken]


def _named_by_agent(log_dir: Path) -> dict[int, int]:
    """Rank to exit code, as torchrun's agent logged them; the first one failed first."""
    try:
        found = _FAILED.findall(main_log(log_dir).read_bytes())
    except OSError:
        return {}
    return {int(rank): int(code) for code, rank in found}


def _recorded_by_rank(log_dir: Path) -> int | None:
    """The first rank that recorded an exception itself (torch's ``record`` writes error.json); a killed one cannot."""
    first = _first_record(log_dir)
    return first[2] if first else None


def _first_record(log_dir: Path) -> tuple[int, float, int] | None:
    """Second and instant of the first recorded exception, and the local rank that raised it."""
    recorded = []
    for file in log_dir.glob("*/attempt_0/*/error.json"):
        try:
            time = json.loads(file.read_text())["message"]["extraInfo"]["timestamp"]
            recorded.append((int(time), file.stat().st_mtime, int(file.parent.name)))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return min(recorded) if recorded else None


def failure_of_nodes(start: Path, processes: int | None, lines: int) -> Failure:
    """Who failed first on several machines, each with a folder ``node<n>`` that looks like that of a local worker.

    Args:
        start: folder that holds those of the nodes.
        processes: ranks in all; None for a worker of one process.
        lines: how many of the log.
    """
    folders = sorted(start.glob("node*"), key=lambda d: int(d.name.removeprefix("node")))
    each = (processes or 1) // max(1, len(folders))
    found: list[tuple[int, float, int, Failure]] = []
    for node, folder in enumerate(folders):
        one = failure(folder, lines)
        if one.rank is not None or (one.lines and processes is None):
            rank = None if one.rank is None else node * each + one.rank
            recorded = _first_record(folder)
            order = 0 if one.exit_code in _CRASHES else 1 if recorded else 2
            found.append((order, recorded[0] if recorded else 0.0, node, replace(one, rank=rank)))
    if found:
        return min(found, key=lambda entry: entry[:3])[3]
    # agents that died before their ranks did say so themselves
    return failure(folders[0], lines) if folders else Failure(None, None, [])
