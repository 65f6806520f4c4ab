"""Opening a lake: a local one is a folder, of a remote one the changes of its catalogue are brought here first."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pamp_pipelines.lake.atomic import write_bytes
from pamp_pipelines.lake.cache import Unit
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.leases import unleased
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.mirror import CATALOGUE, LARGE, Entry, Mirror, attach, digest, is_manifest, names_in
from pamp_pipelines.lake.remote import Object, ObjectMissing
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project

_RUNS = "runs/"
"""Below it every file stands for itself: a version's directory grows while it is trained."""

_SMALL_THREADS = 32
"""For files of which each costs a round trip and little else."""

_OPENED: dict[Path, float] = {}
"""When this process last brought a catalogue up to date."""


def open_lake(project: Project, on_event: OnEvent = ignore, *, max_age_s: float = 10.0) -> Lake:
    """The project's lake; of a remote one, with what others have published until now.

    Args:
        project: whose lake.
        on_event: gets a ``warning`` for each damaged object of the catalogue.
        max_age_s: how old the picture of a remote lake may be that this process has.

    Raises:
        StorageError: the store does not answer.
        InputError: it refuses, or the URL or a setting is wrong.
    """
    lake = Lake(project.lake)
    if (url := project.lake_url) is not None:
        mirror = attach(lake.root, url, project.lake_budget)
        opened = _OPENED.get(mirror.root)
        if opened is None or time.monotonic() - opened > max_age_s:
            for damage in refresh(mirror):
                on_event(event("warning", message=damage))
            _OPENED[mirror.root] = time.monotonic()
    return lake


def refresh(mirror: Mirror) -> list[str]:
    """Bring the catalogue's changes here; returns what is damaged in the store and was left out.

    What was made here and is not published yet stays; so does what is leased, and what is gone from the store and whole
    here. An artifact that is being replaced in the store may be away until its new manifest is there.

    Raises:
        StorageError, InputError: the store cannot be read.
    """
    with mirror.locked("refresh.lock"):
        known = mirror.entries()  # before the listing: what is published meanwhile is then not taken for gone
        remote = mirror.store.list(CATALOGUE)
        changed = [
            path
            for path, found in remote.items()
            if path not in known or known[path].token != found.token or not (mirror.root / path).is_file()
        ]
        gone = [path for path, entry in known.items() if path not in remote and entry.token]
        if not changed and not gone:
            return []
        units = _Units((*remote, *known))
        stays = {unit for unit in map(units.of, (*changed, *gone)) if _made_here(mirror, unit, known)}
        wanted = [path for path in changed if units.of(path) not in stays]
        whole = {unit for path in gone if path == _key(unit := units.of(path)) and _whole(mirror, unit)}
        withdrawn = {path: Entry(token="", sha256=known[path].sha256) for path in gone if units.of(path) in whole}
        dropped = [path for path in gone if units.of(path) not in stays | whole]
        old = _take_away(mirror, {*dropped, *(_manifest_of(mirror, units.of(path)) for path in wanted)} - {""})
        for path in dropped:
            (mirror.root / path).unlink(missing_ok=True)
        arrived = _fetch(mirror, wanted, remote)
        damage = _verify(mirror, arrived)
        _remove_outdated(old)
        mirror.note({**dict.fromkeys(dropped), **withdrawn, **arrived})
        return damage


class _Units:
    """Which files of a catalogue are of one artifact."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._folders = {
            path.rpartition("/")[0] for path in paths if path.endswith(f"/{MANIFEST}") and not path.startswith(_RUNS)
        }

    def of(self, path: str) -> str:
        """The artifact's folder, else the file itself."""
        folder = path.rpartition("/")[0]
        while folder and folder not in self._folders:
            folder = folder.rpartition("/")[0]
        return folder or path


def _key(unit: str) -> str:
    """The file of a unit that goes first and comes last."""
    return unit if unit.startswith(_RUNS) else f"{unit}/{MANIFEST}"


def _manifest_of(mirror: Mirror, unit: str) -> str:
    return f"{unit}/{MANIFEST}" if (mirror.root / unit).is_dir() else unit if is_manifest(unit) else ""


def _made_here(mirror: Mirror, unit: str, known: Mapping[str, Entry]) -> bool:
    """Whether it has content here that was never in the store, or is being read here."""
    path = _manifest_of(mirror, unit) or unit
    file = mirror.root / path
    if not file.is_file():
        return False
    if path not in known or known[path].sha256 != digest(file):
        return True
    with unleased(mirror.root / unit) as free:
        return not free


def _whole(mirror: Mirror, unit: str) -> bool:
    """Whether all of it is here, so that it can be put into the store again; a file of a run is."""
    path = _manifest_of(mirror, unit)
    try:
        found = Unit.read(mirror.root / path) if path else None
    except (OSError, ValueError):
        return False
    return found is None or all((found.root / entry.path).is_file() for entry in found.manifest.files)


def _take_away(mirror: Mirror, manifests: set[str]) -> list[Unit]:
    """Hide what is replaced while its files change; returns it as it was."""
    old = []
    for path in manifests:
        file = mirror.root / path
        if is_manifest(path) and file.is_file():
            with contextlib.suppress(ValueError):
                old.append(Unit.read(file))
            file.unlink()
    return old


def _fetch(mirror: Mirror, paths: list[str], remote: Mapping[str, Object]) -> dict[str, Entry]:
    """Manifests are written when all else is there."""

    def fetch(path: str) -> tuple[str, Entry] | None:
        try:
            data = mirror.store.read(f"{CATALOGUE}/{path}")
        except ObjectMissing:  # it is being replaced
            return None
        write_bytes(mirror.root / path, data)
        names = names_in(data) if is_manifest(path) else None
        return path, Entry(token=remote[path].token, sha256=digest(mirror.root / path), names=names)

    first = [path for path in paths if not is_manifest(path)]
    last = [path for path in paths if is_manifest(path)]
    with ThreadPoolExecutor(_SMALL_THREADS) as pool:
        return dict(found for group in (first, last) for found in pool.map(fetch, group) if found)


def _verify(mirror: Mirror, arrived: dict[str, Entry]) -> list[str]:
    """Compare small artifacts with their manifests; one that differs is left out, and asked for again next time."""
    damage = []
    for path in [path for path in arrived if is_manifest(path)]:
        file = mirror.root / path
        try:
            unit = Unit.read(file)
        except ValueError as error:
            damage.append(f"{mirror.store.url_of(f'{CATALOGUE}/{path}')}: not a readable manifest ({error}); left out.")
        else:
            if not (wrong := [] if unit.manifest.kind in LARGE else _wrong(mirror, unit.root, unit.manifest)):
                continue
            damage.append(
                f"{', '.join(wrong)}: not what {mirror.store.url_of(f'{CATALOGUE}/{path}')} says; {path} is left out. "
                "Run `pamp publish` where it is whole, or materialise it again."
            )
        file.unlink()
        del arrived[path]
    return damage


def _wrong(mirror: Mirror, root: Path, manifest: Manifest) -> list[str]:
    return [
        mirror.store.url_of(f"{CATALOGUE}/{mirror.rel(root / entry.path)}")
        for entry in manifest.files
        if not (root / entry.path).is_file() or sha256_file(root / entry.path) != entry.sha256
    ]


def _remove_outdated(old: list[Unit]) -> None:
    """Payload of what was replaced that is not the payload of what came."""
    for unit in (unit for unit in old if unit.manifest.kind in LARGE):
        file = unit.place if unit.place != unit.root else unit.root / MANIFEST
        now: dict[str, str] = {}
        if file.is_file():
            now = {entry.path: entry.sha256 for entry in Unit.read(file).manifest.files}
        for entry in unit.manifest.files:
            if now.get(entry.path) != entry.sha256:
                (unit.root / entry.path).unlink(missing_ok=True)
