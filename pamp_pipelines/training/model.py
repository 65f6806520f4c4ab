"""The model that Megatron builds, as the model's config.json describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pamp_pipelines.conversion.architectures import megatron_arguments
from pamp_pipelines.training.job import TrainJob


def model_config(args: Any, job: TrainJob) -> Any:
    """``GPTModelConfig`` for ``pretrain``, from parsed arguments.

    Three things that command-line arguments cannot say are set here: the vocabulary of the config.json, which is padded
    by Megatron itself; a fractional rotary base (``--rotary-base`` is an integer); and the rope scaling factor, which
    ``gpt_config_from_args`` does not copy.
    """
    from megatron.training.argument_utils import gpt_config_from_args

    arguments: Mapping[str, Any] = megatron_arguments(job.hf_config)
    config = gpt_config_from_args(args)
    config.vocab_size = job.vocab_size
    config.should_pad_vocab = True
    config.rotary_base = arguments["rotary_base"]
    config.rope_scaling_factor = arguments.get("rope_scaling_factor", config.rope_scaling_factor)
    if config.transformer.transformer_impl == "local":
        from pamp_pipelines.training.layers import local_block_spec

        config.transformer_layer_spec = local_block_spec
    return config
