"""Import: what torch reads from the checkpoint is what Megatron needs, and export gives the source back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pamp_pipelines.conversion.verify_files import verify_checkpoint_files
from pamp_pipelines.lake.events import Event

CASES = [(f, t, "bfloat16") for f in ("llama", "mistral", "qwen2", "qwen3") for t in (False, True)]
CASES += [("llama", False, "float32"), ("qwen2", True, "float16")]


@pytest.mark.parametrize(("family", "tied", "dtype"), CASES)
def test_round_trip(
    family: str,
    tied: bool,
    dtype: str,
    build: Any,
    weights: Any,
    reference: Any,
    load_checkpoint: Any,
    imported: Callable[..., Path],
    exported: Callable[..., Path],
) -> None:
    source = build(family, tied, dtype)
    original = weights(source)
    target = imported(source, chunk_bytes=3000)  # every matrix becomes several chunks
    checkpoint = target / "checkpoint" / "release"

    expected = reference(original, family, tied)
    stored = load_checkpoint(checkpoint)
    assert stored.keys() == expected.keys()
    for key, tensor in expected.items():
        assert stored[key].dtype == getattr(torch, dtype)
        assert torch.equal(stored[key], tensor), key

    result = weights(exported(checkpoint, target / "hf_template"))
    assert result.keys() == original.keys()
    for name, tensor in original.items():
        assert result[name].dtype == tensor.dtype
        assert torch.equal(result[name], tensor), name

    seen: list[Event] = []
    verdict = verify_checkpoint_files(source, target, on_event=seen.append).checks
    assert [c.passed for c in verdict] == [True, True, True], verdict
    last = seen[-1].data
    assert last["done_bytes"] == last["total_bytes"]
    assert (last["stage"], last["seconds_left"], last["gigabytes_per_second"] >= 0) == ("verify", 0.0, True)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_export_is_the_same_model_for_transformers(
    family: str, build: Any, imported: Callable[..., Path], exported: Callable[..., Path]
) -> None:
    from transformers import AutoModelForCausalLM

    source = build(family, True, "bfloat16")
    target = imported(source)
    result = exported(target / "checkpoint" / "release", target / "hf_template")
    first = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    second, info = AutoModelForCausalLM.from_pretrained(result, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    tokens = torch.arange(12).reshape(2, 6) * 17 % 251
    with torch.no_grad():
        assert torch.equal(first(tokens).logits, second(tokens).logits)


def test_sharded_source(build: Any, weights: Any, imported: Callable[..., Path], exported: Callable[..., Path]) -> None:
    source = build("qwen3", False, "bfloat16", "60KB")
    assert len(list(source.glob("*.safetensors"))) > 3
    target = imported(source)
    assert verify_checkpoint_files(source, target).checks[2].passed
    result = exported(target / "checkpoint" / "release", target / "hf_template", max_shard_bytes=50_000)
    files = sorted(result.glob("model-*.safetensors"))
    assert len(files) > 3
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(result, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    original = weights(source)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, original[name]), name


def test_template_is_the_source_without_weights(build: Any, imported: Callable[..., Path], tmp_path: Path) -> None:
    source = build("llama", False, "bfloat16")
    extra = {
        "tokenizer.model": b"\x00\x01spm",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ x }}\n",
        "qwen.tiktoken": b"IQ== 0\n",
        "LICENSE": b"Apache\n",
    }
    left = {"modeling_custom.py": b"raise SystemExit", "pytorch_model.bin": b"x", ".gitattributes": b"x"}
    copy = tmp_path / "source"
    copy.mkdir()
    for file in source.iterdir():
        (copy / file.name).symlink_to(file)  # a hub cache is made of links
    for name, content in (extra | left).items():
        (copy / name).write_bytes(content)
    template = imported(copy) / "hf_template"
    for name in ("config.json", "generation_config.json"):
        assert (template / name).read_bytes() == (source / name).read_bytes()
    for name, content in extra.items():
        assert (template / name).read_bytes() == content
        assert not (template / name).is_symlink()
    assert not any((template / name).exists() for name in (*left, "model.safetensors"))


def test_extra_states_and_common_state(build: Any, imported: Callable[..., Path]) -> None:
    """Transformer Engine asks for an `_extra_state` of every module with parameters; a missing key is a refusal."""
    import io

    from pamp_pipelines.conversion.torch_dist import read_checkpoint

    target = imported(build("qwen3", False, "bfloat16"))
    stored = read_checkpoint(target / "checkpoint" / "release")
    layers = {k for k in stored.objects if k.startswith("decoder.layers.")}
    modules = {k.split("._extra_state")[0].removeprefix("decoder.layers.") for k in layers}
    assert modules == {
        "self_attention.linear_qkv", "self_attention.linear_proj", "self_attention.q_layernorm",
        "self_attention.k_layernorm", "mlp.linear_fc1", "mlp.linear_fc2",
    }  # fmt: skip
    assert len(layers) == 6 * 3
    assert "decoder.final_layernorm._extra_state/shard_0_1" in stored.objects

    def load(key: str) -> Any:
        item = stored.objects[key]
        data = (stored.dir / item.file).read_bytes()[item.start : item.start + item.length]
        return torch.load(io.BytesIO(data), weights_only=True)

    (state,) = load("decoder.layers.mlp.linear_fc1._extra_state/shard_2_3")
    assert state.dtype == torch.uint8
    assert state.numel() == 0
    (common,) = load("common_state/shard_0_1")
    assert common["checkpoint_version"] == 3.0
    assert common["content_metadata"]["singleton_local_shards"] is False


def test_copy_of_a_tied_embedding(build: Any, imported: Callable[..., Path], tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    from pamp_pipelines.errors import InputError

    source = tmp_path / "source"
    shutil.copytree(build("llama", True, "bfloat16"), source)
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.ones(10)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    target = imported(source)
    assert verify_checkpoint_files(source, target).checks[1].passed
    tensors["lm_head.weight"][250, 47] += 1
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"ties the embeddings, but lm_head\.weight differs"):
        imported(source)


def test_several_processes_write_what_one_writes(
    build: Any, imported: Callable[..., Path], exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pamp_pipelines.conversion import buckets, plan

    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 100_000)
    source = build("llama", False, "bfloat16")
    one = imported(source, chunk_bytes=20_000)
    monkeypatch.setattr(plan, "_PROCESS_BYTES", 1000)
    two = imported(source, chunk_bytes=20_000, workers=2)
    files = sorted(f.relative_to(one) for f in one.rglob("*") if f.is_file())
    assert len([f for f in files if f.suffix == ".distcp"]) > 2
    for file in files:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    release = two / "checkpoint" / "release"
    first = exported(release, two / "hf_template", workers=2)
    assert (first / "model.safetensors").stat().st_size > 100_000
    monkeypatch.undo()
    second = exported(release, two / "hf_template")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
