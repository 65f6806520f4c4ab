"""Where the rows of a benchmark are that an evaluation declares."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from pamp_pipelines.errors import InputError

PACKAGE = "package:"


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
