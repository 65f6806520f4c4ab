"""Wrong Hugging Face directories: every problem is found, named, and found together."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pamp_pipelines.conversion.hf_source import INDEX, read_source
from pamp_pipelines.conversion.job import plain_import_job
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.conversion.plan import plan_import
from pamp_pipelines.errors import InputError


@pytest.fixture
def single(build: Any, tmp_path: Path) -> Path:
    """A model in one file, to be damaged."""
    return Path(shutil.copytree(build("qwen2", False, "bfloat16"), tmp_path / "single"))


@pytest.fixture
def sharded(build: Any, tmp_path: Path) -> Path:
    """A model in several files, to be damaged."""
    return Path(shutil.copytree(build("qwen3", False, "bfloat16", "60KB"), tmp_path / "sharded"))


def problems(directory: Path) -> str:
    try:
        source = read_source(directory)
        plan_import(layout_of(source.config), source)
    except InputError as error:
        return str(error)
    return "none"


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def test_a_sound_directory(single: Path, sharded: Path) -> None:
    for directory in (single, sharded):
        source = read_source(directory)
        assert source.bytes == sum(
            t.numel() * 2 for f in directory.glob("*.safetensors") for t in load_file(f).values()
        )
        plan_import(layout_of(source.config), source)


@pytest.mark.parametrize("left", [0, 5, 100, 5000, -1])
def test_truncated_file(single: Path, left: int) -> None:
    file = single / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    message = problems(single)
    assert "model.safetensors" in message
    assert "truncated" in message
    assert "download it again" in message


def test_many_problems_at_once(sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    (sharded / shards[0]).unlink()
    (sharded / shards[1]).write_bytes((sharded / shards[1]).read_bytes()[:-10])
    index["weight_map"]["model.ghost.weight"] = shards[2]
    index["weight_map"]["model.traveller.weight"] = "../elsewhere.safetensors"
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    message = problems(sharded)
    assert f"{shards[0]}: missing; model.safetensors.index.json places" in message
    assert "truncated" in message
    assert "model.ghost.weight is missing although" in message
    assert "'../elsewhere.safetensors', which is not a file name" in message


def test_tensor_in_two_files(sharded: Path) -> None:
    shards = sorted(sharded.glob("model-*.safetensors"))
    name = next(iter(load_file(shards[0])))
    rewrite(shards[1], lambda tensors: tensors.update({name: torch.ones(2)}))
    assert f"{shards[1].name}: tensor {name} is also in {shards[0].name}" in problems(sharded)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    other = next(iter(index["weight_map"]))
    index["weight_map"][other] = shards[2].name
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"holds tensor {other}, which model.safetensors.index.json places in {shards[2].name}" in problems(sharded)


def test_tensor_in_two_files_without_index(single: Path) -> None:
    whole = load_file(single / "model.safetensors")
    (single / "model.safetensors").unlink()
    save_file(whole, single / "a.safetensors")
    save_file({"model.norm.weight": whole["model.norm.weight"]}, single / "b.safetensors")
    assert "model.norm.weight is also in a.safetensors" in problems(single)


def test_name_twice_in_a_header(single: Path) -> None:
    file = single / "model.safetensors"
    entry = '{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}'
    header = f'{{"model.norm.weight":{entry},"model.norm.weight":{entry}}}'.encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    assert "given twice: model.norm.weight" in problems(single)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"dtype": "BF16", "shape": [2], "data_offsets": [0, 2]},
            "2 bytes announced for shape [2] of BF16, which takes 4",
        ),
        ({"dtype": "BF17", "shape": [1], "data_offsets": [0, 2]}, "unknown dtype 'BF17'"),
        ({"dtype": "BF16", "shape": [1]}, "malformed header entry"),
        ({"dtype": "BF16", "shape": [-1], "data_offsets": [4, 2]}, "shape [-1] has a negative number"),
        ({"dtype": "BF16", "shape": [4], "data_offsets": [-8, 0]}, "data_offsets [-8, 0] has a negative number"),
    ],
)
def test_header_entries(single: Path, entry: dict[str, Any], words: str) -> None:
    header = json.dumps({"x": entry}).encode()
    (single / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert words in problems(single)


def test_overlapping_tensors(single: Path) -> None:
    entries = {n: {"dtype": "F32", "shape": [2], "data_offsets": [o, o + 8]} for n, o in (("a", 0), ("b", 4))}
    header = json.dumps(entries).encode()
    (single / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    assert "tensor b overlaps" in problems(single)


def test_tensors_that_do_not_fit_the_config(single: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.k_proj.bias"]
        tensors["model.layers.0.self_attn.o_proj.bias"] = torch.zeros(48)
        tensors["model.norm.weight"] = torch.zeros(47, dtype=torch.bfloat16)
        tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(92, 48, dtype=torch.float8_e4m3fn)
        tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(48, 92, dtype=torch.int8)

    rewrite(single / "model.safetensors", change)
    lines = problems(single).splitlines()
    assert len(lines) == 5
    for words in (
        "model.layers.1.self_attn.k_proj.bias is missing",
        "model.layers.0.self_attn.o_proj.bias is unknown to architecture qwen2",
        "model.norm.weight has shape [47]; config.json implies [48]",
        "up_proj.weight is F8_E4M3: config.json declares no fp8 weight_block_size",
        "down_proj.weight is I8; weights are",
    ):
        assert any(words in line for line in lines), (words, lines)


def test_mixed_types_of_one_checkpoint_tensor(single: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.1.self_attn.v_proj.weight"
        tensors[name] = tensors[name].float()

    rewrite(single / "model.safetensors", change)
    assert "linear_qkv.weight are BF16 and F32" in problems(single)


def test_missing_files(single: Path, sharded: Path, tmp_path: Path) -> None:
    assert "config.json" in problems(tmp_path)
    (sharded / "model.safetensors.index.json").unlink()
    assert "model.safetensors.index.json: missing, although the directory holds shards" in problems(sharded)
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    assert "convert pytorch_model.bin to safetensors first" in problems(single)
    (single / "config.json").write_text("{")
    assert "config.json" in problems(single)
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": 5}')
    assert "no index of safetensors files" in problems(sharded)


@pytest.mark.parametrize("indexed", [False, True])
def test_what_is_no_file_is_named_and_not_waited_for(single: Path, indexed: bool) -> None:
    file = single / "model.safetensors"
    names = list(load_file(file))
    if indexed:
        (single / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, file.name)}))
    file.unlink()
    os.mkfifo(file)
    assert f"{file}: not a file" in problems(single)
    with pytest.raises(InputError, match=r"model\.safetensors: not a file"):
        plain_import_job(single, single.parent / "out")
    file.unlink()
    file.symlink_to("../blobs/12ab")
    assert f"{file}: a link to ../blobs/12ab, which is not there" in problems(single)
    with pytest.raises(InputError, match=r"a link to \.\./blobs/12ab, which is not there"):
        plain_import_job(single, single.parent / "out")


def test_a_pipe_for_a_config_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "config.json is not a file" in problems(tmp_path)


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_json_of_a_hundred_thousand_brackets(single: Path, name: str) -> None:
    (single / name).write_text("[" * 100_000)
    assert name in problems(single)


def test_a_header_of_a_hundred_thousand_brackets(single: Path) -> None:
    (single / "model.safetensors").write_bytes(struct.pack("<Q", 100_000) + b"[" * 100_000)
    assert "the safetensors header is damaged" in problems(single)
