"""Tiny models of every family, in which no two dimensions are equal, and one process that compares all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import plain_import_job
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.conversion.torch_dist import (
    StoredCheckpoint,
    StoredObject,
    StoredTensor,
    read_checkpoint,
    write_index,
)
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.verification.job import Division, ParityCase
from pamp_pipelines.verification.parity import forward_parity
from tests.verification.wrong_tables import import_with, wrong_tables

LAYERS = 3
_SIZES: dict[str, Any] = {
    "vocab_size": 251,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 3.7e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "hidden_act": "silu",
    "dtype": "float32",
}
_LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_YARN = {"factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 16.0, "beta_slow": 2.0}
_LATENT = {
    "kv_lora_rank": 22, "qk_nope_head_dim": 14, "qk_rope_head_dim": 12, "v_head_dim": 10, "moe_intermediate_size": 28,
    "num_key_value_heads": 6,
}  # fmt: skip


_MODEL_TYPES = {
    "Qwen2Moe": "qwen2_moe",
    "Qwen3Moe": "qwen3_moe",
    "DeepseekV2": "deepseek_v2",
    "DeepseekV3": "deepseek_v3",
}


def _family(name: str, theta: float, *, tied: bool, **more: Any) -> dict[str, Any]:
    changed = {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": _MODEL_TYPES.get(name, name.lower()),
        "tie_word_embeddings": tied,
        **more,
    }
    changed["rope_parameters"] = {"rope_type": "default", "rope_theta": theta, **more.get("rope_parameters", {})}
    return {**_SIZES, **changed}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _family("Llama", 7654.0, tied=False, head_dim=10),
    "llama-tied": _family("Llama", 4321.0, tied=True, head_dim=14),
    "llama-scaled": _family(
        "Llama", 876.0, tied=False, head_dim=10, rope_parameters={"rope_type": "llama3", **_LLAMA3}
    ),
    "mistral": _family("Mistral", 3456.0, tied=False, sliding_window=None, head_dim=14),
    "qwen2": _family("Qwen2", 23456.0, tied=True, head_dim=12),
    "qwen3": _family("Qwen3", 9876.0, tied=False, head_dim=12),
    "llama-linear": _family("Llama", 6543.0, tied=False, rope_parameters={"rope_type": "linear", "factor": 3.0}),
    "qwen2-yarn": _family("Qwen2", 7645.0, tied=False, rope_parameters={"rope_type": "yarn", **_YARN}),
    "mixtral": _family("Mixtral", 5432.0, tied=False, head_dim=14, sliding_window=None, num_local_experts=5),
    "qwen2_moe": _family(
        "Qwen2Moe", 8765.0, tied=False, head_dim=10, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
        shared_expert_intermediate_size=36, norm_topk_prob=False, sliding_window=None,
    ),
    "qwen3_moe": _family(
        "Qwen3Moe", 6789.0, tied=True, head_dim=12, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
        norm_topk_prob=True,
    ),
    "qwen3_moe-mixed": _family(
        "Qwen3Moe", 6798.0, tied=False, head_dim=12, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
        norm_topk_prob=False, mlp_only_layers=[1],
    ),
    "deepseek_v2": _family(
        "DeepseekV2", 4567.0, tied=False, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3,
        n_shared_experts=3, first_k_dense_replace=1, routed_scaling_factor=1.3, topk_method="greedy", **_LATENT,
        rope_parameters={"rope_type": "yarn", **_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    ),
    "deepseek_v3": _family(
        "DeepseekV3", 5678.0, tied=False, q_lora_rank=30, n_routed_experts=12, num_experts_per_tok=4, n_group=4,
        topk_group=2, n_shared_experts=3, first_k_dense_replace=1, **_LATENT,
        rope_parameters={"rope_type": "yarn", **_YARN, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 0.8},
    ),
    "moonlight": _family(
        "DeepseekV3", 3210.0, tied=False, q_lora_rank=None, n_routed_experts=9, num_experts_per_tok=4, n_group=1,
        topk_group=1, n_shared_experts=3, first_k_dense_replace=1, routed_scaling_factor=2.446, **_LATENT,
    ),
    "mistral-window": _family("Mistral", 3465.0, tied=False, sliding_window=7, head_dim=14),
    "mixtral-window": _family("Mixtral", 5423.0, tied=False, head_dim=14, sliding_window=9, num_local_experts=5),
    "qwen2-window": _family(
        "Qwen2", 23465.0, tied=True, head_dim=12, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "qwen2_moe-window": _family(
        "Qwen2Moe", 8756.0, tied=False, head_dim=10, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
        shared_expert_intermediate_size=36, use_sliding_window=True, sliding_window=11, max_window_layers=3,
    ),
    "qwen3-window": _family(
        "Qwen3", 9867.0, tied=False, head_dim=12, use_sliding_window=True, sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3_moe-window": _family(
        "Qwen3Moe", 6978.0, tied=True, head_dim=12, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
        norm_topk_prob=True, use_sliding_window=True, sliding_window=8,
    ),
}  # fmt: skip
"""config.json of each; hidden / heads is 8."""

WINDOWED = tuple(family for family, config in FAMILIES.items() if config.get("sliding_window"))
"""Their windows are a few tokens wide."""

SIZED_BY_HEADS = ("llama-linear", "qwen2-yarn")
"""Those without head_dim, as most releases are: their queries are as wide as the model."""


def randomised(family: str, seed: int) -> dict[str, Any]:
    """The config of a family with random epsilon, rotary base and scaling; the latter by the seed's parity.

    An even seed gives what models are released with most: Llama 3's scaling by 8 or 32 in turn, YaRN for DeepSeek.
    """
    random = np.random.default_rng([seed, *family.encode()])
    latent = family.startswith(("deepseek", "moonlight"))
    original = int(random.integers(24, 150))
    if seed % 2 and (latent or random.random() < 0.3):
        scaling: dict[str, Any] = {"rope_type": "linear", "factor": float(random.uniform(1.5, 9.0))}
        scaling = {"rope_type": "default"} if latent else scaling
    elif seed % 2 or latent:
        scaling = {
            "rope_type": "yarn", "factor": float(random.choice([4.0, 8.0, 32.0, 40.0])),
            "beta_fast": float(random.uniform(8, 40)), "beta_slow": float(random.uniform(0.5, 3)),
            "original_max_position_embeddings": original,
        }  # fmt: skip
        if latent:
            scaling |= {"mscale": float(random.uniform(0.6, 1.2)), "mscale_all_dim": float(random.uniform(0.6, 1.2))}
    else:
        scaling = {
            "rope_type": "llama3", "factor": (8.0, 32.0)[seed // 2 % 2], "original_max_position_embeddings": original,
            "low_freq_factor": float(random.uniform(0.5, 2)), "high_freq_factor": float(random.uniform(3, 6)),
        }  # fmt: skip
    scaling["rope_theta"] = float(np.exp(random.uniform(np.log(300), np.log(3e6))))
    epsilon = float(np.exp(random.uniform(np.log(1e-7), np.log(1e-3))))
    return {**FAMILIES[family], "rms_norm_eps": epsilon, "rope_parameters": scaling}


BASE_FAMILIES = (
    "llama", "llama-tied", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2",
    "deepseek_v3", "moonlight",
)  # fmt: skip
RANDOM = {
    f"{family}, seed {seed}": randomised(family, seed)
    for number, family in enumerate(BASE_FAMILIES)
    for seed in (2 * number, 2 * number + 1)
}

_DIVISIBLE: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 8}
DIVIDED: dict[str, tuple[dict[str, Any], tuple[Division, ...]]] = {
    "llama": (
        {**FAMILIES["llama"], **_DIVISIBLE},
        tuple(Division(tensor=t, pipeline=p) for t, p in ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2))),
    ),
    "qwen2": (
        {**FAMILIES["qwen2"], **_DIVISIBLE},
        (Division(tensor=4), Division(tensor=2, pipeline=2), Division(pipeline=4)),
    ),
    "qwen3-151669": (
        {**FAMILIES["qwen3"], **_DIVISIBLE, "vocab_size": 151_669, "hidden_size": 20, "tie_word_embeddings": True},
        (Division(tensor=4), Division(pipeline=2)),
    ),
    "qwen3_moe": (
        {**FAMILIES["qwen3_moe"], **_DIVISIBLE, "num_experts": 20},
        tuple(
            Division(tensor=t, pipeline=p, expert=e)
            for t, p, e in ((1, 1, 2), (1, 1, 4), (1, 2, 2), (2, 1, 2), (2, 2, 2), (4, 1, 1))
        ),
    ),
    "deepseek_v3": (
        {**FAMILIES["deepseek_v3"], **_DIVISIBLE, "num_key_value_heads": 8, "q_lora_rank": 44, "kv_lora_rank": 24},
        (Division(tensor=4), Division(expert=4), Division(tensor=2, pipeline=2), Division(tensor=2, expert=2)),
    ),
}
"""config.json of models that four processes can divide, and how they do. KV heads are 2: fewer than ranks at TP 4."""

WITH_WRONG_TABLES = ("qwen2", "qwen3", "qwen2_moe", "deepseek_v3")
"""Between them they use every entry of the tables but those of multi-token prediction, which transformers has not."""


@dataclass(frozen=True)
class Model:
    """A Hugging Face directory and its import."""

    source: Path
    artifact: Path

    @property
    def checkpoint(self) -> Path:
        return self.artifact / "checkpoint" / "release"

    @property
    def template(self) -> Path:
        return self.artifact / "hf_template"


def write_hf_model(config: dict[str, Any], directory: Path) -> None:
    """Random weights under which everything matters: norms away from 1, biases away from 0, large projections."""
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in layout_of(config).hf_shapes().items():
        mean, spread = (1.0, 0.3) if "norm" in name else (0.0, 0.5 if name.endswith("bias") else 0.2)
        tensors[name] = random.normal(mean, spread, shape).astype(np.float32)
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Every family, converted by the importer."""
    root = tmp_path_factory.mktemp("models")
    made = {}
    for family, config in FAMILIES.items():
        made[family] = _convert(config, root / family)
    return made


def _convert(config: dict[str, Any], source: Path) -> Model:
    model = Model(source, source.with_name(f"{source.name}-megatron"))
    write_hf_model(config, model.source)
    import_hf(plain_import_job(model.source, model.artifact, workers=1))
    return model


def with_config(model: Model, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a model's template with another config.json."""
    shutil.copytree(model.template, target)
    config = json.loads((target / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    return target


def with_tensors(model: Model, target: Path, change: Callable[[dict[str, StoredTensor]], None]) -> Path:
    """A copy of a model's checkpoint with another index over the same payload files."""
    stored: StoredCheckpoint = read_checkpoint(model.checkpoint)
    tensors = dict(stored.tensors)
    change(tensors)
    target.mkdir()
    for file in model.checkpoint.glob("*.distcp"):
        (target / file.name).symlink_to(file)
    write_index(target, tensors.values(), stored.objects.values())
    return target


class Evil:
    """What runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.mark)!r}, 'w').close()",)


def with_evil_objects(model: Model, target: Path) -> Path:
    """A copy of a model's checkpoint, all objects of which are pickles that make the file `was-run` in `target`."""
    import io

    import torch

    checkpoint = with_tensors(model, target, lambda tensors: None)
    payload = io.BytesIO()
    torch.save([Evil(target / "was-run")], payload)
    (target / "evil.distcp").write_bytes(payload.getvalue())
    stored = read_checkpoint(checkpoint)
    objects = [StoredObject(key, "evil.distcp", 0, len(payload.getvalue())) for key in stored.objects]
    write_index(target, stored.tensors.values(), objects)
    return checkpoint


def swap_gate_and_up(tensors: dict[str, StoredTensor]) -> None:
    """Let the halves of the first layer's joined projection point to each other's bytes."""
    key = "decoder.layers.mlp.linear_fc1.weight"
    gate, up = (chunk for chunk in tensors[key].chunks if chunk.offset[0] == 0)
    swapped = [replace(gate, offset=up.offset), replace(up, offset=gate.offset)]
    rest = [chunk for chunk in tensors[key].chunks if chunk.offset[0] != 0]
    tensors[key] = replace(tensors[key], chunks=(*swapped, *rest))


@pytest.fixture(scope="session")
def evil(models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose objects run code when they are unpickled."""
    return with_evil_objects(models["llama"], tmp_path_factory.mktemp("evil") / "checkpoint")


@pytest.fixture(scope="session")
def verdicts(
    models: dict[str, Model], evil: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, CheckResult]]:
    """Verdicts by case and check: every family as it is, and damaged in one way each. One start of Megatron for all."""
    root = tmp_path_factory.mktemp("damaged")
    llama, qwen2 = models["llama"], models["qwen2"]

    def case(name: str, model: Model, **changes: Any) -> ParityCase:
        fields = {"source": model.source, "checkpoint": model.checkpoint, "template": model.template, "layers": None}
        return ParityCase(name=name, **{**fields, **changes})

    bias = "decoder.layers.self_attention.linear_qkv.bias"

    def other_window(family: str, tokens: int) -> ParityCase:
        name, model = f"{family}, {tokens}", models[family]
        template = with_config(model, root / name.replace(", ", "-"), lambda c: c.update(sliding_window=tokens))
        return case(name, model, template=template)

    windows = {family: FAMILIES[family]["sliding_window"] for family in WINDOWED}
    cases = [
        *(case(family, model) for family, model in models.items()),
        *(other_window(family, tokens + step) for family, tokens in windows.items() for step in (-1, 1)),
        case("first 2 layers", llama, layers=2),
        case(
            "rotary base",
            llama,
            template=with_config(llama, root / "base", lambda c: c["rope_parameters"].update(rope_theta=7655.0)),
        ),
        case(
            "rotary scaling",
            models["llama-scaled"],
            template=with_config(
                models["llama-scaled"], root / "scaling", lambda c: c["rope_parameters"].update(factor=8.0)
            ),
        ),
        case(
            "depth",
            llama,
            layers=2,
            template=with_config(llama, root / "depth", lambda c: c.update(num_hidden_layers=LAYERS + 1)),
        ),
        case("epsilon", llama, template=with_config(llama, root / "eps", lambda c: c.update(rms_norm_eps=1e-3))),
        case("swapped gate and up", llama, checkpoint=with_tensors(llama, root / "swap", swap_gate_and_up)),
        case("code in the objects", llama, checkpoint=evil),
        case("missing bias", qwen2, checkpoint=with_tensors(qwen2, root / "bias", lambda t: t.pop(bias) and None)),
        case("unknown bias", llama, checkpoint=with_tensors(llama, root / "extra", lambda t: _add(t, bias, qwen2))),
        case("too few layers", llama, layers=LAYERS, checkpoint=with_tensors(llama, root / "layers", _two_layers)),
    ]
    for family in WITH_WRONG_TABLES:
        config = FAMILIES[family]
        for number, (name, table) in enumerate(wrong_tables(config)):
            checkpoint = import_with(table, config, models[family].source, root / f"{family}{number}")
            cases.append(case(f"{family}: {name}", models[family], checkpoint=checkpoint))
    for name, config in RANDOM.items():
        cases.append(case(name, _convert(config, root / name)))
    for family, (config, divisions) in DIVIDED.items():
        model = _convert(config, root / f"{family} divided")
        cases.append(case(f"{family} divided", model, layers=None, divisions=divisions))
    cases.append(case("five ranks", llama, layers=1, divisions=(Division(tensor=5),)))
    found = forward_parity(cases)
    return {name: {check.name: check for check in checks} for name, checks in found.items()}


def _add(tensors: dict[str, StoredTensor], key: str, other: Model) -> None:
    """A tensor that the model lacks; its bytes do not matter."""
    weight = tensors["decoder.layers.self_attention.linear_qkv.layer_norm_weight"]
    tensors[key] = replace(weight, key=key)


def _two_layers(tensors: dict[str, StoredTensor]) -> None:
    for key, tensor in tensors.items():
        if key.startswith("decoder.layers."):
            chunks = tuple(chunk for chunk in tensor.chunks if chunk.offset[0] < 2)
            tensors[key] = replace(tensor, shape=(2, *tensor.shape[1:]), chunks=chunks)
