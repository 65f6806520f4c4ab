"""Versions of a training run: ``v0001``, ``v0002`` … of one model and one training config."""

import json
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_bytes
from pamp_pipelines.lake.manifest import MANIFEST
from pamp_pipelines.lake.mirror import mirror_of
from pamp_pipelines.lake.publish import lock
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.training.kept import recorded_steps

CLAIM = "claim.json"
"""Says for which job id a version directory was made; written before anything else."""
_TAKEN = "taken-*.json"
"""Who took a version of a remote lake over, one file each time; the last one owns it. None is ever written again, so
that of two who take it over at once the store refuses one."""


def version_id(version_dir: Path) -> str | None:
    """The job id that a version belongs to; None for one whose claim was never written."""
    for name in (CLAIM, MANIFEST):
        try:
            id = json.loads((version_dir / name).read_text())["id"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return str(id)
    return None


def select_version(
    lake: Lake,
    model: str,
    training_config: str,
    id: str,
    *,
    fresh: bool,
    claim: bool = True,
    take_over: bool = False,
) -> int:
    """The version that a job with this ``id`` works in.

    In a remote lake an unfinished version belongs to the working directory that claimed it, where its resume points
    are; others see it and begin the next, or take it over.

    The newest version with the same id is taken: it is resumed, or it is finished and returned. Without one, and for
    ``fresh``, it is the next number, which is claimed at once: two callers never share a new version by accident.

    Args:
        claim: False only looks, and makes no version (a dry run).
        take_over: go on with a version of another working directory, from the newest checkpoint that it published. It
            loses the version: nobody may train there any more.

    Raises:
        InputError: there is nothing to take over, or another working directory was faster.
    """
    with lock(lake.versions_dir(model, training_config) / "versions"):
        versions = lake.versions(model, training_config)
        if not fresh:
            for version in reversed(versions):
                directory = lake.version_dir(model, training_config, version)
                if version_id(directory) != id:
                    continue
                if not _is_elsewhere(directory):
                    return version
                if take_over:
                    if claim:
                        _take_over(directory, id)
                    return version
        if take_over:
            raise InputError(
                f"{lake.versions_dir(model, training_config)}: no unfinished run of these inputs and settings to go on "
                "with. Without --take-over a new version is begun; with other inputs or settings it is another run."
            )
        version = max(versions, default=0) + 1
        while claim and not _claim(lake.version_dir(model, training_config, version), id):
            version += 1
        return version


def _claim(directory: Path, id: str) -> bool:
    """Make a version; False where another working directory of a remote lake has claimed it a moment ago."""
    mirror = mirror_of(directory)
    directory.mkdir(parents=True)
    if mirror is None:
        write_bytes(directory / CLAIM, _words(id=id))
        return True
    if mirror.claim(directory / CLAIM, _words(id=id, home=mirror.home)):
        return True
    directory.rmdir()
    return False


def _take_over(directory: Path, id: str) -> None:
    """Make a version this working directory's; the former owner sees it when it next opens the lake."""
    mirror = mirror_of(directory)
    assert mirror is not None  # else nothing is elsewhere
    if not any(recorded_steps(directory)):
        raise InputError(
            f"{directory}: its machine has published no checkpoint yet, so that there is nothing to go on from. "
            "Without --take-over a new version is begun."
        )
    number = len(list(directory.glob(_TAKEN))) + 1
    if not mirror.claim(directory / _TAKEN.replace("*", f"{number:04d}"), _words(id=id, home=mirror.home)):
        raise InputError(
            f"{directory}: another machine has taken this version over just now, and may train there. Leave it to that "
            "one, or stop it and run this again."
        )


def _words(**fields: str) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _is_elsewhere(directory: Path) -> bool:
    """Whether a version is not finished, and another working directory has its resume points."""
    mirror = mirror_of(directory)
    if mirror is None or (directory / MANIFEST).is_file():
        return False
    try:
        last = max(directory.glob(_TAKEN), default=directory / CLAIM)
        return bool(json.loads(last.read_text()).get("home") != mirror.home)
    except (FileNotFoundError, ValueError):
        return False
