"""Multi-head latent attention as DeepSeek's models have it, under Transformer Engine and on a CPU alike."""

from __future__ import annotations

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention

from pamp_pipelines.conversion.architectures.latent import LATENT_NORM_EPSILON


class LatentAttention(MLASelfAttention):
    """``MLASelfAttention`` that normalises compressed keys and values also where queries are not compressed.

    For such models (DeepSeek-V2-Lite, Moonlight) Megatron 0.19.2 puts a norm of its own before the query projection,
    which the models do not have, or, with ``qk_layernorm`` off, leaves out the norm that they have.
    """

    def _resolve_qk_norm_config(self, submodules: Any) -> dict[str, Any]:
        if self.config.q_lora_rank is not None:
            return super()._resolve_qk_norm_config(submodules)
        return {
            "linear_q_proj": submodules.linear_q_proj,
            "linear_q_up_proj": IdentityOp,
            # under Transformer Engine the norm is part of the projection, and kv_layernorm is the identity
            "linear_kv_up_proj": submodules.linear_kv_up_proj,
            "q_layernorm": IdentityOp,
            "kv_layernorm": submodules.kv_layernorm or IdentityOp,
        }


def use_latent_attention(layer: Any) -> None:
    """Let a layer's specification build ``LatentAttention`` where it would build Megatron's."""
    attention = layer.submodules.self_attention
    if attention.module is MLASelfAttention:
        attention.module = LatentAttention


def transformer_engine_block_spec(config: Any, vp_stage: int | None = None) -> Any:
    """Specification of a decoder with latent attention for ``GPTModelConfig.transformer_layer_spec``.

    Args:
        config: the ``GPTModelConfig``.
        vp_stage: virtual pipeline stage, passed on by the model builder.
    """
    block = get_gpt_decoder_block_spec(
        config.transformer,
        use_transformer_engine=True,
        normalization=config.transformer.normalization,
        vp_stage=vp_stage,
    )
    for layer in block.layer_specs:
        use_latent_attention(layer)
    return block


def set_norm_epsilons(model: Any) -> None:
    """Give the norms of compressed queries, keys and values the epsilon that DeepSeek's models have.

    Megatron gives them that of all other norms. Under Transformer Engine they are part of the projection after them.
    """
    for module in model.modules():
        if isinstance(module, MLASelfAttention):
            for name in ("q_layernorm", "kv_layernorm", "linear_q_up_proj", "linear_kv_up_proj"):
                norm = getattr(module, name, None)
                if norm is not None and hasattr(norm, "eps"):
                    norm.eps = LATENT_NORM_EPSILON
