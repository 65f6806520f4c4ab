"""The `torch_dist` checkpoint directory of Megatron-Core: its index `.metadata`, written and read without torch.

    .metadata       pickle of torch.distributed.checkpoint.metadata.Metadata: shapes, chunk grids, where each lies
    __R_I.distcp    payloads one after the other, one per chunk or object (payload.py)
    metadata.json   names the format

Read from torch 2.13 `distributed/checkpoint/{metadata,filesystem}.py` and megatron-core 0.19.2 `dist_checkpointing/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion import restricted_pickle
from pamp_pipelines.conversion.coverage import Shape
from pamp_pipelines.conversion.dtypes import DType, by_name
from pamp_pipelines.conversion.pickle_writer import Call, Global, Instance, dump
from pamp_pipelines.conversion.restricted_pickle import Inert
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_bytes, write_json, writing

METADATA = ".metadata"
TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"

_DCP = "torch.distributed.checkpoint.metadata"
_SIZE = Global("torch", "Size")
_INDEX = Global(_DCP, "MetadataIndex")
_STORAGE_INFO = Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A box of a tensor: `offset` and `size` along each axis; its payload is `length` bytes of `file` from `start`."""

    offset: Shape
    size: Shape
    file: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the checkpoint. `dtype` is None where it is no type of weights (optimizer counters and the like)."""

    key: str
    dtype: DType | None
    shape: Shape
    chunks: tuple[StoredChunk, ...]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A pickled object of the checkpoint, by its unique key `<key>/shard_<offsets>_<shape>`."""

    key: str
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class StoredCheckpoint:
    """What a checkpoint directory holds."""

    dir: Path
    tensors: Mapping[str, StoredTensor]
    objects: Mapping[str, StoredObject]


def checkpoint_dir(path: Path) -> Path:
    """The directory that holds `.metadata`: `path` itself, what its tracker names, or an artifact's `checkpoint/`.

    Raises:
        InputError: none of them is there; says what was looked for.
    """
    if (path / METADATA).is_file():
        return path
    for root in (path, path / "checkpoint", path / "checkpoints"):
        tracker = root / TRACKER
        if not tracker.is_file():
            continue
        latest = tracker.read_text().strip()
        if latest != RELEASE and not latest.isdecimal():
            raise InputError(f"{tracker}: holds {latest!r}, expected {RELEASE!r} or an iteration")
        directory = root / (latest if latest == RELEASE else f"iter_{int(latest):07d}")
        if not (directory / METADATA).is_file():
            raise InputError(f"{directory / METADATA}: missing, although {tracker} names this checkpoint")
        return directory
    raise InputError(f"{path}: no checkpoint here: neither {METADATA} nor {TRACKER}")


def read_checkpoint(directory: Path) -> StoredCheckpoint:
    """The index of a checkpoint. Nothing that the file names is imported or run.

    Raises:
        InputError: `.metadata` is missing, damaged, not this format, or names code; a file it points to is missing or
            too short.
    """
    file = directory / METADATA
    try:
        with file.open("rb") as stream:
            metadata = restricted_pickle.load(stream, str(file))
    except FileNotFoundError:
        raise InputError(f"{file}: missing; the checkpoint was never finished") from None
    try:
        places = _places(metadata["storage_data"])
        tensors, objects = _entries(metadata["state_dict_metadata"], places)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: not the index of a torch_dist checkpoint ({error!r})") from error
    _check_files(directory, tensors, objects)
    return StoredCheckpoint(directory, tensors, objects)


def _places(storage_data: dict[Inert, Inert]) -> dict[tuple[str, Shape | None], tuple[str, int, int]]:
    """Where each chunk and object lies. Takes the dict apart: both at once would be the most that an export needs."""
    places = {}
    while storage_data:
        index, info = storage_data.popitem()
        if info["transform_descriptors"]:
            raise ValueError(f"{index['fqn']} is stored with transforms {info['transform_descriptors']}")
        start, length = int(info["offset"]), int(info["length"])
        if start < 0 or length < 0:
            raise ValueError(f"{index['fqn']} is {length} bytes from byte {start}")
        places[index["fqn"], index["offset"]] = str(info["relative_path"]), start, length
    return places


def _entries(
    state: dict[str, Inert], places: Mapping[tuple[str, Shape | None], tuple[str, int, int]]
) -> tuple[dict[str, StoredTensor], dict[str, StoredObject]]:
    """Tensors and objects by key. Takes `state` apart, as _places does."""
    tensors, objects = {}, {}
    for key in list(state):
        entry = state.pop(key)
        if entry.origin == f"{_DCP}.BytesStorageMetadata":
            objects[key] = StoredObject(key, *places[key, None])
            continue
        shape = _shape(key, entry["size"])
        chunks = tuple(_chunk(key, len(shape), chunk, places) for chunk in entry["chunks"])
        tensors[key] = StoredTensor(key, _dtype(entry["properties"].state[0]), shape, chunks)
    return tensors, objects


def _chunk(
    key: str, axes: int, chunk: Inert, places: Mapping[tuple[str, Shape | None], tuple[str, int, int]]
) -> StoredChunk:
    offset, size = _shape(key, chunk["offsets"]), _shape(key, chunk["sizes"])
    if len(offset) != axes or len(size) != axes:
        raise ValueError(f"{key} has {axes} axes, a chunk of it is {size} at {offset}")
    return StoredChunk(offset, size, *places[key, offset])


def _shape(key: str, numbers: Any) -> Shape:
    if not isinstance(numbers, tuple) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ValueError(f"{key} has {numbers!r} for a shape or an offset")
    return numbers


def _dtype(name: str) -> DType | None:
    try:
        return by_name(name)
    except InputError:
        return None


def _check_files(directory: Path, tensors: Mapping[str, StoredTensor], objects: Mapping[str, StoredObject]) -> None:
    ends: dict[str, int] = {}
    places: list[StoredChunk | StoredObject] = [c for t in tensors.values() for c in t.chunks]
    for place in [*places, *objects.values()]:
        ends[place.file] = max(ends.get(place.file, 0), place.start + place.length)
    problems, missing, truncated = [], [], []
    for name, end in sorted(ends.items()):
        if Path(name).name != name:
            problems.append(f"{directory / METADATA}: points to {name!r}, outside its own directory")
        elif not (directory / name).is_file():
            missing.append(name)
        elif (size := (directory / name).stat().st_size) < end:
            truncated.append(f"{name}: {size} of {end} bytes")
    # one sentence for all files that lack the same
    if missing:
        problems.append(f"{directory / missing[0]}: missing, although {METADATA} points to it{_also(missing)}")
    if truncated:
        problems.append(f"{directory / truncated[0]} that {METADATA} points up to: truncated{_also(truncated)}")
    if problems:
        raise InputError("\n".join(problems))


def _also(files: list[str], at_most: int = 5) -> str:
    """Those after the first, which the sentence has named."""
    named, more = ", ".join(files[1:at_most]), len(files) - at_most
    return f"; so are {named}" * bool(named) + f" and {more} more" * (more > 0)


def write_index(directory: Path, tensors: Iterable[StoredTensor], objects: Iterable[StoredObject]) -> None:
    """Writes `metadata.json`, then `.metadata`: a checkpoint without its last file loads nowhere.

    tensors: gone through twice, one at a time.
    """
    write_json(directory / "metadata.json", {"sharded_backend": "torch_dist", "sharded_backend_version": 1})
    with writing(directory / METADATA) as stream:
        dump(_metadata(tensors, objects), stream)


def write_tracker(root: Path, name: str = RELEASE) -> None:
    """Names the checkpoint that Megatron loads from `root`."""
    write_bytes(root / TRACKER, name.encode())


def _metadata(tensors: Iterable[StoredTensor], objects: Iterable[StoredObject]) -> Instance:
    origin: dict[str, Any] = {"checkpoint_id": None, "save_id": None, "load_id": None, "modules": []}
    return Instance(
        Global(_DCP, "Metadata"),
        {
            "state_dict_metadata": _Pairs(lambda: _described(tensors, objects)),
            "planner_data": None,
            "storage_data": _Pairs(lambda: _stored(tensors, objects)),
            "storage_meta": Instance(Global(_DCP, "StorageMeta"), origin),
            "version": None,
        },
    )


def _described(tensors: Iterable[StoredTensor], objects: Iterable[StoredObject]) -> Iterator[tuple[str, Instance]]:
    for tensor in tensors:
        if tensor.dtype is None:
            raise ValueError(f"{tensor.key} has no dtype")
        properties = (
            Global("torch", tensor.dtype.name),
            Call(Global("torch.serialization", "_get_layout"), ("torch.strided",)),
            False,  # requires_grad
            Call(Global(_DCP, "_MEM_FORMAT_ENCODING"), (0,)),
            False,  # pin_memory
        )
        chunks = [
            Instance(Global(_DCP, "ChunkStorageMetadata"), {"offsets": _size(c.offset), "sizes": _size(c.size)})
            for c in tensor.chunks
        ]
        fields = {
            "properties": Instance(Global(_DCP, "TensorProperties"), properties),
            "size": _size(tensor.shape),
            "chunks": chunks,
        }
        yield tensor.key, Instance(Global(_DCP, "TensorStorageMetadata"), fields)
    for item in objects:
        yield item.key, Instance(Global(_DCP, "BytesStorageMetadata"), None)


def _stored(tensors: Iterable[StoredTensor], objects: Iterable[StoredObject]) -> Iterator[tuple[Instance, Instance]]:
    for tensor in tensors:
        for chunk in tensor.chunks:
            yield _place(tensor.key, _size(chunk.offset), chunk)
    for item in objects:
        yield _place(item.key, None, item)


def _place(key: str, offset: Call | None, place: StoredChunk | StoredObject) -> tuple[Instance, Instance]:
    index = Instance(_INDEX, {"fqn": key, "index": None, "offset": offset})
    info = {"relative_path": place.file, "offset": place.start, "length": place.length}
    return index, Instance(_STORAGE_INFO, info)


def _size(shape: Shape) -> Call:
    return Call(_SIZE, (tuple(shape),))


class _Pairs(Mapping[Any, Any]):
    """Items of a dict, made one at a time: that of a large model would take more memory than all else.

    Nor can the keys of one be hashed here: they become hashable only where torch unpickles them.
    """

    def __init__(self, pairs: Callable[[], Iterator[tuple[Any, Any]]]) -> None:
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs()

    def __len__(self) -> int:
        return sum(1 for _ in self._pairs())

    def __iter__(self) -> Any:
        return (key for key, _ in self._pairs())

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)
