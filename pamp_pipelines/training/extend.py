"""Going on with a finished run.

Up to its horizon, for which the order of its data and its schedule were made, it goes on as if there had been no end.
One without a horizon goes on while its learning rate has not come down (constant, or a decay that ends later): a new
data phase begins, whose samples are shuffled with a seed of its own. Any other finished run cannot be made longer: its
learning rate would stay where it came to. Asking for that is refused, since what would come is a whole training from
its beginning.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact, verify_files
from pamp_pipelines.lake.atomic import fsync_dir, write_text
from pamp_pipelines.lake.hashing import sha256_json
from pamp_pipelines.lake.manifest import artifact_id
from pamp_pipelines.training.checkpoints import TRACKER
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.outcome import KIND
from pamp_pipelines.training.saved import Saved

_OF_THE_LENGTH = ("iterations", "kept")
"""Resolved parameters in which a run and one that goes on with it differ."""
PHASES = "phases"
"""Resolved parameter of a run of several data phases: first sample, samples and seed of each."""
OVERRIDES = "overrides"
"""In the declaration of a version: what was set for this one run, where anything was."""


def find_shorter(
    finished: Iterable[Artifact], parameters: dict[str, Any], inputs: list[str], stage_version: int
) -> Path | None:
    """The longest finished run that is the beginning of another one.

    Args:
        finished: versions of the same model and training config.
        parameters: resolved, of the other run; None is found without a declared horizon or data phases.
        inputs: content of its inputs.
        stage_version: of the training stage.

    Raises:
        VerificationFailed: files of the longest are damaged, so that it cannot be gone on with.
    """
    if "horizon" not in parameters and PHASES not in parameters:
        return None
    shorter = {
        theirs["iterations"]: artifact
        for artifact in _shorter(finished, parameters, inputs, stage_version, (*_OF_THE_LENGTH, PHASES))
        if "horizon" in (theirs := artifact.manifest.declaration["resolved"])
        or _phases(theirs) == parameters[PHASES][:-1]
    }
    return _whole(shorter[max(shorter)]).path if shorter else None


def with_phases(
    finished: Iterable[Artifact],
    parameters: dict[str, Any],
    inputs: list[str],
    stage_version: int,
    known: Collection[str | None],
) -> dict[str, Any]:
    """The parameters, with the data phases of a run without a horizon that goes on with a finished one.

    A run of these parameters that was begun, in one phase or in several, keeps its phases. Otherwise the longest run is
    gone on with. Runs for which something was set (``--set``) are trials, and not gone on with.

    Args:
        finished, parameters, inputs, stage_version: as of ``find_shorter``.
        known: identities of the versions that there are.
    """
    if "horizon" in parameters or artifact_id(KIND, stage_version, inputs, parameters) in known:
        return parameters
    finished, options = list(finished), {}
    for artifact in finished:  # what it went on with may be gone or damaged
        phases = artifact.manifest.declaration.get("resolved", {}).get(PHASES)
        if artifact.id == artifact_id(KIND, stage_version, inputs, parameters | {PHASES: phases}):
            return parameters | {PHASES: phases}
    for artifact in _shorter(finished, parameters, inputs, stage_version, (*_OF_THE_LENGTH, PHASES)):
        theirs = artifact.manifest.declaration["resolved"]
        if OVERRIDES not in artifact.manifest.declaration and not _reasons(theirs, parameters):
            options[theirs["iterations"]] = parameters | {PHASES: [*_phases(theirs), _next_phase(theirs, parameters)]}
    longest_first = [options[length] for length in sorted(options, reverse=True)]
    begun = (option for option in longest_first if artifact_id(KIND, stage_version, inputs, option) in known)
    return next(begun, next(iter(longest_first), parameters))


def _phases(run: dict[str, Any]) -> list[list[int]]:
    """First sample, samples and seed of each data phase of a finished run without a horizon."""
    whole = [0, run["iterations"] * run["global_batch_size"], run["data_seed"]]
    return run.get(PHASES, [whole])


def _next_phase(finished: dict[str, Any], longer: dict[str, Any]) -> list[int]:
    first, end = (run["iterations"] * run["global_batch_size"] for run in (finished, longer))
    seed = int(sha256_json([longer["data_seed"], first])[:8], 16)  # NumPy takes 32 bits
    return [first, end - first, seed]


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
    for artifact in _shorter(finished, parameters, inputs, stage_version, (*_OF_THE_LENGTH, PHASES, "horizon")):
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
            "declares `horizon` from the start, or a constant learning rate."
        )


def _reasons(finished: dict[str, Any], longer: dict[str, Any]) -> list[str]:
    """Why a finished run cannot be gone on with, by the resolved parameters of both; empty where it can."""
    schedule, length, horizon = finished["optimizer"], finished["iterations"], finished.get("horizon")
    made_for_samples = _phases(finished)[0][1] // finished["global_batch_size"]
    style, end = schedule["decay_style"], schedule["decay_iterations"] or horizon or made_for_samples
    reasons = []
    if horizon != longer.get("horizon"):
        made_for = f"a horizon of {horizon} steps" if horizon else "that length"
        reasons.append(f"the order of its data was made for {made_for}")
    if style != "constant" and end <= length:
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
