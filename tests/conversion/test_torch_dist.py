"""The index of a checkpoint: torch reads ours, we read torch's, nothing is run."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata

from pamp_pipelines.conversion.dtypes import BFLOAT16, FLOAT32
from pamp_pipelines.conversion.torch_dist import (
    StoredChunk,
    StoredObject,
    StoredTensor,
    checkpoint_dir,
    read_checkpoint,
    write_index,
    write_tracker,
)
from pamp_pipelines.errors import InputError


def _layer(number: int) -> StoredChunk:
    return StoredChunk((number, 0, 0), (1, 5, 7), f"__{number}_0.distcp", 10, 90)


TENSORS = [
    StoredTensor("a", BFLOAT16, (2, 5, 7), (_layer(0), _layer(1))),
    StoredTensor("b", FLOAT32, (3,), (StoredChunk((0,), (3,), "__1_0.distcp", 100, 2**34),)),
]
OBJECTS = [StoredObject("x/shard_0_1", "__1_0.distcp", 0, 10)]


def test_torch_unpickles_our_index(tmp_path: Path) -> None:
    write_index(tmp_path, TENSORS, OBJECTS)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    assert isinstance(metadata, Metadata)
    a = metadata.state_dict_metadata["a"]
    assert isinstance(a, TensorStorageMetadata)
    assert (a.size, a.properties.dtype) == (torch.Size((2, 5, 7)), torch.bfloat16)
    assert a.properties.memory_format == torch.contiguous_format
    assert [(c.offsets, c.sizes) for c in a.chunks] == [((0, 0, 0), (1, 5, 7)), ((1, 0, 0), (1, 5, 7))]
    assert isinstance(metadata.state_dict_metadata["x/shard_0_1"], BytesStorageMetadata)
    place = metadata.storage_data[MetadataIndex("b", torch.Size((0,)))]
    assert (place.relative_path, place.offset, place.length) == ("__1_0.distcp", 100, 2**34)
    assert metadata.storage_data[MetadataIndex("x/shard_0_1")].length == 10
    assert pickle.loads(pickle.dumps(metadata)) == metadata


def test_we_read_what_torch_saves(tmp_path: Path) -> None:
    state = {
        "decoder.weight": torch.randn(4, 6),
        "half": torch.ones(3, dtype=torch.float16),
        "counter": torch.tensor(5),
        "rng": [1, 2],
    }
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    stored = read_checkpoint(tmp_path)
    assert stored.tensors["decoder.weight"].shape == (4, 6)
    assert stored.tensors["decoder.weight"].dtype is FLOAT32
    assert stored.tensors["counter"].dtype is None
    assert stored.tensors["counter"].shape == ()
    (chunk,) = stored.tensors["decoder.weight"].chunks
    assert (chunk.offset, chunk.size) == ((0, 0), (4, 6))
    assert any("rng" in key for key in stored.objects)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


def test_code_in_the_index_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    state = {"a": TensorStorageMetadata(None, Evil(mark), [])}  # type: ignore[arg-type]
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(state)))
    with pytest.raises(InputError, match=r"\.metadata: the pickle names builtins\.exec"):
        read_checkpoint(tmp_path)
    assert not mark.exists()
    pickle.loads((tmp_path / ".metadata").read_bytes())
    assert mark.exists(), "the pickle is harmless, so the test proves nothing"


@pytest.mark.parametrize("name", ["os.system", "builtins.getattr", "builtins.eval", "subprocess.Popen", "torch.load",
                                  "torch.hub.load", "torch.distributed.checkpoint_evil.f", "numpy.load"])  # fmt: skip
def test_other_names_become_nothing(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    (tmp_path / ".metadata").write_bytes(f"c{module}\n{attribute}\n(Vx\ntR.".encode())
    with pytest.raises(InputError):
        read_checkpoint(tmp_path)


def test_damage(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing; the checkpoint was never finished"):
        read_checkpoint(tmp_path)
    write_index(tmp_path, TENSORS, OBJECTS)
    whole = (tmp_path / ".metadata").read_bytes()
    for content in (b"", whole[: len(whole) // 2], pickle.dumps({"a": 1}), pickle.dumps(None)):
        (tmp_path / ".metadata").write_bytes(content)
        with pytest.raises(InputError, match=r"\.metadata"):
            read_checkpoint(tmp_path)


@pytest.mark.parametrize("fields", [{}, {"size": 5}, {"size": (2.5,)}, {"size": (-1,)}, {"size": (1,) * 9}])
def test_a_tensor_without_its_shape_is_damage(tmp_path: Path, fields: dict[str, Any]) -> None:
    write_index(tmp_path, TENSORS, OBJECTS)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    tensor = metadata.state_dict_metadata[TENSORS[0].key]
    del tensor.__dict__["size"]
    tensor.__dict__.update(fields)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata, 2))
    with pytest.raises(InputError, match=r"\.metadata: not the index of a torch_dist checkpoint"):
        read_checkpoint(tmp_path)


def test_all_missing_and_short_files_at_once(tmp_path: Path) -> None:
    outside = StoredTensor("c", FLOAT32, (1,), (StoredChunk((0,), (1,), "../secret", 0, 4),))
    write_index(tmp_path, [*TENSORS, outside], OBJECTS)
    (tmp_path / "__1_0.distcp").write_bytes(b"short")
    with pytest.raises(InputError) as caught:
        read_checkpoint(tmp_path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "outside its own directory" in lines[0]
    assert "__0_0.distcp: missing" in lines[1]
    assert "__1_0.distcp: 5 of " in lines[2]
    assert lines[2].endswith("bytes that .metadata points up to: truncated")


def test_files_that_lack_the_same_are_named_in_one_sentence(tmp_path: Path) -> None:
    tensors = [
        StoredTensor(f"t{n}", FLOAT32, (1,), (StoredChunk((0,), (1,), f"__{n}_0.distcp", 0, 4),)) for n in range(8)
    ]
    write_index(tmp_path, tensors, [])
    with pytest.raises(InputError) as caught:
        read_checkpoint(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / '__0_0.distcp'}: missing, although .metadata points to it; so are __1_0.distcp, __2_0.distcp, "
        "__3_0.distcp, __4_0.distcp and 3 more"
    )


def test_finding_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint here"):
        checkpoint_dir(tmp_path)
    root = tmp_path / "checkpoint"
    write_tracker_dir(root, "release")
    assert checkpoint_dir(root) == checkpoint_dir(tmp_path) == checkpoint_dir(root / "release") == root / "release"
    runs = tmp_path / "run" / "checkpoints"
    write_tracker_dir(runs, "iter_0000020", "20\n")
    assert checkpoint_dir(tmp_path / "run") == runs / "iter_0000020"
    (runs / "latest_checkpointed_iteration.txt").write_text("30")
    with pytest.raises(InputError, match=r"iter_0000030/\.metadata: missing"):
        checkpoint_dir(runs)
    (runs / "latest_checkpointed_iteration.txt").write_text("")
    with pytest.raises(InputError, match="holds ''"):
        checkpoint_dir(runs)


def write_tracker_dir(root: Path, name: str, tracked: str | None = None) -> None:
    (root / name).mkdir(parents=True)
    write_index(root / name, [], [])
    write_tracker(root, tracked or name)
