"""From an artifact back to everything that it was made of, by the ids in the manifests: no database, no Dagster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.export_cache import EVICTED, evicted_export, evicted_exports
from pamp_pipelines.lake.artifact import Verify, read_manifest, verify_files
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.manifest import MANIFEST, ArtifactRef, Manifest
from pamp_pipelines.lake.store import CheckpointKey, Lake

KINDS = (
    "raw_corpus",
    "tokenized_shards",
    "megatron_checkpoint",
    "pretrained_checkpoint",
    "hf_export",
    "eval_scores",
    "leaderboard",
)


@dataclass(frozen=True)
class Ancestor:
    """One artifact on the way back.

    Attributes:
        depth: steps from where the walk began, which has 0.
        ref: kind, id and content that the artifact made of it recorded.
        path: its manifest's file; None when this lake does not hold it any more.
        manifest: its manifest, or None.
        changed: whether the artifact now there has another content than the one recorded.
    """

    depth: int
    ref: ArtifactRef
    path: Path | None
    manifest: Manifest | None
    changed: bool = False

    @property
    def evicted(self) -> bool:
        """Whether it is an export whose files are away until it is needed again."""
        return self.path is not None and self.path.name.endswith(EVICTED)


class Index:
    """Manifests of a lake by id; reads each once."""

    def __init__(self, lake: Lake) -> None:
        self._by_id: dict[str, tuple[Path, Manifest]] = {}
        for file, manifest in manifests(lake):
            self._by_id.setdefault(manifest.id, (file, manifest))

    def find(self, id: str) -> tuple[Path, Manifest] | None:
        return self._by_id.get(id)

    def starting_with(self, prefix: str) -> list[tuple[Path, Manifest]]:
        """Artifacts whose id starts so, for ids that people type."""
        return [found for id, found in sorted(self._by_id.items()) if id.startswith(prefix)]


def manifests(lake: Lake) -> Iterator[tuple[Path, Manifest]]:
    """Every finished artifact and kept checkpoint of the lake with its manifest file."""
    for kind in KINDS:
        for artifact in lake.artifacts(kind):
            yield artifact.path / MANIFEST, artifact.manifest
    yield from evicted_exports(lake)
    for key in lake.kept_checkpoints():
        file = lake.kept_record(key)
        try:
            yield file, read_manifest(file)
        except InputError:
            continue  # being written, or damaged: the walk says that it is missing


def walk(start: Manifest, file: Path, index: Index) -> list[Ancestor]:
    """The artifact itself and all its ancestors, nearest first, each once."""
    first = ArtifactRef(kind=start.kind, id=start.id, content=start.content)
    found = [Ancestor(0, first, file, start)]
    seen = {start.id}
    for ancestor in found:  # grows while it is walked
        if ancestor.manifest is None:
            continue
        for ref in ancestor.manifest.inputs:
            if ref.id in seen:
                continue
            seen.add(ref.id)
            path, manifest = index.find(ref.id) or (None, None)
            changed = manifest is not None and manifest.content != ref.content
            found.append(Ancestor(ancestor.depth + 1, ref, path, manifest, changed))
    return found


def trace(artifact: Path | str, lake: Lake) -> list[Ancestor]:
    """The ancestors of an artifact, nearest first, beginning with itself.

    Args:
        artifact: an artifact's folder or manifest file, a checkpoint key, or the beginning of an id.
        lake: where ancestors are looked for.

    Raises:
        InputError: there is no such artifact, or several ids begin so.
    """
    index = Index(lake)
    file, manifest = _start(artifact, lake, index)
    return walk(manifest, file, index)


def _start(artifact: Path | str, lake: Lake, index: Index) -> tuple[Path, Manifest]:
    text = str(artifact)
    path = Path(artifact)
    if text and (path / MANIFEST).is_file():
        return path / MANIFEST, read_manifest(path / MANIFEST)
    if path.is_file():
        return path, read_manifest(path)
    if text and (evicted := evicted_export(path)) is not None:
        text = evicted.id
    if text.count("/") == 3:
        file = lake.kept_record(CheckpointKey.parse(text))
        return file, read_manifest(file)
    found = index.starting_with(text) if text else []
    if len(found) != 1:
        what = f"{len(found)} ids begin so" if found else "no folder, checkpoint key or id"
        raise InputError(f"{text!r}: {what} in {lake.root}; give the folder or more of the id.")
    return found[0]


def file_lines(ancestor: Ancestor, root: Path, verify: Verify = "none") -> Iterator[str]:
    """Bytes and SHA-256 of each file of an ancestor, and of a corpus the source files as they are on storage now.

    Args:
        ancestor: one of ``trace``.
        root: the project's root, where a corpus' sources are looked for.
        verify: ``hash`` reads every file and compares it with the manifest.

    Raises:
        VerificationFailed: a file is missing or another one than the manifest says.
    """
    if ancestor.manifest is None or ancestor.path is None:
        return
    folder = ancestor.path.parent
    if ancestor.ref.kind == "checkpoint":
        folder = folder.parent  # of kept/<step>.json
    verify_files(folder, ancestor.manifest, "none" if ancestor.evicted else verify)
    for entry in ancestor.manifest.files:
        yield f"{entry.bytes:>14,}  {entry.sha256}  {entry.path}"
    if ancestor.ref.kind == "raw_corpus":
        for declared in ancestor.manifest.declaration.values():
            for pattern in declared.get("sources", ()) if isinstance(declared, dict) else ():
                for file in sorted(root.glob(pattern)) if not Path(pattern).is_absolute() else ():
                    yield f"{file.stat().st_size:>14,}  {sha256_file(file)}  {file.relative_to(root)} (source)"


def describe(ancestors: Iterable[Ancestor], root: Path) -> Iterator[str]:
    """A line for each ancestor, indented by depth, with paths relative to ``root``."""
    for ancestor in ancestors:
        ref = ancestor.ref
        line = f"{'  ' * ancestor.depth}{ref.kind}  id {ref.id[:12]}  content {ref.content[:12]}"
        if ancestor.path is None or ancestor.manifest is None:
            yield f"{line}  not in this lake"
            continue
        path = ancestor.path.parent if ancestor.path.name == MANIFEST else ancestor.path
        commit = str(ancestor.manifest.producer.get("git_commit") or "")[:12]
        dirty = "+" if ancestor.manifest.producer.get("git_dirty") else ""
        where = path.relative_to(root) if path.is_relative_to(root) else path
        note = "  CHANGED since" if ancestor.changed else "  evicted" if ancestor.evicted else ""
        before = ancestor.manifest.declaration.get("follows") if ref.kind == "pretrained_checkpoint" else None
        note += f"  follows {before['version']} {before['id'][:12]}" if before else ""
        yield f"{line}  {where}  {ancestor.manifest.created}  code {commit or 'unknown'}{dirty}{note}"
