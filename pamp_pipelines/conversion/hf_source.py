"""Reading a Hugging Face model directory: config.json and the headers of its safetensors files. No weight is read.

safetensors format (https://huggingface.co/docs/safetensors): 8 bytes little-endian length N, N bytes of JSON
`{name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__": {…}}`, then the data; offsets count from its start.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.dtypes import DTYPES
from pamp_pipelines.conversion.identity import no_file
from pamp_pipelines.declarations.hf_config import load_hf_config
from pamp_pipelines.errors import InputError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation
_ITEMSIZES = {d.safetensors: d.itemsize for d in DTYPES} | {
    "F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HFTensor:
    """One tensor: `start` is the byte at which it begins in `file`, its elements lie there in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _ITEMSIZES[self.dtype]


@dataclass(frozen=True)
class HFSource:
    """A Hugging Face directory whose headers are consistent."""

    dir: Path
    config: dict[str, Any]
    tensors: Mapping[str, HFTensor]

    @property
    def bytes(self) -> int:
        """Size of all weights."""
        return sum(t.bytes for t in self.tensors.values())


def read_source(directory: Path) -> HFSource:
    """Reads config.json and every header.

    Raises:
        InputError: anything is missing, truncated, given twice or contradicts the index; all problems at once.
    """
    config = load_hf_config(directory)
    problems: list[str] = []
    expected, files = _files(directory, problems)
    indexed = bool(expected)
    tensors: dict[str, HFTensor] = {}
    for file in files:
        for tensor in read_header(file, problems):
            shard = expected.get(tensor.name)
            if tensor.name in tensors:
                problems.append(f"{file}: tensor {tensor.name} is also in {tensors[tensor.name].file.name}")
            elif indexed and shard is None:
                problems.append(f"{file}: tensor {tensor.name} is not in {INDEX}")
            elif shard is not None and shard != file.name:
                problems.append(f"{file}: holds tensor {tensor.name}, which {INDEX} places in {shard}")
            else:
                tensors[tensor.name] = tensor
                expected.pop(tensor.name, None)  # not two copies of the names of a large model
    readable = {f.name for f in files}
    for name, shard in expected.items():
        if shard in readable:
            problems.append(f"{directory / shard}: tensor {name} is missing although {INDEX} places it there")
    if problems:
        raise InputError("\n".join(_summary(problems)))
    return HFSource(directory, config, tensors)


def _summary(problems: list[str], limit: int = 50) -> list[str]:
    rest = len(problems) - limit
    return problems if rest <= 0 else [*problems[:limit], f"… and {rest} more problems"]


def _files(directory: Path, problems: list[str]) -> tuple[dict[str, str], list[Path]]:
    """The index (tensor name -> file name; empty without one) and the files to read."""
    index = directory / INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            pairs = {str(name): sys.intern(str(shard)) for name, shard in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{index}: no index of safetensors files ({error!r})") from None
        shards = sorted(set(pairs.values()))
        for shard in shards:
            if Path(shard).name != shard:
                problems.append(f"{index}: names {shard!r}, which is not a file name in this directory")
            elif not (directory / shard).is_file():
                count = sum(1 for s in pairs.values() if s == shard)
                problems.append(f"{no_file(directory / shard)}; {INDEX} places {count} tensors there")
        present = [directory / s for s in shards if Path(s).name == s and (directory / s).is_file()]
        return pairs, present
    if (directory / SINGLE).is_file():
        return {}, [directory / SINGLE]
    found = sorted(directory.glob("*.safetensors"))
    if any("-of-" in f.name for f in found):
        problems.append(f"{index}: missing, although the directory holds shards such as {found[0].name}")
    if not found:
        other = sorted(f.name for pattern in ("*.bin", "*.pth", "*.gguf") for f in directory.glob(pattern))
        hint = f"; convert {other[0]} to safetensors first" if other else ""
        raise InputError(f"{directory}: holds no safetensors file{hint}")
    problems += [words for file in found if (words := no_file(file))]
    return {}, [file for file in found if file.is_file()]


def read_header(file: Path, problems: list[str]) -> list[HFTensor]:
    """The tensors that a safetensors file announces. What is wrong is appended to `problems`, and left out."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(_MAX_HEADER, size - 8):
            problems.append(f"{file}: truncated or not a safetensors file ({size} bytes); download it again")
            return []
        try:
            header = json.loads(stream.read(length), object_pairs_hook=_unique)
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, AttributeError, RecursionError) as error:
            problems.append(f"{file}: the safetensors header is damaged ({error}); download it again")
            return []
    data = 8 + length
    tensors = [t for name, entry in entries.items() if (t := _tensor(file, name, entry, data, size, problems))]
    end = data
    for tensor in sorted(tensors, key=lambda t: (t.start, t.bytes)):
        if tensor.start < end:
            problems.append(f"{file}: tensor {tensor.name} overlaps the one before it")
        end = max(end, tensor.start + tensor.bytes)
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a name given twice is an error, where json would keep the last one."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"given twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    return result


def _tensor(file: Path, name: str, entry: Any, data: int, size: int, problems: list[str]) -> HFTensor | None:
    try:
        dtype, shape = str(entry["dtype"]), _shared(tuple(int(n) for n in entry["shape"]))
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        problems.append(f"{file}: tensor {name}: malformed header entry ({error!r})")
        return None
    if dtype not in _ITEMSIZES:
        problems.append(f"{file}: tensor {name}: unknown dtype {dtype!r}")
        return None
    if begin < 0 or min(shape, default=0) < 0:
        field = f"data_offsets {[begin, end]}" if begin < 0 else f"shape {list(shape)}"
        problems.append(f"{file}: tensor {name}: {field} has a negative number; download it again")
        return None
    if end - begin != math.prod(shape) * _ITEMSIZES[dtype]:
        problems.append(
            f"{file}: tensor {name}: {end - begin} bytes announced for shape {list(shape)} of {dtype}, "
            f"which takes {math.prod(shape) * _ITEMSIZES[dtype]}"
        )
        return None
    if data + end > size:
        problems.append(f"{file}: truncated: tensor {name} ends at byte {data + end} of {size}; download it again")
        return None
    return HFTensor(name, sys.intern(dtype), shape, file, data + begin)


@functools.lru_cache(maxsize=10_000)
def _shared(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The same shape, as one object for all tensors that have it: large models have few shapes and many tensors."""
    return shape
