"""The caller's side of the checkpoints of a run: which can be loaded, what a killed save left, what may be deleted.

Megatron writes a checkpoint under its final name and moves the tracker last, by an ordinary write: a killed save leaves
a directory without ``.metadata``, or an empty tracker with which the next start exits with status 0. A checkpoint
counts as complete when its index can be read and every byte that it points to is there. Before a run resumes from one,
its bytes are compared with their checksums too.
"""

import secrets
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.conversion.checksums import damaged_payload
from pamp_pipelines.conversion.torch_dist import METADATA, read_checkpoint
from pamp_pipelines.errors import InfrastructureFailed, InputError
from pamp_pipelines.lake.atomic import fsync_dir, write_text
from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.training.checkpoints import TRACKER, checkpoint_path, tracked_iteration

_TRASH = ".trash-"


@dataclass(frozen=True)
class Saved:
    """The directory that Megatron saves to."""

    root: Path

    def dir(self, step: int) -> Path:
        return checkpoint_path(self.root, step)

    def steps(self) -> list[int]:
        """Steps that have a directory, complete or not, oldest first."""
        names = (d.name.removeprefix("iter_") for d in self.root.glob("iter_*") if d.is_dir())
        return sorted(int(name) for name in names if name.isdecimal())

    def tracker(self) -> int | None:
        """The step that the tracker names; None when it is absent or unreadable."""
        return tracked_iteration(self.root)

    def problem(self, step: int) -> str | None:
        """Why the checkpoint of a step cannot be loaded; None when every byte its index points to is there."""
        try:
            read_checkpoint(self.dir(step))
        except InputError as error:
            return str(error)
        format = self.dir(step) / "metadata.json"
        return None if format.is_file() else f"{format}: missing; the checkpoint was never finished"

    def complete(self, step: int) -> bool:
        """Whether the save of a step has ended. Right while training goes on: the tracker moves after the last file."""
        newest = self.tracker()
        return newest is not None and step <= newest and self.problem(step) is None

    def remove(self, step: int) -> None:
        """Delete a checkpoint; it loses its name first, so that half of one is never taken for a whole."""
        trash = self.root / f"{_TRASH}{step}-{secrets.token_hex(3)}"
        self.dir(step).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def sweep(self, warn: Callable[[str], None]) -> int | None:
        """Make the directory fit to resume from; call it only while nobody trains.

        Removes unfinished saves, and lets the tracker name the newest complete checkpoint.

        Args:
            warn: is told about each thing that was not as it should be.

        Returns:
            The step to resume from; None to start at the beginning.

        Raises:
            InfrastructureFailed: a file cannot be read. Nothing is removed for that: another attempt may find it whole.
            PermissionError: nor by another attempt.
        """
        if not self.root.is_dir():
            return None
        for trash in self.root.glob(f"{_TRASH}*"):
            shutil.rmtree(trash, ignore_errors=True)
        named = self.tracker()
        best = None
        for step in reversed(self.steps()):
            # only the one to resume from is read whole
            problem = self._damage(step, whole=best is None)
            if problem is not None:
                warn(f"{problem}; removed {self.dir(step)}, from which nothing can be resumed")
                self.remove(step)
            elif best is None:
                best = step
        if best != named or (best is None and (self.root / TRACKER).exists()):
            self._set_tracker(best, named, warn)
        return best

    def _damage(self, step: int, *, whole: bool) -> str | None:
        try:
            return self.problem(step) or (damaged_payload(self.dir(step)) if whole else None)
        except PermissionError:
            raise
        except OSError as error:
            raise InfrastructureFailed(
                f"{self.dir(step)}: cannot be read ({error.strerror or error}). That is no damage, so nothing was "
                "removed; run it again when the storage answers.",
                None,
            ) from error

    def _set_tracker(self, best: int | None, named: int | None, warn: Callable[[str], None]) -> None:
        tracker = self.root / TRACKER
        was = f"named step {named}" if named is not None else "was unreadable" if tracker.exists() else "was missing"
        if best is None:
            tracker.unlink(missing_ok=True)
            fsync_dir(self.root)
            warn(f"{tracker}: {was} and no complete checkpoint is left; the run starts again at step 0")
        else:
            write_text(tracker, str(best))
            warn(f"{tracker}: {was}; the run resumes from step {best}, the newest complete checkpoint")

    def prune(self, keep_last: int, kept: Collection[int]) -> list[int]:
        """Delete rolling resume points and return their steps.

        Kept checkpoints, the newest ``keep_last`` and whatever the tracker names or lies beyond it stay.
        """
        newest = self.tracker()
        if newest is None:
            return []
        candidates = [step for step in self.steps() if step < newest]
        rolling = [*candidates, newest][-keep_last:]
        removed = [step for step in candidates if step not in kept and step not in rolling]
        for step in removed:
            self.remove(step)
        return removed


def has_weights(imported: Manifest) -> bool:
    """Whether a megatron_checkpoint holds weights; one from scratch does not."""
    return imported.names(f"checkpoint/release/{METADATA}")
