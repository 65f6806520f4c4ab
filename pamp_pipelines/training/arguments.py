"""From a training job to Megatron's command line: the one table.

Every numeric argument that shapes the model, the optimizer or the data order is stated here or in the architecture's
table; Megatron's defaults (dropout 0.1, LayerNorm, …) are never inherited. Keys are argparse destinations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pamp_pipelines.conversion.architectures import megatron_arguments
from pamp_pipelines.declarations.cuda_needs import cuda_needs
from pamp_pipelines.declarations.megatron_flags import (
    MegatronFlag,
    megatron_flags,
    passthrough_argv,
    passthrough_problems,
)
from pamp_pipelines.errors import InputError
from pamp_pipelines.training.job import TrainJob

_PRECISION: Mapping[str, dict[str, Any]] = {
    # which of the two it is, libraries are told: see arithmetic.py
    "fp32": {},
    "tf32": {},
    "bf16": {"bf16": True},
    # sums over micro batches and processes are float32, as with bf16
    "fp16": {"fp16": True, "accumulate_allreduce_grads_in_fp32": True},
    "fp8_delayed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "delayed"},
    "fp8_tensorwise": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_blockwise": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "blockwise"},
}

_STATE: Mapping[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": "bf16",
        "exp_avg_sq_dtype": "bf16",
        "main_grads_dtype": "bf16",
        # otherwise the buffers that gradients are added up in stay float32
        "grad_reduce_in_bf16": True,
    },
}

_RECOMPUTE: Mapping[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


# without the persistent worker Megatron warns and saves synchronously; its default strategy is another package's
_ASYNCHRONOUS: Mapping[str, Any] = {
    "async_save": True,
    "async_strategy": "mcore",
    "use_persistent_ckpt_worker": True,
}


def megatron_argv(job: TrainJob, *, cuda: bool) -> list[str]:
    """The command line that makes ``megatron.training.pretrain`` run the job.

    Args:
        job: what to run.
        cuda: whether the processes have CUDA devices; without, they run under ``cpu_adapter``.

    Raises:
        InputError: the job asks for something that this machine or Megatron cannot do.
    """
    words = [word for dest, value in _table(job, cuda=cuda).items() for word in _words(dest, value)]
    if problems := passthrough_problems(job.megatron_args):
        raise InputError(f"{job.name}: megatron_args: {'; '.join(problems.values())}")
    return words + [word for name, value in job.megatron_args.items() for word in passthrough_argv(name, value)]


def _table(job: TrainJob, *, cuda: bool) -> dict[str, Any]:
    model = _model(job)
    return {
        **model,
        # parsed as an integer; the exact one is set in model.py
        "rotary_base": int(model["rotary_base"]),
        **_regularization(job),
        **_optimizer(job),
        **_parallelism(job),
        **_PRECISION[job.precision],
        **(_loss_scale(job) if job.precision == "fp16" else {}),
        **_RECOMPUTE[job.recompute],
        **_offload(job),
        **_faults(job),
        **_data(job),
        **_checkpoints(job),
        **_validation(job),
        **_telemetry(job),
        **(_on_cuda(job) if cuda else _on_cpu(job)),
    }


def _model(job: TrainJob) -> dict[str, Any]:
    """A window that no sequence is longer than is none: kernels that know no window are faster."""
    model = megatron_arguments(job.hf_config)
    idle = () if job.window else ("window_size", "window_attn_skip_freq")
    return {dest: value for dest, value in model.items() if dest not in idle}


def _regularization(job: TrainJob) -> dict[str, Any]:
    return {
        "hidden_dropout": job.dropout.hidden,
        "attention_dropout": job.dropout.attention,
        "seed": job.seed,
    }


def _loss_scale(job: TrainJob) -> dict[str, Any]:
    """Where dynamic loss scaling starts and ends.

    The loss of a micro batch is the sum of its tokens' and not their mean, so gradients are larger by their number, and
    what usually fits float16 (a scale of 2^16, at least 1) has to be smaller by it. NVIDIA's start of 2^32 costs dozens
    of skipped steps, and its end of 1 is never left where more than some 2^16 tokens are summed.
    """
    tokens = job.micro_batch_size * job.sequence_length // job.parallelism.context
    usual = 2.0 ** -math.ceil(math.log2(tokens))
    return {"initial_loss_scale": 2.0**16 * usual, "min_loss_scale": usual, "loss_scale_window": 1000.0}


def _optimizer(job: TrainJob) -> dict[str, Any]:
    o = job.optimizer
    if o.decay_style == "WSD" and "lr-wsd-decay-iters" not in {name.replace("_", "-") for name in job.megatron_args}:
        raise InputError(f"{job.name}: optimizer.decay_style WSD needs megatron_args: lr-wsd-decay-iters")
    return {
        "optimizer": "adam",
        "lr": o.lr,
        "min_lr": o.min_lr,
        "lr_decay_style": o.decay_style,
        "lr_decay_iters": job.decay_iterations,
        "lr_warmup_iters": o.warmup_iterations,
        "lr_warmup_init": 0.0,
        "weight_decay": o.weight_decay,
        "weight_decay_incr_style": "constant",
        "adam_beta1": o.beta1,
        "adam_beta2": o.beta2,
        "adam_eps": o.eps,
        "clip_grad": o.clip_grad,
        # every token of a global batch weighs the same, however it is cut into micro batches
        "calculate_per_token_loss": True,
        **_STATE[job.state_precision],
    }


def _parallelism(job: TrainJob) -> dict[str, Any]:
    p = job.parallelism
    if p.tensor > 1 and not p.sequence_parallel and "num_experts" in megatron_arguments(job.hf_config):
        raise InputError(
            f"{job.name}: parallelism.tensor {p.tensor} without sequence_parallel: Megatron trains no model with "
            "routed experts so; set parallelism.sequence_parallel"
        )
    return {
        "tensor_model_parallel_size": p.tensor,
        "pipeline_model_parallel_size": p.pipeline,
        "context_parallel_size": p.context,
        "expert_model_parallel_size": p.expert,
        "sequence_parallel": p.sequence_parallel,
        "use_distributed_optimizer": p.distributed_optimizer,
        "overlap_grad_reduce": p.overlap_grad_reduce,
        "overlap_param_gather": p.overlap_param_gather,
    }


def _offload(job: TrainJob) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if job.offload.optimizer:
        found |= {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": job.offload.optimizer,
            # Megatron takes the one only with the other
            "use_precision_aware_optimizer": True,
        }
    if job.offload.activation_layers:
        found["cpu_offloading_num_layers"] = job.offload.activation_layers
    return found


def _faults(job: TrainJob) -> dict[str, Any]:
    """Megatron's search for numbers that are not finite waits for the GPU at each micro batch and each part of the
    gradients. ``fast`` looks at the norm of all gradients instead, which is on the host after every step: see loop.py.
    """
    no_norm = not job.optimizer.clip_grad
    return {"check_for_nan_in_loss_and_grad": job.determinism == "exact" or no_norm}


def _data(job: TrainJob) -> dict[str, Any]:
    masked = job.document_attention == "masked"
    return {
        "seq_length": job.sequence_length,
        "train_iters": job.iterations,
        "global_batch_size": job.global_batch_size,
        "micro_batch_size": job.micro_batch_size,
        # the loaders are the pipeline's own: see data.py
        "dataloader_type": "external",
        "create_attention_mask_in_dataloader": False,
        # documents are packed sequences to the model: see forward.py
        **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), masked),
        "tokenizer_type": "NullTokenizer",
        "vocab_size": job.vocab_size,
        "null_tokenizer_eod_id": job.eod_id,
    }


def _checkpoints(job: TrainJob) -> dict[str, Any]:
    directory = str(job.checkpoints_dir)
    return {
        "save": directory,
        # a fresh directory starts from the pretrained checkpoint, one that has a checkpoint resumes from it
        "load": directory,
        **({"pretrained_checkpoint": str(job.pretrained_checkpoint)} if job.pretrained_checkpoint else {}),
        "save_interval": job.checkpoint.interval,
        "ckpt_format": "torch_dist",
        # otherwise a run cannot be resumed with other parallel sizes
        "dist_ckpt_optim_fully_reshardable": job.parallelism.distributed_optimizer,
        "exit_signal_handler": True,
        **(_ASYNCHRONOUS if job.checkpoint.asynchronous else {}),
    }


def _validation(job: TrainJob) -> dict[str, Any]:
    # one window batch per pipeline stage keeps all stages busy
    windows = job.micro_batch_size * job.data_parallel * job.parallelism.pipeline
    return {
        "eval_interval": job.validation.interval,
        "eval_micro_batch_size": job.micro_batch_size,
        "eval_global_batch_size": windows,
        "eval_iters": 0,
        **(
            {
                "full_validation": True,
                "multiple_validation_sets": True,
                "validation_set_names": [shards.corpus for shards in job.heldout],
            }
            if job.heldout
            else {}
        ),
    }


def _telemetry(job: TrainJob) -> dict[str, Any]:
    return {
        "log_interval": job.log_interval,
        "tensorboard_dir": str(job.run_dir / "tensorboard"),
        "tensorboard_log_interval": job.log_interval,
        "log_timers_to_tensorboard": True,
        "enable_one_logger": False,
    }


def _on_cuda(job: TrainJob) -> dict[str, Any]:
    exact, model = job.determinism == "exact", megatron_arguments(job.hf_config)
    return {
        "transformer_impl": "transformer_engine",
        "distributed_backend": "nccl",
        "deterministic_mode": exact,
        "moe_grouped_gemm": "num_experts" in model,
        "apply_rope_fusion": _fuses_rotary(model),
        # the two exclude each other: the fused kernel adds in no fixed order
        "cross_entropy_loss_fusion": not exact,
        # needs a kernel of Apex in the output layer; model.py switches it on where Transformer Engine does it
        "gradient_accumulation_fusion": False,
        **({"overlap_cpu_optimizer_d2h_h2d": True} if job.offload.optimizer else {}),
        # collections of different ranks at different times would make all wait for each
        "manual_gc": True,
        "manual_gc_interval": 100,
    }


def _fuses_rotary(model: Mapping[str, Any]) -> bool:
    """Whether Megatron's fused rotary kernel takes the model.

    That of latent attention (`fused_mla_yarn_rope_apply.py` of 0.19.2) does YaRN alone, and each width that it reads is
    a `tl.arange`, which Triton compiles for powers of two only: halves of the rotary part, keys and values.
    """
    if not model.get("multi_latent_attention"):
        return True
    widths = (model["qk_pos_emb_head_dim"] // 2, model["qk_head_dim"], model["v_head_dim"])
    return model["rope_type"] == "yarn" and all(width > 0 and width & (width - 1) == 0 for width in widths)


def _on_cpu(job: TrainJob) -> dict[str, Any]:
    """What has no CPU implementation is off; arithmetic in a fixed order is all a CPU has, so both modes are exact."""
    if needs := cuda_needs(job.precision, job.state_precision, job.parallelism, job.offload):
        raise InputError(f"{job.name}: {'; '.join(needs.values())}")
    return {
        "transformer_impl": "local",
        "distributed_backend": "gloo",
        "use_cpu_initialization": True,
        # kernels of Apex and Transformer Engine
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "no_persist_layer_norm": True,
        # compiled by torch.compile, which the adapter switches off
        "bias_swiglu_fusion": False,
        "bias_dropout_fusion": False,
        # repeats a step to tell a faulty device from a diverged run, and wants another device to decide; here a result
        # that is not finite ends the run at once
        "rerun_mode": "disabled",
        # workers fork after threads of the math libraries have started
        "num_workers": 0,
    }


def _words(dest: str, value: Any) -> list[str]:
    """Command-line words after which argparse holds ``value`` in ``dest``."""
    flags = list({flag.flags: flag for flag in megatron_flags().values() if flag.dest == dest}.values())
    if not flags:
        raise InputError(f"Megatron has no argument with destination {dest}")
    if isinstance(value, bool):
        return _switch(dest, value, flags)
    return flags[0].argv([value] if flags[0].nargs == "+" and not isinstance(value, list) else value)


def _switch(dest: str, value: bool, flags: list[MegatronFlag]) -> list[str]:
    for flag in flags:
        if flag.action == "boolean":
            return flag.argv(value)
        if flag.action == ("store_true" if value else "store_false"):
            return flag.argv(True)
    default = flags[0].default
    if bool(default) is not value:
        raise InputError(f"Megatron cannot set {dest} to {value}")
    return []


def table_destinations(job: TrainJob, *, cuda: bool) -> frozenset[str]:
    """Every destination that the table sets; the user may not set those in ``megatron_owned.OWNED``."""
    return frozenset(_table(job, cuda=cuda))
