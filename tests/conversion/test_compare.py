"""Checkpoints of the same weights at different layouts, and of weights that differ."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pamp_pipelines.conversion.compare import differences
from pamp_pipelines.conversion.layout import Layout, layout_of
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, read_checkpoint
from pamp_pipelines.errors import InputError
from tests.conversion.test_export import tensor_parallel, trained, whole, write_checkpoint


@pytest.fixture
def original(build: Any, weights: Any, reference: Any, tmp_path: Path) -> tuple[Layout, dict[str, torch.Tensor]]:
    source = build("qwen2", False, "bfloat16")
    tensors = reference(weights(source), "qwen2", False)
    write_checkpoint(tmp_path / "original", tensors, whole)
    import json

    return layout_of(json.loads((source / "config.json").read_text())), tensors


def compared(layout: Layout, folder: Path, name: str) -> list[str]:
    def read(directory: str) -> StoredCheckpoint:
        return read_checkpoint(folder / directory)

    return [str(difference) for difference in differences(layout, read("original"), read(name))]


def test_layout_padding_and_a_wider_type_make_no_difference(
    original: tuple[Layout, dict[str, torch.Tensor]], build: Any, weights: Any, reference: Any, tmp_path: Path
) -> None:
    layout, tensors = original
    write_checkpoint(tmp_path / "parallel", tensors, tensor_parallel)
    write_checkpoint(tmp_path / "wide", {k: t.float() for k, t in tensors.items()}, tensor_parallel)
    hf = weights(build("qwen2", False, "bfloat16"))
    write_checkpoint(tmp_path / "trained", trained(hf, "qwen2", False, reference), tensor_parallel)
    assert compared(layout, tmp_path, "parallel") == []
    assert compared(layout, tmp_path, "wide") == []
    assert compared(layout, tmp_path, "trained") == []


def test_what_differs_is_named(original: tuple[Layout, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    layout, tensors = original
    wide = {key: tensor.float() for key, tensor in tensors.items()}
    # less than a bfloat16 can tell
    wide["decoder.layers.mlp.linear_fc2.weight"][1, 5, 7] *= 1 + 2**-20
    write_checkpoint(tmp_path / "wide", wide, tensor_parallel)
    (line,) = compared(layout, tmp_path, "wide")
    assert line == "model.layers.1.mlp.down_proj.weight: 1 elements differ, the first at [5, 7]"

    write_checkpoint(tmp_path / "half", {k: t.half() for k, t in tensors.items()}, whole)
    assert compared(layout, tmp_path, "half")[0] == "model.embed_tokens.weight: is float16, was bfloat16"
    write_checkpoint(tmp_path / "less", {k: t for k, t in tensors.items() if "fc2" not in k}, whole)
    with pytest.raises(InputError, match=r"linear_fc2\.weight is missing"):
        compared(layout, tmp_path, "less")


def test_a_narrower_type_is_refused(original: tuple[Layout, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    layout, tensors = original
    write_checkpoint(tmp_path / "wide", {k: t.float() for k, t in tensors.items()}, whole)
    found = differences(layout, read_checkpoint(tmp_path / "wide"), read_checkpoint(tmp_path / "original"))
    assert str(found[0]) == "model.embed_tokens.weight: is bfloat16, was float32"
