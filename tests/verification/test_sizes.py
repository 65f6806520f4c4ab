"""The tiny models tell every axis from every other: where two were equal, exchanging them might not show."""

from typing import Any

import pytest

from benchmarks import parity_gpu
from pamp_pipelines.conversion.layout import layout_of
from tests.conversion.conftest import FAMILIES as DENSE
from tests.conversion.conftest import tiny_config
from tests.conversion.test_expert_families import CONFIGS
from tests.conversion.test_expert_families import config_of as with_experts
from tests.verification.conftest import DIVIDED, FAMILIES, SIZED_BY_HEADS

MODELS: dict[str, dict[str, Any]] = {
    **{f"conversion, {family}": tiny_config(family) for family in DENSE},
    **{f"conversion, {family}": with_experts(family) for family in CONFIGS},
    **{f"parity, {family}": config for family, config in FAMILIES.items() if family not in SIZED_BY_HEADS},
    **{f"divided, {family}": config for family, (config, _) in DIVIDED.items()},
    **{f"GPU, {family}": parity_gpu.config_of(family) for family in parity_gpu.FAMILIES},
}


@pytest.mark.parametrize("model", MODELS)
def test_no_two_sizes_are_equal(model: str) -> None:
    config = MODELS[model]
    layout = layout_of(config)
    held = [entry for entry in layout.entries if next(layout.blocks_of(entry), None) is not None]
    axes = {axis for entry in held for axes in (entry.axes, *(s.axes for s in entry.sources)) for axis in axes}
    sizes = {axis: layout.dimensions[axis] for axis in axes} | {"heads": config["num_attention_heads"]}
    if "kv_lora_rank" not in config:
        sizes["KV heads"] = config["num_key_value_heads"]
    assert len(set(sizes.values())) == len(sizes), sizes
    assert config["vocab_size"] % 128 != 0


def test_every_family_is_there() -> None:
    classes = {config["model_type"] for config in MODELS.values()}
    assert classes == {
        "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"
    }  # fmt: skip
