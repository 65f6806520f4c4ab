"""The model that Megatron builds, as the model's config.json describes it.

Axes:
    S  tokens of a sequence    B  samples of a micro batch    V  vocabulary, padded, of this tensor-parallel rank
"""

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
    config.pre_wrap_hooks = [*config.pre_wrap_hooks, lambda models: _ignore_padding(models, job.vocab_size)]
    if config.transformer.transformer_impl == "local":
        from pamp_pipelines.training.layers import local_block_spec

        config.transformer_layer_spec = local_block_spec
    return config


def _ignore_padding(models: list[Any], vocab_size: int) -> list[Any]:
    """Keep the rows that pad the vocabulary out of the softmax.

    Megatron pads the embedding to a multiple of 128 x tensor parallel size and lets the logits of the padding take part
    in the loss: it would depend on the parallel sizes and differ from Hugging Face's, which knows no padding.
    """
    import torch
    from megatron.core import mpu

    def mask(layer: torch.nn.Module, inputs: Any, outputs: tuple[torch.Tensor, Any]) -> None:
        logits_SBV = outputs[0]
        columns = logits_SBV.size(-1)
        # each tensor-parallel rank has a stretch of columns; padding ends the last one or, with few rows, the last ones
        first = mpu.get_tensor_model_parallel_rank() * columns
        valid = min(max(vocab_size - first, 0), columns)
        if valid < columns:
            logits_SBV[..., valid:] = torch.finfo(logits_SBV.dtype).min

    for model in models:
        if model.post_process:
            model.output_layer.register_forward_hook(mask)
    return models
