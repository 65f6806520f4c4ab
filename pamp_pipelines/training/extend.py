"""Going on with a finished run whose data order and schedule were made for more than it trained: its horizon.

Any other finished run cannot be made longer: its order of the data ends with it, and a learning rate that has come down
would stay there. Asking for that is refused, since what would come is a whole training from its beginning.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact, verify_files
from pamp_pipelines.lake.atomic import fsync_dir, write_text
from pamp_pipelines.lake.manifest import artifact_id
from pamp_pipelines.training.checkpoints import TRACKER
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.outcome import KIND
from pamp_pipelines.training.saved import Saved

_OF_THE_LENGTH = ("iterations", "kept")
"""Resolved parameters in which a run and one that goes on with it differ."""
_NEVER_OVER = ("constant", "inverse-square-root")
"""Schedules that no length is too long for."""
OVERRIDES = "overrides"
"""In the declaration of a version: what was set for this one run, where anything was."""


def find_shorter(
    finished: Iterable[Artifact], parameters: dict[str, Any], inputs: list[str], stage_version: int
) -> Path | None:
    """The longest finished run that is the beginning of another one.

    Args:
        finished: versions of the same model and training config.
        parameters: resolved, of the other run; None is found without a declared horizon.
        inputs: content of its inputs.
        stage_version: of the training stage.

    Raises:
        VerificationFailed: files of the longest are damaged, so that it cannot be gone on with.
    """
    if "horizon" not in parameters:
        return None
    shorter = {
        artifact.manifest.declaration["resolved"]["iterations"]: artifact
        for artifact in _shorter(finished, parameters, inputs, stage_version, _OF_THE_LENGTH)
    }
    return _whole(shorter[max(shorter)]).path if shorter else None


def _whole(artifact: Artifact) -> Artifact:
    try:
        verify_files(artifact.path, artifact.manifest)
    except VerificationFailed as error:
        damage = "\n".join(str(error).splitlines()[:-1])  # the last line is about artifacts that can be made again
        raise VerificationFailed(
            f"{damage}\n{artifact.path}: the run to go on with is damaged. Put what is damaged back from a copy, or "
            "train the whole length from its beginning with `pamp train MODEL CONFIG --fresh`."
        ) from None
    return artifact


def require_extendable(
    finished: Iterable[Artifact], parameters: dict[str, Any], inputs: list[str], stage_version: int
) -> None:
    """Refuse a run that is a finished one but for its length, where it could not go on with that one.

    Runs for which something was set (``--set``) do not count: they are trials.

    Args:
        finished, parameters, inputs, stage_version: as of ``find_shorter``.

    Raises:
        InputError: names the finished run, why it cannot be gone on with, and what can be done.
    """
    refused: dict[int, str] = {}
    for artifact in _shorter(finished, parameters, inputs, stage_version, (*_OF_THE_LENGTH, "horizon")):
        theirs = artifact.manifest.declaration["resolved"]
        reasons = _reasons(theirs, parameters)
        if not reasons:
            return
        if OVERRIDES not in artifact.manifest.declaration:
            refused[theirs["iterations"]] = (
                f"{artifact.path} is this run, finished at step {theirs['iterations']} of "
                + (f"the {parameters['iterations']} that are now asked for. It cannot go on: {' and '.join(reasons)}.")
            )
    if refused:
        raise InputError(
            f"{refused[max(refused)]} Train the whole length from its beginning with `pamp train … --fresh` (in the "
            "launchpad `mode: fresh`), or continue from its weights: export the last checkpoint, declare it as a "
            "model, and give a training config of its own a warm-up and a data_seed. A config that may become longer "
            "declares `horizon` from the start."
        )


def _reasons(finished: dict[str, Any], longer: dict[str, Any]) -> list[str]:
    """Why a finished run cannot be gone on with, by the resolved parameters of both; empty where it can."""
    schedule, length, horizon = finished["optimizer"], finished["iterations"], finished.get("horizon")
    style, end = schedule["decay_style"], schedule["decay_iterations"] or horizon or length
    reasons = []
    if horizon is None or horizon != longer.get("horizon"):
        made_for = f"a horizon of {horizon} steps" if horizon else "that length"
        reasons.append(f"the order of its data was made for {made_for}")
    if style not in _NEVER_OVER and end <= length:
        reasons.append(f"its learning rate came to the end of its decay ({style}) at step {end}")
    return reasons


def _shorter(
    finished: Iterable[Artifact],
    parameters: dict[str, Any],
    inputs: list[str],
    stage_version: int,
    differ: tuple[str, ...],
) -> Iterator[Artifact]:
    """Finished runs with fewer iterations that differ from the parameters in nothing but the names of ``differ``."""
    for artifact in finished:
        theirs = artifact.manifest.declaration.get("resolved", {})
        begun = {name: value for name, value in parameters.items() if name not in differ}
        begun |= {name: theirs[name] for name in differ if name in theirs}
        # the identity holds all that decides the weights
        same = artifact.manifest.id == artifact_id(KIND, stage_version, inputs, begun)
        if same and begun.get("iterations", parameters["iterations"]) < parameters["iterations"]:
            yield artifact


def seed(job: TrainJob, warn: Callable[[str], None]) -> None:
    """Give a version that has not begun the checkpoints of the run that it goes on with, and that run's metrics.

    Files are linked where the file system can, and copied else. The tracker is written last and says that all is there:
    where a process was killed here, the next one goes on.
    """
    if job.extends is None:
        return
    ours, source = Saved(job.checkpoints_dir), Saved(job.extends / "checkpoints")
    last = source.tracker()
    # a tracker, or a step that the other run never came to, is of training: an unreadable one is repaired, not seeded
    if (ours.root / TRACKER).exists() or max(ours.steps(), default=0) > (last or 0):
        return
    if last is None or not source.complete(last):
        warn(f"{job.extends}: its last checkpoint is gone, so {job.name} cannot go on with it and starts at step 0")
        return
    records = [_as_of_a_longer_run(record, job) for record in read_metrics(job.extends / "metrics.jsonl")]
    job.checkpoints_dir.mkdir(parents=True, exist_ok=True)
    write_text(job.metrics_path, "".join(json.dumps(record) + "\n" for record in records))
    for step in source.steps():
        if (step == last or (step in job.cadence and source.complete(step))) and ours.problem(step) is not None:
            _link(source.dir(step), ours.dir(step))
    write_text(job.checkpoints_dir / TRACKER, str(last))


def _as_of_a_longer_run(record: dict[str, Any], job: TrainJob) -> dict[str, Any]:
    """Without the validation that a run has at its end only."""
    interval = job.validation.interval
    if interval is None or record["iteration"] % interval == 0:
        return record
    return {name: value for name, value in record.items() if not name.startswith("validation")}


def _link(source: Path, target: Path) -> None:
    unfinished = target.with_name(f".{target.name}.linked")
    for leftover in (unfinished, target):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(source, unfinished, copy_function=_link_or_copy)
    unfinished.rename(target)
    fsync_dir(target.parent)


def _link_or_copy(source: str, target: str) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
