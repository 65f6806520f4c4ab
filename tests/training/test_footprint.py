"""Predicted memory, disk and work against what was measured on one H200 with Megatron Core 0.19.2 and TE 2.20."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pamp_pipelines.conversion.architectures import Window
from pamp_pipelines.declarations.training_config import Offload, Parallelism
from pamp_pipelines.errors import InputError
from pamp_pipelines.training.accelerators import GIB, accelerator, recognise
from pamp_pipelines.training.footprint import footprint, per_parameter, saved_bytes, saved_per_parameter
from pamp_pipelines.training.shape import Shape, flops_per_token, shape_of

LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
LLAMA_3B = LLAMA_1B | {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128}
LLAMA_8B = LLAMA_3B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}
AWARE = {"use-precision-aware-optimizer": True}
HALF = {"state_precision": "bf16"}


def predict(config: dict[str, Any], **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "precision": "bf16",
        "parallelism": Parallelism(),
        "data_parallel": 1,
        "micro_batch_size": 4,
        "micro_batches": 4,
        "sequence_length": 4096,
        "recompute": "none",
        "cross_entropy": "transformer_engine",
        "megatron_args": {},
    }
    return footprint(shape_of(config), **(fields | changes))


def test_what_is_offloaded_is_not_on_the_gpu() -> None:
    whole, half = predict(LLAMA_1B), predict(LLAMA_1B, offload=Offload(optimizer=0.5, activation_layers=8))
    assert half.optimizer == round(whole.optimizer / 2)
    layers = whole.activations - predict(LLAMA_1B, offload=Offload(activation_layers=16)).activations
    assert whole.activations - half.activations == pytest.approx(layers / 2)
    assert (half.weights, half.gradients) == (whole.weights, whole.gradients)


@pytest.mark.parametrize(
    ("config", "changes", "gib"),
    [
        (LLAMA_1B, {}, 47),
        (LLAMA_1B, {"micro_batch_size": 8}, 74),
        (LLAMA_1B, {"megatron_args": AWARE}, 45),
        (LLAMA_1B, {"micro_batch_size": 8, "precision": "fp8_delayed"}, 71),
        (LLAMA_1B, {"precision": "fp16", "cross_entropy": "native"}, 59),
        (LLAMA_1B, {"precision": "tf32", "micro_batch_size": 2}, 115.1),
        (LLAMA_1B, {"precision": "fp8_tensorwise", "micro_batch_size": 8}, 69.7),
        (LLAMA_1B, {"precision": "fp8_blockwise", "micro_batch_size": 8}, 69.9),
        (LLAMA_1B, {"cross_entropy": "native"}, 59.2),
        (LLAMA_3B, {"micro_batch_size": 2}, 77),
        (LLAMA_8B, {"micro_batch_size": 1, **HALF}, 94),
        (LLAMA_8B, {"micro_batch_size": 1, **HALF, "precision": "fp8_delayed"}, 105),
    ],
)
def test_memory_is_within_a_twentieth_of_the_measured_peak(
    config: dict[str, Any], changes: dict[str, Any], gib: float
) -> None:
    assert predict(config, **changes).total / GIB == pytest.approx(gib, rel=0.05)


def test_parts_shrink_as_they_are_divided() -> None:
    whole = predict(LLAMA_8B)
    tensor = predict(LLAMA_8B, parallelism=Parallelism(tensor=2, sequence_parallel=True))
    data = predict(LLAMA_8B, data_parallel=4)
    piped = predict(LLAMA_8B, parallelism=Parallelism(pipeline=4), micro_batches=16)
    assert tensor.weights * 2 == pytest.approx(whole.weights, rel=1e-6)
    assert tensor.activations * 2 == pytest.approx(whole.activations, rel=1e-6)
    assert data.optimizer * 4 == pytest.approx(whole.optimizer, rel=1e-6)
    assert (data.weights, data.gradients) == (whole.weights, whole.gradients)
    assert piped.weights < whole.weights / 2.5
    # the first stage holds four micro batches of a quarter of the layers
    assert piped.activations == pytest.approx(whole.activations, rel=0.3)
    full = predict(LLAMA_8B, recompute="full")
    assert full.activations < whole.activations / 4
    assert full.weights == whole.weights
    replicated = predict(LLAMA_8B, data_parallel=4, parallelism=Parallelism(distributed_optimizer=False))
    assert replicated.optimizer == whole.optimizer


def test_bytes_for_a_parameter() -> None:
    assert per_parameter("fp32", "fp32", {}) == per_parameter("tf32", "fp32", {})
    assert (per_parameter("fp32", "fp32", {}).moments, per_parameter("bf16", "fp32", {}).master) == (8, 4)
    assert per_parameter("bf16", "fp32", {"grad_reduce_in_bf16": True}).gradients == 2
    half = per_parameter("bf16", "bf16", {})
    assert (half.weights, half.gradients, half.master, half.moments) == (2, 2, 2, 4)
    # what is passed to Megatron as it is counts more
    assert per_parameter("bf16", "bf16", {"exp_avg_sq_dtype": "fp32"}).moments == 6


def test_a_save_holds_weights_and_all_state_in_float32() -> None:
    assert saved_per_parameter("bf16", distributed_optimizer=True) == 14
    assert saved_per_parameter("bf16", distributed_optimizer=False) == 14
    assert saved_per_parameter("tf32", distributed_optimizer=True) == 16
    assert saved_per_parameter("fp32", distributed_optimizer=False) == 12
    shape = shape_of(LLAMA_8B)
    assert saved_bytes(shape, "bf16", Parallelism(), 1) == pytest.approx(14 * shape.parameters, rel=0.03)


@pytest.mark.parametrize(("config", "tokens_per_second", "tflops"), [(LLAMA_1B, 63_800, 524), (LLAMA_8B, 11_378, 549)])
def test_work_of_a_token(config: dict[str, Any], tokens_per_second: float, tflops: float) -> None:
    assert flops_per_token(shape_of(config), 4096) * tokens_per_second / 1e12 == pytest.approx(tflops, rel=0.002)


def test_a_token_works_for_those_in_its_window() -> None:
    counted = sum(min(token + 1, 512) for token in range(4096)) / 4096
    shape = replace(shape_of(LLAMA_8B), window=Window(512, (True,) * 8 + (False,) * 24))
    assert shape.seen(4096) == pytest.approx(8 * counted + 24 * 4097 / 2, rel=0.002)
    assert shape.seen(512) == shape_of(LLAMA_8B).seen(512) == 32 * 256


def test_sizes_of_a_mixture_count_what_a_token_uses() -> None:
    shape = Shape(
        parameters=100, embedding=10, tied=False, layers=1, hidden=2, vocabulary=5, heads=1, queries=2, keys=2, ffn=4,
        experts=64, active_experts=16,
    )  # fmt: skip
    assert shape.multiplied == 100 - 10 - 64 + 16
    assert shape.in_layers == 80


def test_accelerators() -> None:
    assert accelerator("h200").memory_gib == 139.0
    assert accelerator("H100").peak("fp8_delayed") == 1979.0
    assert accelerator("A100-80GB").peak("fp8_delayed") is None
    assert (accelerator("H200").peak("tf32"), accelerator("H200").peak("fp32")) == (494.5, 67.0)
    with pytest.raises(InputError, match="no GPU type 'V100' is known; known are H200"):
        accelerator("V100")
    assert recognise("NVIDIA H200") is accelerator("H200")
    assert recognise("NVIDIA A100-SXM4-80GB") is accelerator("A100-80GB")
    assert recognise("NVIDIA GeForce RTX 4090") is None
