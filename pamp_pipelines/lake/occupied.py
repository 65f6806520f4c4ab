"""What a new artifact may be put in place of: an older one of the same kind, and nothing of anybody else's."""

from collections.abc import Sequence
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import read_manifest
from pamp_pipelines.lake.manifest import MANIFEST

_SHOWN = 3


def require_own_folder(output: Path, kind: str, sources: Sequence[Path] = ()) -> None:
    """Like ``require_replaceable``, for a folder that a user names: it must not lie in anything finished, either.

    Call it before the work. An artifact that gets further files is no longer what its manifest says, and a model's
    folder may be read as another model.

    Raises:
        InputError: as ``require_replaceable``; or ``output`` lies inside a source, or inside an artifact.
    """
    parents = output.resolve().parents
    for source in sources:
        if source.resolve() in parents:
            raise InputError(f"{output}: lies inside its own source {source}; choose another output")
    require_outside_artifacts(output)
    require_replaceable(output, kind, sources)


def require_outside_artifacts(output: Path) -> None:
    """Raises InputError where ``output`` would become a file or folder inside an artifact."""
    for folder in output.resolve().parents:
        if (folder / MANIFEST).is_file():
            try:
                manifest = read_manifest(folder / MANIFEST)
            except InputError:  # somebody's own file of this name
                continue
            raise InputError(
                f"{output}: lies inside {folder}, a finished {manifest.kind}, which would not be what its "
                f"{MANIFEST} says any more; choose another output"
            )


def require_replaceable(output: Path, kind: str, sources: Sequence[Path] = ()) -> None:
    """Protect from being replaced what is not an older artifact of the same kind; call before publishing.

    Args:
        output: where the new artifact will be.
        kind: kind of the new artifact.
        sources: files or directories that it is made from.

    Raises:
        InputError: ``output`` is or holds a source, is a file, is an artifact of another kind, or holds files that its
            manifest does not name.
    """
    place = output.resolve()
    for source in sources:
        if place == source.resolve() or place in source.resolve().parents:
            raise InputError(f"{output}: would replace its own source {source}; choose another output")
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    advice = "choose another output or remove it"
    if not (output / MANIFEST).is_file():
        raise InputError(f"{output}: exists and is no {kind}; {advice}")
    try:
        manifest = read_manifest(output / MANIFEST)
    except InputError:
        raise InputError(f"{output}: its {MANIFEST} is not one of an artifact; {advice}") from None
    if manifest.kind != kind:
        raise InputError(f"{output}: holds a {manifest.kind}, which a {kind} must not replace; {advice}")
    named = {output / entry.path for entry in manifest.files} | {output / MANIFEST}
    if foreign := sorted(file for file in output.rglob("*") if not file.is_dir() and file not in named):
        shown = ", ".join(str(file) for file in foreign[:_SHOWN]) + (" …" if len(foreign) > _SHOWN else "")
        raise InputError(f"{output}: holds files that its manifest does not name ({shown}); {advice}")
