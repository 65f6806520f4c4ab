"""Where the rows of a task are that an evaluation declares: a file, a package, the hub, held-out documents."""

import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.errors import InputError

PACKAGE, HUB, HELD_OUT = "package:", "hub:", "held_out"


@dataclass(frozen=True)
class HubSource:
    """``hub:owner/name``, with ``:config`` and ``@revision`` where given."""

    path: str
    name: str | None
    revision: str | None


def hub_source(source: str) -> HubSource:
    """Parse ``hub:owner/name[:config][@revision]``.

    Raises:
        InputError: another form.
    """
    match = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)(?::([\w.-]+))?(?:@([\w.-]+))?", source)
    if not match:
        raise InputError(f"{source!r}: expected hub:owner/name, hub:owner/name:config or either with @revision.")
    return HubSource(match[1], match[2], match[3])


def is_held_out(source: str) -> bool:
    """Whether the rows are held-out documents: ``held_out``, those of a run's corpora, or ``held_out:CORPUS``."""
    return source == HELD_OUT or source.startswith(f"{HELD_OUT}:")


def held_out_corpus(source: str) -> str | None:
    """The corpus that ``held_out:CORPUS`` names, also where that is nothing; None for those of the run."""
    return None if source == HELD_OUT else source.removeprefix(f"{HELD_OUT}:")


def is_file(source: str) -> bool:
    """Whether the rows are a file, of the project or of a package: ``row_file`` says which."""
    return not is_held_out(source) and not source.startswith(HUB)


def row_file(source: str, resolve: Callable[[str], Path], packages: Path | None = None) -> Path:
    """The file that a declared source names.

    Args:
        source: a path, or ``package:NAME/path/in/it`` for a file inside an installed package, which is not imported.
        resolve: makes a path of the project absolute.
        packages: folder of packages that are installed for their data only.

    Raises:
        InputError: the package is not installed or has no such file.
    """
    if not source.startswith(PACKAGE):
        return resolve(source)
    name, _, inside = source.removeprefix(PACKAGE).partition("/")
    found = [packages / inside] if packages else []
    try:
        found.append(Path(str(importlib.metadata.distribution(name).locate_file(inside))))
    except importlib.metadata.PackageNotFoundError:
        if not any(file.is_file() for file in found):
            raise InputError(f"{source}: package {name!r} is not installed; install it, or name a file.") from None
    for file in found:
        if file.is_file():
            return file
    raise InputError(f"{source}: the installed package {name!r} has no file {inside!r}.")
