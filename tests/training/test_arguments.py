"""A job as a command line: everything explicit, nothing of the pipeline's own left to the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from pamp_pipelines.declarations.megatron_flags import megatron_flags
from pamp_pipelines.declarations.megatron_owned import OWNED
from pamp_pipelines.declarations.training_config import Precision
from pamp_pipelines.errors import InputError
from pamp_pipelines.training.arguments import megatron_argv, table_destinations
from pamp_pipelines.training.job import TrainJob

TUNABLE = {
    # collections are timed for all ranks together; how often is for the user to say
    "manual_gc",
    "manual_gc_interval",
    # derived from the model or the device, and still open to `megatron_args`
    *("init_method_std", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "num_workers"),
    *("cross_entropy_loss_fusion", "gradient_accumulation_fusion", "masked_softmax_fusion", "apply_rope_fusion"),
    # follow from `offload`
    *("use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d"),
    # follow from `state_precision`
    *("exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "grad_reduce_in_bf16"),
    # follows from `determinism`
    "check_for_nan_in_loss_and_grad",
    # follows from `precision`
    "accumulate_allreduce_grads_in_fp32",
    *("rerun_mode", "bias_swiglu_fusion", "bias_dropout_fusion", "no_persist_layer_norm"),
}


def job(**changes: Any) -> TrainJob:
    fields: dict[str, Any] = {
        "name": "m/c/v0001",
        "run_dir": Path("/runs/m/c/v0001"),
        "hf_config": {
            "architectures": ["Qwen2ForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 128,
            "max_position_embeddings": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "vocab_size": 300,
        },
        "template_dir": Path("/template"),
        "pretrained_checkpoint": None,
        "vocab_size": 300,
        "eod_id": 7,
        "train": [{"prefix": "/shards/a/train", "weight": 1.0}],
        "heldout": [{"corpus": "a", "prefix": "/shards/a/heldout"}],
        "sequence_length": 64,
        "iterations": 10,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "optimizer": {"lr": 3e-4, "weight_decay": 0.05, "eps": 1e-7, "warmup_iterations": 2},
        "dropout": {},
        "precision": "bf16",
        "parallelism": {},
        "recompute": "none",
        "checkpoint": {"interval": 5},
        "validation": {"interval": 5},
        "seed": 11,
        "data_seed": 12,
        "determinism": "exact",
        "log_interval": 1,
        "world_size": 2,
    }
    return TrainJob.model_validate(fields | changes)


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("cuda", [False, True])
def test_numbers_are_stated_and_none_is_megatrons_default(cuda: bool) -> None:
    words = megatron_argv(job(), cuda=cuda)
    assert value(words, "--hidden-dropout") == value(words, "--attention-dropout") == "0.0"
    assert value(words, "--norm-epsilon") == "1e-06"
    assert value(words, "--normalization") == "RMSNorm"
    assert value(words, "--rotary-base") == "1000000"
    assert value(words, "--adam-eps") == "1e-07"
    assert value(words, "--adam-beta2") == "0.95"
    assert value(words, "--weight-decay") == "0.05"
    assert value(words, "--null-tokenizer-eod-id") == "7"
    assert {"--swiglu", "--disable-bias-linear", "--add-qkv-bias", "--bf16", "--calculate-per-token-loss"} <= {*words}
    assert "--untie-embeddings-and-output-weights" not in words


@pytest.mark.parametrize("cuda", [False, True])
def test_what_the_table_sets_is_owned_or_knowingly_open(cuda: bool) -> None:
    jobs = [job(), job(precision="fp16"), job(recompute="full"), job(pretrained_checkpoint=Path("/import"))]
    if cuda:
        jobs += [
            job(precision="fp8_blockwise"),
            job(state_precision="bf16"),
            job(offload={"optimizer": 1.0, "activation_layers": 1}),
        ]
    for one in jobs:
        assert table_destinations(one, cuda=cuda) - OWNED.keys() <= TUNABLE


WINDOWED = job().hf_config | {"use_sliding_window": True, "sliding_window": 63, "max_window_layers": 1}


@pytest.mark.parametrize("cuda", [False, True])
def test_a_window_is_stated_where_a_sequence_is_longer(cuda: bool) -> None:
    words = megatron_argv(job(hf_config=WINDOWED), cuda=cuda)
    assert value(words, "--window-size") == "62,0"
    assert value(words, "--window-attn-skip-freq") == "[0,1]"
    assert table_destinations(job(hf_config=WINDOWED), cuda=cuda) - OWNED.keys() <= TUNABLE
    wide = WINDOWED | {"sliding_window": 64}
    assert megatron_argv(job(hf_config=wide), cuda=cuda) == megatron_argv(job(), cuda=cuda)


def test_a_window_cannot_be_split_along_the_sequence() -> None:
    split = {"parallelism": {"context": 2}}
    with pytest.raises(ValidationError, match="sliding window of 63 tokens cannot be split along the sequence"):
        job(hf_config=WINDOWED, **split)
    assert job(hf_config=WINDOWED | {"sliding_window": 64}, **split).window is None


def test_an_asynchronous_save_is_not_switched_off_by_a_default() -> None:
    words = megatron_argv(job(checkpoint={"interval": 5, "asynchronous": True}), cuda=True)
    assert {"--async-save", "--use-persistent-ckpt-worker"} <= {*words}
    assert value(words, "--async-strategy") == "mcore"
    assert "--async-save" not in megatron_argv(job(), cuda=True)
    assert (
        table_destinations(job(checkpoint={"interval": 5, "asynchronous": True}), cuda=True) - OWNED.keys() <= TUNABLE
    )


@pytest.mark.parametrize("cuda", [False, True])
def test_what_crashes_when_it_is_left_out_is_stated(cuda: bool) -> None:
    for one in (job(), job(heldout=[])):
        words = megatron_argv(one, cuda=cuda)
        assert value(words, "--eval-interval") == "5"
        assert "--no-one-logger" in words or "--disable-one-logger" in words or not _default("enable_one_logger")
    validated = megatron_argv(job(), cuda=cuda)
    assert {"--full-validation", "--multiple-validation-sets"} <= {*validated}


def _default(dest: str) -> Any:
    return next(flag.default for flag in megatron_flags().values() if flag.dest == dest)


@pytest.mark.parametrize(
    "name",
    [
        # restarts or bends a schedule; loads less than everything; deletes; ends early with status 0; counts in samples
        *("override-opt-param-scheduler", "use-checkpoint-opt_param-scheduler", "use-checkpoint-args"),
        *("dist-ckpt-strictness", "finetune", "no-load-optim", "exit-on-missing-checkpoint"),
        *("save-retain-interval", "exit-interval", "exit-duration-in-mins", "train-samples", "lr-warmup-samples"),
        # needs another package
        "log-energy",
        *("data-cache-path", "async-save", "rotary-base", "rope-scaling-factor", "norm-epsilon"),
    ],
)
def test_arguments_that_undo_a_promise_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"instead|follows from|is set by the pipeline|always recorded"):
        megatron_argv(job(megatron_args={name: 1}), cuda=False)


def test_owned_arguments_exist() -> None:
    assert OWNED.keys() <= {flag.dest for flag in megatron_flags().values()}


def test_the_device_decides_on_the_implementation() -> None:
    cpu, cuda = megatron_argv(job(), cuda=False), megatron_argv(job(), cuda=True)
    assert value(cpu, "--transformer-impl") == "local"
    assert value(cpu, "--distributed-backend") == "gloo"
    assert value(cuda, "--transformer-impl") == "transformer_engine"
    assert value(cuda, "--distributed-backend") == "nccl"
    assert "--deterministic-mode" in cuda
    fast = megatron_argv(job(determinism="fast"), cuda=True)
    assert "--deterministic-mode" not in fast
    assert "--cross-entropy-loss-fusion" in fast
    assert "--cross-entropy-loss-fusion" not in cuda


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("config", "fused"),
    [
        ({}, True),
        ({"qk_nope_head_dim": 96}, False),
        ({"v_head_dim": 192}, False),
        ({"qk_rope_head_dim": 48}, False),
        # Megatron's latent attention refuses to fuse any other kind
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, False),
    ],
)
def test_latent_attention_is_fused_where_the_kernel_takes_its_widths(config: dict[str, Any], fused: bool) -> None:
    deepseek = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "kv_lora_rank": 32,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6,
        "rope_parameters": YARN,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "v_head_dim": 128,
        "vocab_size": 300,
    }
    words = megatron_argv(job(hf_config=deepseek | config), cuda=True)
    assert ("--no-rope-fusion" not in words) == fused


def test_rotary_embeddings_of_other_attention_are_always_fused() -> None:
    assert "--no-rope-fusion" not in megatron_argv(job(), cuda=True)
    assert "--no-rope-fusion" in megatron_argv(job(), cuda=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp8_delayed"}, "precision fp8_delayed needs a CUDA device"),
        ({"parallelism": {"context": 2}}, "parallelism.context 2 needs CUDA devices"),
        ({"precision": "tf32"}, "precision tf32 needs a CUDA device; without one use fp32"),
        ({"state_precision": "bf16"}, "state_precision bf16 needs CUDA"),
        ({"offload": {"optimizer": 0.5}}, "offload needs a CUDA device"),
        ({"megatron_args": {"save": "/elsewhere"}}, "`save` is set by the pipeline: use `checkpoint` instead"),
        ({"megatron_args": {"hiden-dropout": 0.1}}, "did you mean `hidden-dropout`"),
        ({"optimizer": {"lr": 1.0, "decay_style": "WSD"}}, "needs megatron_args: lr-wsd-decay-iters"),
    ],
)
def test_refusals_on_a_cpu(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="m/c/v0001") as caught:
        megatron_argv(job(**changes), cuda=False)
    assert message in str(caught.value)


PRECISIONS = {
    "fp32": set(),
    "tf32": set(),
    "fp16": {"--fp16", "--initial-loss-scale", "--accumulate-allreduce-grads-in-fp32"},
    "bf16": {"--bf16"},
    "fp8_delayed": {"--bf16", "--fp8-format hybrid", "--fp8-recipe delayed"},
    "fp8_tensorwise": {"--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"},
    "fp8_blockwise": {"--bf16", "--fp8-format e4m3", "--fp8-recipe blockwise"},
}


@pytest.mark.parametrize("precision", get_args(Precision))
def test_each_precision_is_said_in_full(precision: str) -> None:
    line = " ".join(megatron_argv(job(precision=precision), cuda=True)) + " "
    for words in set.union(*PRECISIONS.values()):
        assert (f"{words} " in line) == (words in PRECISIONS[precision]), words


@pytest.mark.parametrize(
    ("micro_batch_size", "sequence_length", "initial", "smallest"),
    [(1, 64, 2.0**10, 2.0**-6), (4, 4096, 4.0, 2.0**-14), (2, 96, 2.0**8, 2.0**-8)],
)
def test_the_scale_of_the_loss_goes_by_the_tokens_that_it_sums(
    micro_batch_size: int, sequence_length: int, initial: float, smallest: float
) -> None:
    words = megatron_argv(
        job(precision="fp16", micro_batch_size=micro_batch_size, sequence_length=sequence_length), cuda=True
    )
    assert float(value(words, "--initial-loss-scale")) == initial
    assert float(value(words, "--min-loss-scale")) == smallest


def test_bf16_state_is_said_in_full() -> None:
    words = megatron_argv(job(state_precision="bf16"), cuda=True)
    assert {"--use-precision-aware-optimizer", "--grad-reduce-in-bf16"} <= {*words}
    for flag in ("--main-grads-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"):
        assert value(words, flag) == "bf16"
    # master weights keep their 32 bits
    assert "--main-params-dtype" not in words
    assert not {"--use-precision-aware-optimizer", "--grad-reduce-in-bf16"} & {*megatron_argv(job(), cuda=True)}


def test_what_is_offloaded_is_said_in_full() -> None:
    words = megatron_argv(job(offload={"optimizer": 0.75, "activation_layers": 1}), cuda=True)
    assert {"--optimizer-cpu-offload", "--use-precision-aware-optimizer", "--overlap-cpu-optimizer-d2h-h2d"} <= {*words}
    assert value(words, "--optimizer-offload-fraction") == "0.75"
    assert value(words, "--cpu-offloading-num-layers") == "1"
    plain = megatron_argv(job(), cuda=True)
    assert not [word for word in plain if "offload" in word or "d2h" in word]


def test_further_arguments_are_passed_on_last() -> None:
    words = megatron_argv(job(megatron_args={"init_method_std": 0.01, "log-params-norm": True}), cuda=False)
    assert words[-3:] == ["--init-method-std", "0.01", "--log-params-norm"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 3, "parallelism": {"tensor": 2}}, "world_size 3 is not a multiple"),
        ({"global_batch_size": 6}, "global_batch_size 6 is not a multiple of micro_batch_size 2 x data parallel 2"),
        ({"cadence": [11]}, r"cadence steps \[11\] lie after the last iteration 10"),
        ({"optimizer": {"lr": 1.0, "warmup_iterations": 10}}, "warmup_iterations 10 does not end before"),
        ({"run_dir": "runs"}, "paths must be absolute"),
        ({"seed": 0}, "seed"),
        ({"offload": {"activation_layers": 2}}, "activation_layers 2 is not below the 2 layers"),
        ({"world_size": 2, "document_attention": "masked", "parallelism": {"context": 2}}, "parallelism.context 1"),
        ({"document_attention": "masked", "parallelism": {"pipeline": 2}}, "needs micro_batch_size 1"),
    ],
)
def test_impossible_jobs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job(**changes)
