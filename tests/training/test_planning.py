"""Forecasts of runs: what fits, what is proposed instead, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.project import Project
from pamp_pipelines.training.accelerators import GIB, accelerator
from pamp_pipelines.training.planning import Plan, plan

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def forecast(
    gpus: int, gpu: str = "H200", price: float | None = None, model: dict[str, Any] | None = None, **changes: Any
) -> Plan:
    fields: dict[str, Any] = {
        "corpora": {"a": 1},
        "sequence_length": 4096,
        "iterations": 100,
        "global_batch_size": 64,
        "optimizer": {"lr": 1e-4},
        "checkpoint": {"interval": 50},
        "validation": {"interval": 50},
        "evaluation": {"every": 50},
    }
    config = TrainingConfig.model_validate(fields | changes)
    return plan(model or LLAMA_8B, config, gpus=gpus, accelerator=accelerator(gpu), price_per_gpu_hour=price)


def test_a_model_that_does_not_fit_on_one_gpu_is_refused_with_every_part() -> None:
    found = forecast(1)
    assert found.proposed is None
    assert found.refusals[0].startswith("as declared (tensor 1, pipeline 1, context 1, expert 1, data 1, micro batch 1")
    assert "GiB: weights 15.0, gradients 29.9, optimizer 89.7, activations" in found.refusals[0]


def test_what_fits_with_state_in_bf16_is_told() -> None:
    found = forecast(1, global_batch_size=8)
    assert found.proposed is None
    assert found.with_bf16_state is not None
    assert 80 < found.with_bf16_state.gib < found.usable_gib
    declared = forecast(1, global_batch_size=8, state_precision="bf16")
    assert declared.proposed == declared.declared
    # the format is float32 however state is kept
    assert declared.checkpoint_bytes == found.checkpoint_bytes
    # it is a layout's last resort, and no way out for arithmetic that has no such optimizer
    assert forecast(8, micro_batch_size=2).with_bf16_state is None
    assert forecast(1, global_batch_size=8, precision="fp16").with_bf16_state is None


def test_what_is_declared_is_taken_where_it_fits() -> None:
    found = forecast(8, micro_batch_size=2)
    assert found.proposed == found.declared
    assert found.proposed is not None
    assert (found.proposed.data_parallel, found.refusals) == (8, ())
    assert found.proposed.gib < found.usable_gib


def test_a_layout_that_fits_is_proposed_instead() -> None:
    found = forecast(8, "A100-80GB", micro_batch_size=8)
    assert found.declared is not None
    assert found.declared.gib > found.usable_gib
    assert found.proposed is not None
    assert found.proposed.gib <= found.usable_gib
    assert 64 % (found.proposed.micro_batch_size * found.proposed.data_parallel) == 0
    assert any(refusal.startswith("as declared") and "needs" in refusal for refusal in found.refusals)


def test_a_layout_that_cannot_be_is_named() -> None:
    found = forecast(6, global_batch_size=60, parallelism={"tensor": 4})
    assert found.declared is None
    assert "tensor x pipeline x context = 4 does not divide 6 GPUs" in found.refusals[0]


def test_a_sliding_window_saves_time_and_cannot_be_split() -> None:
    mistral = LLAMA_8B | {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}
    full, windowed = (forecast(8, model=mistral | {"sliding_window": tokens}) for tokens in (None, 256))
    assert windowed.refusals == ()
    assert 0.8 * full.seconds < windowed.seconds < full.seconds
    found = forecast(8, model=mistral | {"sliding_window": 256}, parallelism={"context": 2})
    assert found.declared is None
    assert "context 2 cannot split the model's sliding window of 256 tokens" in found.refusals[0]


def test_an_arithmetic_that_the_gpu_lacks_is_refused() -> None:
    found = forecast(8, "A100-80GB", precision="fp8_delayed")
    assert found.proposed is None
    assert "A100-80GB has no fp8_delayed arithmetic" in found.refusals[0]


def test_time_cost_and_disk() -> None:
    found = forecast(8, price=3.0)
    tokens = 100 * 64 * 4096
    # 48.2 GFLOP a token at half of 8 x 989 TFLOP/s
    assert found.seconds == pytest.approx(tokens * 48.25e9 / (8 * 989e12 * 0.5), rel=0.01)
    assert found.price == pytest.approx(3.0 * 8 * found.seconds / 3600)
    assert found.checkpoint_bytes == pytest.approx(14 * 8.03e9, rel=0.03)
    # two kept, two rolling and one in the making; exports of both and of step 0
    assert (found.checkpoints, found.exports) == (5, 3)
    assert found.export_bytes == pytest.approx(2 * 8.03e9, rel=0.01)
    # each of eight data-parallel ranks gathers 12 bytes a parameter
    assert found.host_bytes == pytest.approx(8 * 12 * 8.03e9, rel=0.01)
    sparing = forecast(8, megatron_args={"distrib_optim_fully_reshardable_mem_efficient": True})
    assert sparing.host_bytes == pytest.approx(12 * 8.03e9, rel=0.01)
    assert forecast(16).host_bytes == found.host_bytes
    assert forecast(8, parallelism={"distributed_optimizer": False, "tensor": 8}).host_bytes == 0
    assert found.disk_bytes == 5 * found.checkpoint_bytes + 3 * found.export_bytes


def test_the_command_speaks_to_people_and_programs(own_project: Project) -> None:
    profile = own_project.root / "resources/local.yaml"
    profile.write_text(yaml.safe_dump({**yaml.safe_load(profile.read_text()), "price_per_gpu_hour": 2.5}))
    words = ["plan", "scratch", "both", "--project", str(own_project.root), "--gpus", "2", "--gpu-type", "H100"]
    shown = CliRunner().invoke(pamp, words)
    assert shown.exit_code == 0, shown.output
    for said in (
        "on 2 x H100",
        "layout: tensor 1",
        "GiB usable",
        "optimizer",
        "cost 0.00 at 2.5 per GPU-hour",
        "memory of the machine while it saves: ",
        "disk: ",
    ):
        assert said in shown.output
    data = json.loads(CliRunner().invoke(pamp, [*words, "--json"]).stdout.splitlines()[-1])
    assert data["fits_as_declared"]
    assert data["layout"]["bytes"]["total"] < data["usable_gib"] * GIB
    refused = CliRunner().invoke(pamp, [*words[:-1], "V100"])
    assert refused.exit_code == 1
    assert "known are H200" in refused.output


def test_a_plan_that_fails_says_so_in_the_exit_status(own_project: Project, tmp_path: Path) -> None:
    words = ["plan", "scratch", "both", "--project", str(own_project.root), "--gpus", "3"]
    result = CliRunner().invoke(pamp, words)
    assert result.exit_code == 1
    assert "No layout fits" in result.output


def test_the_command_tells_what_would_fit(own_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from pamp_pipelines.declarations import hf_config

    monkeypatch.setattr(hf_config, "read_hf_config", lambda project, model: LLAMA_8B)
    words = ["plan", "scratch", "both", "--project", str(own_project.root), "--gpus", "1"]
    words += ["--set", "precision=bf16", "--set", "sequence_length=4096"]
    result = CliRunner().invoke(pamp, words)
    assert result.exit_code == 1
    assert "With `state_precision: bf16` (gradients and moments are rounded)" in result.output
    assert CliRunner().invoke(pamp, [*words, "--set", "state_precision=bf16"]).exit_code == 0
