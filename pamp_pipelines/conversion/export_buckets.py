"""An export's tensors in buckets, and the files that these are written into."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.conversion.export_plan import ExportPlan, GatherItem, OutputFile

_BUCKET_BYTES = 128 * 2**20

Payload = tuple[str, int, int]


@dataclass(frozen=True)
class ExportBucket:
    """Tensors that one process writes into `file`, which exists: (byte at which the tensor begins, tensor).

    hashed: take their SHA-256. receipt: the file that says they are written. payloads: those of the checkpoint (file,
    start, length) that are compared with their checksums here; each stands in the first bucket that reads from it.
    """

    checkpoint: Path
    file: Path
    receipt: Path
    items: tuple[tuple[int, GatherItem], ...]
    hashed: bool = False
    payloads: tuple[Payload, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(item.bytes for _, item in self.items)


def begin_files(plan: ExportPlan, folder: Path) -> None:
    """The files that the buckets of an export are written into."""
    for file in plan.files:
        _begin(folder / file.name, file)


def _begin(path: Path, file: OutputFile) -> None:
    """Gives a file its header and its size; one that has both keeps what an export before has written."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        if path.stat().st_size == file.bytes and stream.read(len(file.header)) == file.header:
            return
    for receipt in path.parent.glob(f"{path.name}.*.json"):
        receipt.unlink()
    with path.open("wb") as stream:
        stream.write(file.header)
        stream.truncate(file.bytes)


def export_buckets(checkpoint: Path, plan: ExportPlan, folder: Path, *, hashed: bool) -> Iterator[ExportBucket]:
    """Neighbouring tensors of a file, of at most so many bytes unless one alone has more."""
    seen: set[tuple[str, int]] = set()
    for file in plan.files:
        groups: list[list[tuple[int, GatherItem]]] = [[]]
        size = 0
        for item, start in file.items:
            if groups[-1] and size + item.bytes > _BUCKET_BYTES:
                groups.append([])
                size = 0
            groups[-1].append((start, item))
            size += item.bytes
        for number, group in enumerate(groups):
            receipt = folder / f"{file.name}.{number}.json"
            yield ExportBucket(checkpoint, folder / file.name, receipt, tuple(group), hashed, _new(group, seen))


def _new(group: Sequence[tuple[int, GatherItem]], seen: set[tuple[str, int]]) -> tuple[Payload, ...]:
    """The payloads that these tensors are the first to be read from, in the order in which they lie."""
    found: dict[tuple[str, int], int] = {}
    for _, item in group:
        for chunk in item.chunks:
            if (place := (chunk.file, chunk.start)) not in seen:
                seen.add(place)
                found[place] = chunk.length
    return tuple(sorted((file, start, length) for (file, start), length in found.items()))
