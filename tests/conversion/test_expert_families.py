"""Families with routed experts and with latent attention: tables against transformers, both ways, every layout.

Shape legend: L layers 3, H hidden 48, F ffn 92, M moe ffn 28, V vocab 251, heads 6, E experts 8 (9 for Mixtral).
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pamp_pipelines.conversion.architectures import megatron_arguments, unsupported
from pamp_pipelines.conversion.importer import plan_of
from pamp_pipelines.conversion.job import ImportJob
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.conversion.verify_files import verify_checkpoint_files
from pamp_pipelines.errors import InputError
from tests.conversion.test_export import write_checkpoint

LAYERS, HIDDEN, VOCAB = 3, 48, 251
_COMMON: dict[str, Any] = {
    "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": 92, "vocab_size": VOCAB,
    "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 512,
    "rms_norm_eps": 3e-5, "initializer_range": 0.05, "rope_parameters": {"rope_type": "default", "rope_theta": 54321.0},
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28}
_LATENT = {
    "num_key_value_heads": 6, "kv_lora_rank": 24, "qk_nope_head_dim": 14, "qk_rope_head_dim": 6, "v_head_dim": 10,
    "moe_intermediate_size": 28, "n_routed_experts": 8, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": {"model_type": "mixtral", "head_dim": 20, "num_local_experts": 9, "sliding_window": None},
    "qwen2_moe": {"model_type": "qwen2_moe", "head_dim": 20, **_EXPERTS, "shared_expert_intermediate_size": 36},
    "qwen2_moe-mixed": {
        "model_type": "qwen2_moe", "head_dim": 20, **_EXPERTS, "shared_expert_intermediate_size": 36,
        "decoder_sparse_step": 2, "qkv_bias": False,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", "head_dim": 20, **_EXPERTS, "norm_topk_prob": True},
    "qwen3_moe-mixed": {"model_type": "qwen3_moe", "head_dim": 20, **_EXPERTS, "mlp_only_layers": [1]},
    "deepseek_v2": {"model_type": "deepseek_v2", **_LATENT, "q_lora_rank": 26, "n_shared_experts": 3},
    "deepseek_v2-lite": {"model_type": "deepseek_v2", **_LATENT, "q_lora_rank": None, "n_shared_experts": 3},
    "deepseek_v3": {
        "model_type": "deepseek_v3", **_LATENT, "q_lora_rank": 26, "n_shared_experts": 3, "n_group": 4, "topk_group": 2,
    },
    "moonlight": {
        "model_type": "deepseek_v3", **_LATENT, "q_lora_rank": None, "n_shared_experts": 3, "n_group": 1,
        "topk_group": 1,
    },
}  # fmt: skip
CLASSES = {
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    config = {**_COMMON, **CONFIGS[family], **changes}
    return {**config, "architectures": [CLASSES[config["model_type"]]]}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Hugging Face directory of a tiny model, made once by transformers, with norms and biases at random."""
    from transformers import AutoConfig, AutoModelForCausalLM

    made: dict[str, Path] = {}

    def build(family: str) -> Path:
        if family not in made:
            directory = tmp_path_factory.mktemp(family)
            (directory / "config.json").write_text(json.dumps(config_of(family)))
            torch.manual_seed(len(made))
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
            with torch.no_grad():
                for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                    if not name.endswith("inv_freq"):
                        tensor.normal_(1.0 if "norm" in name else 0.0, 0.1)
            model.to(torch.bfloat16).save_pretrained(directory)
            (directory / "config.json").write_text(json.dumps(config_of(family)))
            made[family] = directory
        return made[family]

    return build


@pytest.mark.parametrize("family", CONFIGS)
def test_table_has_the_tensors_that_transformers_saves(family: str, source: Any, weights: Any) -> None:
    saved = {name: tuple(tensor.shape) for name, tensor in weights(source(family)).items()}
    layout = layout_of(config_of(family))
    assert layout.hf_shapes() == saved
    assert layout.parameters() == sum(torch.Size(shape).numel() for shape in saved.values())


@pytest.mark.parametrize("family", CONFIGS)
def test_round_trip(family: str, source: Any, weights: Any, imported: Any, exported: Any) -> None:
    target = imported(source(family), chunk_bytes=2000)
    verdict = verify_checkpoint_files(source(family), target).checks
    assert [c.passed for c in verdict] == [True, True, True], verdict
    result = exported(target / "checkpoint" / "release", target / "hf_template")
    expected, found = weights(source(family)), weights(result)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name

    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(result, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    tokens = torch.arange(12).reshape(2, 6) * 17 % VOCAB
    original = AutoModelForCausalLM.from_pretrained(source(family), dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, original(tokens).logits)


def test_expert_tensors_written_down_by_hand(source: Any, weights: Any, imported: Any, load_checkpoint: Any) -> None:
    """The layout of Megatron's experts, independent of the tables."""
    hf = weights(source("mixtral"))
    stored = load_checkpoint(imported(source("mixtral")) / "checkpoint" / "release")

    def expert(layer: int, number: int, name: str) -> torch.Tensor:
        return hf[f"model.layers.{layer}.block_sparse_moe.experts.{number}.{name}.weight"]

    gate_up = [
        torch.stack([torch.cat([expert(i, e, "w1"), expert(i, e, "w3")]) for e in range(9)]) for i in range(LAYERS)
    ]
    down = [torch.stack([expert(i, e, "w2") for e in range(9)]) for i in range(LAYERS)]
    router = [hf[f"model.layers.{i}.block_sparse_moe.gate.weight"] for i in range(LAYERS)]
    prefix = "decoder.layers.mlp."
    assert torch.equal(stored[prefix + "experts.experts.linear_fc1.weight"], torch.stack(gate_up))
    assert torch.equal(stored[prefix + "experts.experts.linear_fc2.weight"], torch.stack(down))
    assert torch.equal(stored[prefix + "router.weight"], torch.stack(router))


def parallel_grid(family: str, tensor: int, expert: int) -> Callable[[str, torch.Tensor], Any]:
    """Chunks as ranks of tensor and expert parallelism write them: one per layer, per experts' half, per rank."""
    layout = layout_of(config_of(family))
    entries = {key: entry for entry, key, _ in layout.tensors()}

    def grid(key: str, value: torch.Tensor) -> Any:
        entry = entries[key]
        shape = tuple(value.shape)
        leading = len(shape) - len(entry.block_axes)
        steps = [1 if axis < leading else n for axis, n in enumerate(shape)]
        if entry.per_expert:
            # ranks of expert parallelism hold E / expert experts each; the last may hold fewer
            steps[leading - 1] = -(-shape[leading - 1] // expert)
        if entry.tensor_parallel_axis is not None:
            axis = leading + entry.tensor_parallel_axis
            steps[axis] = -(-shape[axis] // tensor)
        spans = [range(0, n, step) for n, step in zip(shape, steps, strict=True)]
        for offset in torch.cartesian_prod(*[torch.tensor(list(s)) for s in spans]).reshape(-1, len(shape)).tolist():
            size = tuple(min(step, n - o) for o, n, step in zip(offset, shape, steps, strict=True))
            yield tuple(offset), size

    return grid


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("expert", [1, 2, 4])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_checkpoints_of_any_tensor_and_expert_parallel_size(
    family: str,
    tensor: int,
    expert: int,
    source: Any,
    weights: Any,
    imported: Any,
    exported: Any,
    load_checkpoint: Any,
    tmp_path: Path,
) -> None:
    stored = load_checkpoint(imported(source(family)) / "checkpoint" / "release")
    write_checkpoint(tmp_path / "grid", stored, lambda k, t: list(parallel_grid(family, tensor, expert)(k, t)))
    found = weights(exported(tmp_path / "grid", source(family)))
    expected = weights(source(family))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


# multi-token prediction ----------------------------------------------------------------------------------------------


def with_prediction(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """DeepSeek-V3 with a layer of multi-token prediction, as released; transformers cannot save one."""
    shutil.copytree(source, target)
    config = config_of("deepseek_v3", num_nextn_predict_layers=1)
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(target / "model.safetensors")
    for name, shape in layout_of(config).hf_shapes().items():
        if name not in tensors:
            tensors[name] = torch.randn(shape).to(torch.bfloat16)
    for name, original in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        tensors[f"model.layers.{LAYERS}.{name}.weight"] = tensors[f"{original}.weight"].clone()
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def test_multi_token_prediction_goes_both_ways(
    source: Any, weights: Any, imported: Any, exported: Any, load_checkpoint: Any, tmp_path: Path
) -> None:
    directory = with_prediction(source("deepseek_v3"), tmp_path / "source", lambda tensors: None)
    target = imported(directory)
    stored = load_checkpoint(target / "checkpoint" / "release")
    hf = weights(directory)
    assert torch.equal(stored["mtp.layers.0.eh_proj.weight"], hf[f"model.layers.{LAYERS}.eh_proj.weight"])
    assert torch.equal(
        stored["mtp.layers.0.transformer_layer.self_attention.linear_kv_up_proj.weight"],
        hf[f"model.layers.{LAYERS}.self_attn.kv_b_proj.weight"],
    )
    assert [c.passed for c in verify_checkpoint_files(directory, target).checks] == [True, True, True]
    found = weights(exported(target / "checkpoint" / "release", target / "hf_template"))
    assert found.keys() == hf.keys()
    assert all(torch.equal(found[name], value) for name, value in hf.items())


def test_prediction_tensors_written_down_by_hand(
    source: Any, weights: Any, imported: Any, load_checkpoint: Any, tmp_path: Path
) -> None:
    """Megatron's layer of multi-token prediction, independent of the tables; no library runs it, so no logits tell."""
    directory = with_prediction(source("deepseek_v3"), tmp_path / "source", lambda tensors: None)
    prefix = f"model.layers.{LAYERS}."
    hf = {n.removeprefix(prefix): t for n, t in weights(directory).items() if n.startswith(prefix)}
    attention = {
        "linear_q_down_proj.weight": "q_a_proj.weight",
        "linear_q_up_proj.layer_norm_weight": "q_a_layernorm.weight",
        "linear_q_up_proj.weight": "q_b_proj.weight",
        "linear_kv_down_proj.weight": "kv_a_proj_with_mqa.weight",
        "linear_kv_up_proj.layer_norm_weight": "kv_a_layernorm.weight",
        "linear_kv_up_proj.weight": "kv_b_proj.weight",
        "linear_proj.weight": "o_proj.weight",
    }
    experts = range(8)
    down = [hf[f"mlp.experts.{e}.down_proj.weight"] for e in experts]

    def gate_up(module: str) -> torch.Tensor:
        return torch.cat([hf[f"mlp.{module}.gate_proj.weight"], hf[f"mlp.{module}.up_proj.weight"]])

    layer = {
        "input_layernorm.weight": hf["input_layernorm.weight"],
        **{f"self_attention.{ours}": hf[f"self_attn.{theirs}"] for ours, theirs in attention.items()},
        "pre_mlp_layernorm.weight": hf["post_attention_layernorm.weight"],
        "mlp.router.weight": hf["mlp.gate.weight"],
        "mlp.router.expert_bias": hf["mlp.gate.e_score_correction_bias"],
        "mlp.experts.experts.linear_fc1.weight": torch.stack([gate_up(f"experts.{e}") for e in experts]),
        "mlp.experts.experts.linear_fc2.weight": torch.stack(down),
        "mlp.shared_experts.linear_fc1.weight": gate_up("shared_experts"),
        "mlp.shared_experts.linear_fc2.weight": hf["mlp.shared_experts.down_proj.weight"],
    }
    expected = {
        **{f"mtp.layers.0.{name}.weight": hf[f"{name}.weight"] for name in ("enorm", "hnorm", "eh_proj")},
        "mtp.layers.0.final_layernorm.weight": hf["shared_head.norm.weight"],
        **{f"mtp.layers.0.transformer_layer.{name}": tensor for name, tensor in layer.items()},
    }
    stored = load_checkpoint(imported(directory) / "checkpoint" / "release")
    found = {key: tensor for key, tensor in stored.items() if key.startswith("mtp.")}
    assert found.keys() == expected.keys()
    assert [key for key, tensor in expected.items() if not torch.equal(found[key], tensor)] == []


def test_declared_prediction_without_weights_is_left_out(source: Any, imported: Any, tmp_path: Path) -> None:
    """What transformers saves of a DeepSeek-V3: the config still declares the layer."""

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.startswith(f"model.layers.{LAYERS}.")]:
            del tensors[name]

    directory = with_prediction(source("deepseek_v3"), tmp_path / "source", drop)
    assert [c.passed for c in verify_checkpoint_files(directory, imported(directory)).checks] == [True, True, True]


def test_a_prediction_layer_that_repeats_another_embedding(source: Any, imported: Any, tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"model.layers.{LAYERS}.embed_tokens.weight"][5, 7] += 1

    directory = with_prediction(source("deepseek_v3"), tmp_path / "source", change)
    with pytest.raises(InputError, match=r"layers.3.embed_tokens.weight differs from model.embed_tokens.weight"):
        imported(directory)


# 8-bit sources -------------------------------------------------------------------------------------------------------

BLOCK = (16, 24)


def quantised(source: Path, target: Path) -> dict[str, torch.Tensor]:
    """Writes a model with projections in 8-bit floats; returns what they stand for, by DeepSeek's own arithmetic."""
    shutil.copytree(source, target)
    settings = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)}
    (target / "config.json").write_text(json.dumps(config_of("deepseek_v3", quantization_config=settings)))
    tensors, expected = {}, {}
    for name, tensor in load_file(target / "model.safetensors").items():
        tensors[name] = expected[name] = tensor
        if "proj" not in name:
            continue
        scale = torch.rand(-(-tensor.shape[0] // BLOCK[0]), -(-tensor.shape[1] // BLOCK[1])) + 0.01
        raw = (tensor.float() * 40).to(torch.float8_e4m3fn)
        full = scale.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
        tensors[name], tensors[f"{name}_scale_inv"] = raw, scale
        expected[name] = (raw.float() * full[: raw.shape[0], : raw.shape[1]]).to(torch.bfloat16)
    save_file(tensors, target / "model.safetensors")
    return expected


def test_8_bit_weights_are_dequantised(source: Any, weights: Any, imported: Any, exported: Any, tmp_path: Path) -> None:
    expected = quantised(source("deepseek_v3"), tmp_path / "source")
    target = imported(tmp_path / "source", chunk_bytes=1500)  # chunks begin and end within blocks
    assert [c.passed for c in verify_checkpoint_files(tmp_path / "source", target).checks] == [True, True, True]
    result = exported(target / "checkpoint" / "release", target / "hf_template")
    found = weights(result)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert "quantization_config" not in json.loads((result / "config.json").read_text())


def test_every_8_bit_value() -> None:
    from pamp_pipelines.conversion.dequantise import _values

    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert torch.equal(torch.from_numpy(_values().copy()).nan_to_num(1e9), expected.nan_to_num(1e9))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, n: t.pop(n + "_scale_inv"), "its scales .*_scale_inv are missing"),
        (lambda t, n: t.update({n + "_scale_inv": t[n + "_scale_inv"][:-1].clone()}), "has scales of shape"),
        (lambda t, n: t.update({n: t[n].to(torch.bfloat16)}), "scales .*, which is BF16"),
    ],
)
def test_scales_that_do_not_fit(change: Any, words: str, source: Any, tmp_path: Path) -> None:
    quantised(source("deepseek_v3"), tmp_path / "source")
    file = tmp_path / "source" / "model.safetensors"
    tensors = load_file(file)
    change(tensors, "model.layers.1.self_attn.kv_b_proj.weight")
    save_file(tensors, file)
    with pytest.raises(InputError, match=words):
        plan_of(ImportJob(name="x", id="x", output=tmp_path / "out", source=tmp_path / "source"))


# arguments and refusals ----------------------------------------------------------------------------------------------


def test_arguments_of_deepseek_v3() -> None:
    arguments = megatron_arguments(config_of("deepseek_v3"))
    assert arguments["moe_layer_freq"] == "[0,1,1]"
    assert arguments["moe_router_score_function"] == "sigmoid"
    assert arguments["moe_router_topk_scaling_factor"] == 2.5
    assert (arguments["moe_router_num_groups"], arguments["moe_router_group_topk"]) == (4, 2)
    assert arguments["moe_shared_expert_intermediate_size"] == 3 * 28
    assert arguments["q_lora_rank"] == 26
    assert "q_lora_rank" not in megatron_arguments(config_of("moonlight"))
    assert "moe_router_num_groups" not in megatron_arguments(config_of("moonlight"))


@pytest.mark.parametrize("family", CONFIGS)
def test_every_argument_is_one_of_megatrons(family: str) -> None:
    from pamp_pipelines.declarations.megatron_flags import megatron_flags

    assert megatron_arguments(config_of(family)).keys() <= {flag.dest for flag in megatron_flags().values()}
    assert unsupported(config_of(family)) == []


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("mixtral", {"num_experts_per_tok": 1}, "num_experts_per_tok is 1"),
        ("qwen3_moe", {"attention_bias": True}, "attention_bias is true"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}, "expert groups"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is true"),
        ("deepseek_v3", {"num_experts_per_tok": 6}, "expert groups"),
        ("deepseek_v3", {"norm_topk_prob": False}, "norm_topk_prob is false"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ("deepseek_v3", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "only YaRN"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ],
)
def test_refusals(family: str, changes: dict[str, Any], words: str) -> None:
    (problem,) = unsupported(config_of(family, **changes))
    assert words in problem
