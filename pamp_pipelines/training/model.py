"""The model that Megatron builds, as the model's config.json describes it.

Axes:
    S  tokens of a sequence    B  samples of a micro batch    V  vocabulary, padded, of this tensor-parallel rank
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from megatron.core import mpu
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.training.argument_utils import gpt_config_from_args
from megatron.training.models.gpt import GPTModelBuilder, GPTModelConfig

from pamp_pipelines.conversion.architectures import megatron_arguments
from pamp_pipelines.conversion.architectures.rope import Rope, rope_of
from pamp_pipelines.training import latent, rotary
from pamp_pipelines.training.job import TrainJob


@dataclass(kw_only=True)
class ModelConfig(GPTModelConfig):
    """``GPTModelConfig`` whose builder also applies what Megatron's has no field for."""

    builder: ClassVar[str] = "pamp_pipelines.training.model.ModelBuilder"
    rope: Rope = field(default_factory=lambda: Rope(10000.0, "default", {}))


class ModelBuilder(GPTModelBuilder):
    """Builds Megatron's ``GPTModel`` with the model's own rope scaling and without a say for vocabulary padding."""

    def build_model(self, *args: Any, **kwargs: Any) -> GPTModel:
        config: Any = self._model_config
        rotary.configure(config.transformer, config.rope)
        model = super().build_model(*args, **kwargs)
        if config.transformer.multi_latent_attention:
            latent.set_norm_epsilons(model)
        else:
            rotary.scale(model.rotary_pos_emb, config.rope)
        if model.post_process:
            model.output_layer.register_forward_hook(partial(_mask_padding, config.vocab_size))
        if config.transformer.transformer_impl == "transformer_engine":
            _fuse_weight_gradients(model)
        return model


def model_config(args: Any, job: TrainJob) -> ModelConfig:
    """The model's configuration for ``pretrain``, from parsed arguments.

    Two things that command-line arguments cannot say are set here: the vocabulary of the config.json, which the builder
    pads, and a fractional rotary base (``--rotary-base`` is an integer).
    """
    arguments: Mapping[str, Any] = megatron_arguments(job.hf_config)
    config = gpt_config_from_args(args, model_config_cls=ModelConfig)
    config.vocab_size = job.vocab_size
    config.should_pad_vocab = True
    config.rotary_base = arguments["rotary_base"]
    if config.transformer.multi_latent_attention:
        config.transformer.rotary_base = arguments["rotary_base"]
    config.rope = rope_of(job.hf_config)
    if job.cross_entropy == "transformer_engine" and torch.cuda.is_available():
        # Megatron's command line refuses it, its models take it
        config.transformer.cross_entropy_loss_fusion = True
        config.transformer.cross_entropy_fusion_impl = "te"
    if config.transformer.transformer_impl == "local":
        from pamp_pipelines.training.layers import local_block_spec

        config.transformer_layer_spec = local_block_spec
    elif config.transformer.multi_latent_attention:
        config.transformer_layer_spec = latent.transformer_engine_block_spec
    return config


def _fuse_weight_gradients(model: torch.nn.Module) -> None:
    """Let Transformer Engine's matrix products add weight gradients to the float32 ones that Megatron reduces.

    They need nothing for it, but Megatron's one argument for all layers (``gradient_accumulation_fusion``) also reaches
    the output layer, which insists on a kernel of Apex. Without it each gradient is rounded to bf16 and added later.
    """
    for module in model.modules():
        if hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = True  # type: ignore[assignment]


def _mask_padding(vocab_size: int, layer: torch.nn.Module, inputs: Any, outputs: tuple[torch.Tensor, Any]) -> None:
    """Keep the rows that pad the vocabulary out of the softmax.

    Megatron pads the embedding to a multiple of 128 x tensor parallel size and lets the logits of the padding take part
    in the loss, which would then depend on the parallel sizes and differ from Hugging Face's, which knows no padding.
    """
    logits_SBV = outputs[0]
    columns = logits_SBV.size(-1)
    # each tensor-parallel rank has a stretch of columns; padding ends the last one or, with few rows, the last ones
    first = mpu.get_tensor_model_parallel_rank() * columns
    valid = min(max(vocab_size - first, 0), columns)
    if valid < columns:
        logits_SBV[..., valid:] = torch.finfo(logits_SBV.dtype).min
