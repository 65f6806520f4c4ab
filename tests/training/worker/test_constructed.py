"""What a declared number becomes in the model, gradient buffers, optimizer and schedule that Megatron builds.

An argument that is parsed and never reaches them is this field's commonest fault, so nothing here looks at arguments.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.lake.events import read_events
from pamp_pipelines.training.departures import departures
from pamp_pipelines.training.footprint import checkpoint_bytes
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.saved import Saved

FACT = re.compile(r"`(\w+)\.(\w+)`")


@pytest.fixture(scope="module")
def job(trainer: Any, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    """A run in which no value is Megatron's default."""
    folder = tmp_path_factory.mktemp("constructed")
    return trainer.job(
        folder,
        hf_config={
            **trainer.job(folder).hf_config,
            **{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 9},
            "initializer_range": 0.05,
        },
        iterations=4,
        # every logged iteration is later than this
        checkpoint={"interval": 100, "minutes": 1e-6},
        world_size=2,
        precision="bf16",
        recompute="full",
        dropout={"hidden": 0.125, "attention": 0.0625},
        optimizer={
            "lr": 2e-3,
            "min_lr": 1e-4,
            "decay_style": "linear",
            "warmup_iterations": 2,
            "weight_decay": 0.07,
            "beta1": 0.85,
            "beta2": 0.93,
            "eps": 1e-7,
            "clip_grad": 0.5,
        },
        parallelism={"distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    )


@pytest.fixture(scope="module")
def facts(trainer: Any, job: TrainJob) -> dict[str, Any]:
    """Of the reporting rank."""
    trainer.finish(job)
    found = [event.data for event in read_events(job.events_path)[0] if event.kind == "construction"]
    assert len(found) == 1
    # through JSON, which has no tuples
    found[0]["optimizer"]["betas"] = [tuple(betas) for betas in found[0]["optimizer"]["betas"]]
    return found[0]


@pytest.mark.slow
def test_every_declared_value_is_in_what_was_built(facts: dict[str, Any]) -> None:
    assert facts["model"]["initial_deviation"] == pytest.approx(0.05, rel=0.03)
    assert {name: value for name, value in facts["model"].items() if name != "initial_deviation"} == {
        "layers": 4,
        # embedding and output layer padded to 384 rows
        "parameters": 2 * 384 * 64 + 64 + 4 * (2 * 64 + 64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 128),
        "parameter_dtypes": ["bfloat16"],
        "biases": [],
        "norms": ["RMSNorm"],
        "norm_epsilons": [1e-6],
        "attention": ["TorchAttention"],
        "windows": [[layer, 9] for layer in (1, 2, 3, 4)],
        "sequence_parallel": [False],
    }
    assert facts["parallel"] == {"tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "data": 2}
    assert facts["batch"] == {"micro_batch_size": 2, "micro_batches": 2}
    assert facts["arithmetic"] == {
        "cuda": False,
        "tf32": False,
        "fp8": ["none"],
        "deterministic": False,
        "cross_entropy": ["unfused"],
    }
    assert facts["dropout"] == {"hidden": [0.125], "attention": [0.0625]}
    assert facts["recompute"] == {"whole_layers": True, "method": ["uniform"], "core_attention": False}
    assert facts["offload"] == {"optimizer": False, "optimizer_share": 0.0, "activation_layers": 0}
    gradients = facts["gradients"]
    assert gradients["dtypes"] == ["float32"]
    assert gradients["distributed_optimizer"] == gradients["overlap_grad_reduce"] == [True]
    assert gradients["overlap_param_gather"] == [True]
    # overlapping IS these hooks
    assert min(gradients["backward_hooks"], gradients["forward_hooks"]) > 0
    optimizer = facts["optimizer"]
    assert optimizer["wrappers"] == ["DistributedOptimizer"]
    assert optimizer["classes"] == ["torch.AdamW"]
    assert optimizer["decoupled_weight_decay"] == [True]
    assert (optimizer["betas"], optimizer["eps"], optimizer["clip_grad"]) == ([(0.85, 0.93)], [1e-7], [0.5])
    assert (optimizer["weight_decay"], optimizer["exempt_weight_decay"]) == ([0.07], [0.0])
    assert min(optimizer["decayed_tensors"], optimizer["exempt_tensors"]) > 0
    assert facts["schedule"] == {
        "max_lr": 2e-3,
        "min_lr": 1e-4,
        "init_lr": 0.0,
        "decay_style": "linear",
        "warmup_samples": 2 * 8,
        "decay_samples": 4 * 8,
        "start_weight_decay": 0.07,
        "end_weight_decay": 0.07,
    }


@pytest.mark.slow
def test_every_fact_of_the_table_is_one_that_is_reported(facts: dict[str, Any]) -> None:
    page = (Path(__file__).parents[1] / "TABLE.md").read_text()
    named = [name for row in page.splitlines() if row.startswith("| `") for name in FACT.findall(row.split(" | ")[1])]
    assert len(named) > 30
    assert {f"{part}.{name}" for part, name in named} <= {f"{part}.{name}" for part in facts for name in facts[part]}


@pytest.mark.slow
def test_a_run_saves_when_the_declared_minutes_have_passed(facts: dict[str, Any], job: TrainJob) -> None:
    saved = Saved(job.checkpoints_dir)
    assert saved.steps() == [1, 2, 3, 4]
    assert all(saved.complete(step) for step in saved.steps())


@pytest.mark.slow
def test_a_save_takes_no_more_room_than_was_asked_for(facts: dict[str, Any], job: TrainJob) -> None:
    size = sum(file.stat().st_size for file in Saved(job.checkpoints_dir).dir(4).iterdir())
    assert 0.25 * checkpoint_bytes(job) < size <= checkpoint_bytes(job)


@pytest.mark.slow
def test_what_was_built_otherwise_is_a_departure(facts: dict[str, Any], job: TrainJob) -> None:
    assert departures(job, facts) == []
    for part, name, value, said in [
        ("parallel", "tensor", 2, "parallelism.tensor: declared 1, built [2]"),
        ("parallel", "data", 1, "data parallel: declared 2, built [1]"),
        ("batch", "micro_batches", 4, "micro batches in a global batch: declared 2, built [4]"),
        ("arithmetic", "fp8", ["hybrid delayed"], "products in fp8: declared none"),
        ("model", "parameter_dtypes", ["float32"], "bfloat16 weights: declared True, built [False]"),
        ("model", "sequence_parallel", [False, True], "parallelism.sequence_parallel: declared False, built [True]"),
        ("model", "windows", [[1, 9], [2, 9], [3, 0], [4, 9]], "sliding window of layer 3: declared 9, built [0]"),
        ("model", "windows", [[1, 9], [2, 9], [3, 9], [4, 10]], "sliding window of layer 4: declared 9, built [10]"),
        ("dropout", "hidden", [0.1], "dropout.hidden: declared 0.125, built [0.1]"),
        ("dropout", "attention", [0.0625, 0.1], "dropout.attention"),
        ("offload", "optimizer", True, "offload.optimizer: declared False, built [True]"),
        ("offload", "activation_layers", 2, "offload.activation_layers: declared 0, built [2]"),
        ("recompute", "whole_layers", False, "recompute full: declared True"),
        ("recompute", "core_attention", True, "recompute selective: declared False"),
        ("gradients", "overlap_grad_reduce", [False], "parallelism.overlap_grad_reduce"),
        ("gradients", "forward_hooks", 0, "hooks that gather parameters: declared True, built [False]"),
        ("optimizer", "betas", [(0.9, 0.999)], "optimizer.beta1, beta2"),
        ("optimizer", "decoupled_weight_decay", [False], "decoupled weight decay"),
        ("optimizer", "exempt_weight_decay", [0.07], "weight decay of norms and biases"),
        ("schedule", "max_lr", 1e-3, "optimizer.lr"),
        ("schedule", "decay_samples", 8, "samples until the end of the decay"),
    ]:
        wrong = copy.deepcopy(facts)
        wrong[part][name] = value
        (departure,) = departures(job, wrong)
        assert departure.startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declared", "part", "right", "wrong", "said"),
    [
        ({"precision": "tf32"}, "arithmetic", {"tf32": True}, {"tf32": False}, "products in TF32: declared True"),
        ({"precision": "fp32"}, "arithmetic", {"tf32": False}, {"tf32": True}, "products in TF32: declared False"),
        ({"precision": "fp16"}, "optimizer", {"loss_scale": [65536.0]}, {"loss_scale": []}, "scaling of the loss"),
        ({"precision": "fp8_delayed"}, "arithmetic", {"fp8": ["hybrid delayed"]}, {"fp8": ["none"]}, "products in fp8"),
        (
            {"state_precision": "bf16"},
            "optimizer",
            {"state_dtypes": {"exp_avg": ["bfloat16"], "exp_avg_sq": ["bfloat16"], "master_param": ["float32"]}},
            {"state_dtypes": {"exp_avg": ["bfloat16"], "exp_avg_sq": ["float32"], "master_param": ["float32"]}},
            "dtype of the optimizer's exp_avg_sq: declared bfloat16",
        ),
        (
            {"determinism": "exact"},
            "arithmetic",
            {"deterministic": True},
            {"deterministic": False},
            "determinism exact",
        ),
        (
            {"cross_entropy": "transformer_engine"},
            "arithmetic",
            {"cross_entropy": ["te"]},
            {"cross_entropy": ["native"]},
            "cross_entropy transformer_engine: declared True, built [False]",
        ),
    ],
)
def test_what_only_a_gpu_builds_is_compared_too(
    facts: dict[str, Any],
    job: TrainJob,
    declared: dict[str, Any],
    part: str,
    right: dict[str, Any],
    wrong: dict[str, Any],
    said: str,
) -> None:
    """With facts as they are under CUDA; those of the GPU's own runs are compared there, before their first step."""
    built = copy.deepcopy(facts)
    built["arithmetic"] |= {"cuda": True, "deterministic": True}
    built["gradients"]["dtypes"] = ["bfloat16", "float32"]
    built["model"]["parameter_dtypes"] = ["bfloat16", "float16", "float32"]
    one = job.model_copy(update=declared)
    built[part] |= right
    assert departures(one, built) == []
    built[part] |= wrong
    (departure,) = departures(one, built)
    assert departure.startswith(said)


@pytest.mark.slow
def test_a_rank_that_holds_none_of_something_is_no_departure(facts: dict[str, Any], job: TrainJob) -> None:
    empty = copy.deepcopy(facts)
    empty["optimizer"] |= {"exempt_weight_decay": [], "betas": [], "weight_decay": []}
    assert departures(job, empty) == []
