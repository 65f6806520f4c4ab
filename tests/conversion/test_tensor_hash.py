"""The content of a checkpoint: equal for equal tensors, whatever wrote them and however they are cut."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pamp_pipelines.conversion import tensor_hash
from pamp_pipelines.conversion.dtypes import BFLOAT16, FLOAT32, DType
from pamp_pipelines.conversion.payload import write_object, write_tensor
from pamp_pipelines.conversion.tensor_hash import tensors_hash
from pamp_pipelines.conversion.torch_dist import (
    StoredChunk,
    StoredObject,
    StoredTensor,
    read_checkpoint,
    write_index,
)
from pamp_pipelines.errors import VerificationFailed

# Axes: L layers 2, R rows 6, C columns 5
SHAPE = (2, 6, 5)
WEIGHT = np.arange(60, dtype="<f4").reshape(SHAPE)
WHOLE = (((0, 0, 0), SHAPE),)
BY_LAYER = (((1, 0, 0), (1, 6, 5)), ((0, 0, 0), (1, 6, 5)))
BY_ROWS = tuple(((layer, row, 0), (1, 3, 5)) for row in (3, 0) for layer in range(2))
BY_COLUMNS = tuple(((layer, 0, column), (1, 6, size)) for layer in range(2) for column, size in ((0, 2), (2, 3)))
Boxes = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


def _write(
    directory: Path,
    boxes: Boxes = WHOLE,
    weight: np.ndarray = WEIGHT,
    key: str = "w",
    dtype: DType = FLOAT32,
    args: str = "/lake/a",
) -> str:
    """A checkpoint of one tensor cut into boxes, and an object before it; returns its content at step 7."""
    directory.mkdir()
    chunks = []
    with (directory / "__0_0.distcp").open("w+b") as stream:
        item = StoredObject("common_state/shard_0_1", "__0_0.distcp", 0, write_object(stream, {"save": args}))
        for offset, size in boxes:
            part = weight[tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))]
            start = stream.seek(0, 2)
            length = write_tensor(stream, dtype, size, [np.ascontiguousarray(part)])
            chunks.append(StoredChunk(offset, size, "__0_0.distcp", start, length))
    write_index(directory, [StoredTensor(key, dtype, weight.shape, tuple(chunks))], [item])
    return tensors_hash(read_checkpoint(directory), 7)


@pytest.mark.parametrize("elements", [1, 4, 7, 1000])
def test_the_layout_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """Whatever the size of the blocks that are read at once."""
    whole = _write(tmp_path / "whole")
    monkeypatch.setattr(tensor_hash, "COPY_BYTES", elements * FLOAT32.itemsize)
    for name, boxes in {"whole again": WHOLE, "layer": BY_LAYER, "rows": BY_ROWS, "columns": BY_COLUMNS}.items():
        assert _write(tmp_path / name, boxes) == whole, name


def test_objects_do_not_count(tmp_path: Path) -> None:
    assert _write(tmp_path / "a", args="/lake/a/v0001") == _write(tmp_path / "b", args="/elsewhere")


def test_one_flipped_bit_another_key_type_shape_or_step_count(tmp_path: Path) -> None:
    contents = [_write(tmp_path / "first")]
    flipped = WEIGHT.copy()
    flipped.view("<u4")[1, 5, 4] ^= 1
    contents.append(_write(tmp_path / "flipped", BY_ROWS, flipped))
    contents.append(_write(tmp_path / "key", key="v"))
    halves = WEIGHT.view("<u2")
    contents.append(_write(tmp_path / "type", (((0, 0, 0), halves.shape),), halves, dtype=BFLOAT16))
    contents.append(_write(tmp_path / "shape", (((0, 0, 0), (2, 5, 6)),), WEIGHT.reshape(2, 5, 6)))
    contents.append(tensors_hash(read_checkpoint(tmp_path / "first"), 8))
    assert len(set(contents)) == len(contents)


def test_a_flipped_byte_of_the_file_counts(tmp_path: Path) -> None:
    content = _write(tmp_path / "a", BY_LAYER)
    file = tmp_path / "a/__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[data.find(WEIGHT[1].tobytes()) + 3] ^= 1
    file.write_bytes(data)
    assert tensors_hash(read_checkpoint(tmp_path / "a"), 7) != content


def test_chunks_that_leave_a_hole_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="chunks hold 30 of 60 elements of w"):
        _write(tmp_path / "a", BY_LAYER[:1])


def test_a_type_without_a_name_here_is_hashed_as_it_is_stored(tmp_path: Path) -> None:
    """Counters and other types of an optimizer."""
    import torch
    import torch.distributed.checkpoint as dcp

    contents = []
    for name, value in {"a": 1, "b": 1, "c": 2}.items():
        dcp.save({"steps": torch.full((3,), value)}, checkpoint_id=tmp_path / name, no_dist=True)
        contents.append(tensors_hash(read_checkpoint(tmp_path / name), 7))
    assert contents[0] == contents[1] != contents[2]
