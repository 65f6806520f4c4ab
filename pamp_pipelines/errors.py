"""Every failure a user can meet: what file, what field, what value, what to do."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


class PampError(Exception):
    """Base of all failures with a message written for the user."""


class InputError(PampError):
    """A file or value that was given is wrong. The message names it and says what to do."""


class VerificationFailed(PampError):
    """An artifact does not hold what its producer or its manifest promises."""


class DiskFull(PampError):
    """No space is left; names the folder. Another attempt cannot help before there is some."""

    def __init__(self, folder: Path, detail: str = "") -> None:
        super().__init__(f"{folder}: no space left on the disk; free some and run again. {detail}".rstrip())


class StorageError(PampError):
    """The store of a remote lake does not answer, or changed meanwhile; another attempt may help."""


class MissingInput(PampError):
    """An asset that has to be materialised first.

    Args:
        asset: asset key, as shown in the UI.
        partition: partition key of that asset, or None when it has no partitions.
        hint: one more sentence, e.g. what was found instead.
    """

    def __init__(self, asset: str, partition: str | None, hint: str = "") -> None:
        self.asset = asset
        self.partition = partition
        where = f" partition {partition!r}" if partition else ""
        command = f"pamp materialize {asset}" + (f" --partition '{partition}'" if partition else "")
        super().__init__(f"{asset}{where} is not materialised; run `{command}`. {hint}".rstrip())


def install_command(package: str) -> str:
    """What adds a package, or an extra of this one (``-e '.[s3]'``, in its folder), to this environment.

    It names uv and this Python: an environment that uv made has no pip, and one on the PATH is another Python's.
    """
    return f"uv pip install --python {shlex.quote(sys.executable)} {package}"


class WorkerFailed(PampError):
    """A worker process ended badly; ``last_lines`` are those of the rank that failed first."""

    def __init__(self, message: str, exit_code: int | None, last_lines: Sequence[str] = ()) -> None:
        self.exit_code = exit_code
        self.last_lines = tuple(last_lines)
        tail = "".join(f"\n    {line}" for line in self.last_lines)
        super().__init__(f"{message}{tail}")


class WorkerPreempted(WorkerFailed):
    """A cluster took the worker's machines away, or its time was up; a retry goes on from the last checkpoint."""


class InfrastructureFailed(WorkerFailed):
    """A machine or the cluster itself failed, not the worker; a retry goes on from the last checkpoint."""


class LauncherError(InfrastructureFailed):
    """A cluster refuses a job or does not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None)


class RunDiverged(PampError):
    """A training's numbers are not finite, on more than one device: a retry from the last checkpoint ends the same."""


class WorkerCanceled(PampError):
    """A worker was asked to stop and did; never retried."""


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong with a declaration.

    ``field`` is dotted (``optimizer.lr``), ``line`` is 1-based and 0 when unknown.
    """

    file: Path
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        field = f" {self.field}:" if self.field else ""
        return f"{self.file}{line}:{field} {self.message}"


class DeclarationError(InputError):
    """All problems of all declarations at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(str(p) for p in self.problems))
