"""What a training job would build, without weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pamp_pipelines.declarations.training_config import Dropout
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.verification.construction import (
    Built,
    CheckpointNames,
    Construction,
    construction_verdict,
    frequencies_digest,
)
from pamp_pipelines.verification.dry_run import dry_run
from tests.verification.conftest import FAMILIES, Model

FACTS = Construction(
    layers=2,
    parameters=1000,
    vocabulary=251,
    inverse_frequencies=frequencies_digest(b"1234", 1),
    rotary_scale=1.0,
    norm_epsilons={"decoder.final_layernorm.weight": 1e-5},
    biases=(),
    tied=True,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": 999}, "parameters: Megatron 999, HF 1000"),
        ({"norm_epsilons": {"decoder.final_layernorm.weight": 1e-6}}, "norm epsilons: Megatron"),
        ({"biases": ("decoder.layers.mlp.linear_fc1.bias",)}, "biases: Megatron"),
        ({"tied": False}, "tied: Megatron False, HF True"),
        ({"inverse_frequencies": frequencies_digest(b"1235", 1)}, "inverse frequencies: Megatron"),
    ],
)
def test_each_fact_counts(change: dict[str, object], words: str) -> None:
    built = Built(facts=FACTS.model_copy(update=change), padded_vocabulary=256, dropout=Dropout())
    verdict = construction_verdict(FACTS, built)
    assert not verdict.passed
    assert verdict.description.startswith(words)
    assert ";" not in verdict.description


def test_dropout_and_padding_count() -> None:
    good = Built(facts=FACTS, padded_vocabulary=256, dropout=Dropout(hidden=0.1))
    assert construction_verdict(FACTS, good, Dropout(hidden=0.1)).passed
    assert "dropout" in construction_verdict(FACTS, good).description
    short = good.model_copy(update={"padded_vocabulary": 250})
    assert not construction_verdict(FACTS, short, Dropout(hidden=0.1)).passed


def test_parameters_of_both_models_have_the_names_of_the_checkpoint() -> None:
    names = CheckpointNames(FAMILIES["qwen2"])
    key = "decoder.layers.self_attention.linear_qkv.layer_norm_weight"
    assert names["model.layers.11.input_layernorm.weight"] == key
    assert names["decoder.layers.11.input_layernorm.weight"] == key
    assert names["model.layers.0.self_attn.k_proj.bias"] == "decoder.layers.self_attention.linear_qkv.bias"
    assert names["model.layers.0.mlp.up_proj.bias"] == "model.layers.mlp.up_proj.bias", "it stays in sight"


@pytest.mark.slow
def test_a_job_whose_rotary_base_is_not_the_templates(models: dict[str, Model], tmp_path: Path) -> None:
    """One start of Megatron shows the facts of a tensor-parallel job and the one fact that differs."""
    config = json.loads((models["llama"].template / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 7655.0
    job = TrainJob.model_validate(
        {
            "name": "tiny/dry/v0001",
            "run_dir": tmp_path,
            "hf_config": config,
            "template_dir": models["llama"].template,
            "pretrained_checkpoint": None,
            "vocab_size": 251,
            "eod_id": 2,
            "train": [{"prefix": tmp_path / "none", "weight": 1.0}],
            "sequence_length": 64,
            "iterations": 4,
            "global_batch_size": 4,
            "micro_batch_size": 1,
            "optimizer": {"lr": 1e-3},
            "dropout": {"hidden": 0.1, "attention": 0.05},
            "precision": "bf16",
            "parallelism": {"tensor": 2},
            "recompute": "none",
            "checkpoint": {"interval": 1},
            "validation": {"interval": 1},
            "seed": 1,
            "data_seed": 1,
            "determinism": "exact",
            "log_interval": 1,
            "world_size": 4,
        }
    )
    facts, (verdict,) = dry_run(job)
    assert not verdict.passed
    assert verdict.description.startswith("inverse frequencies: Megatron")
    assert ";" not in verdict.description, "all other facts are equal"
    assert facts["padded_vocabulary"] == 256
    assert (facts["hidden_dropout"], facts["attention_dropout"]) == (0.1, 0.05)
    assert set(facts["norm_epsilons"].values()) == {3.7e-5}
    assert list(tmp_path.iterdir()) == [], "nothing is written"
