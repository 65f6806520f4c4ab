"""Layers for processes without Transformer Engine: torch attention, and a norm that sequence parallelism takes.

Axes:
    S  tokens of a sequence      B  samples of a micro batch
    N  query heads of this rank  G  key/value heads of this rank      D  width of a head
"""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch.nn.functional import scaled_dot_product_attention

from pamp_pipelines.training.latent import use_latent_attention


class TorchAttention(MegatronModule):
    """Causal attention by ``torch.nn.functional.scaled_dot_product_attention``.

    Megatron's own ``DotProductAttention`` repeats the key and value heads and materialises all scores; this is faster
    and gives the same bits as Hugging Face's ``sdpa`` attention. One context-parallel rank only.

    ``window_size`` is that of Transformer Engine's attention: how many tokens before itself a token of this layer sees
    (-1: all), and how many after.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        **unused: Any,
    ) -> None:
        super().__init__(config=config)
        self.attn_mask_type = attn_mask_type
        head_width = k_channels or config.kv_channels
        self.scale = 1.0 / math.sqrt(head_width) if softmax_scale is None else softmax_scale
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window_size = config.window_size if windowed else (-1, 0)

    def forward(
        self,
        query_SBND: torch.Tensor,
        key_SBGD: torch.Tensor,
        value_SBGD: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        packed_seq_params: Any = None,
        **unused: Any,
    ) -> torch.Tensor:
        """Context of shape (S, B, N*D) in the dtype of the query.

        Args:
            attention_mask: True where attention is forbidden, broadcastable to (B, N, S, S); None means causal, within
                the layer's window. A mask that is given says all.
            packed_seq_params: Megatron's, with the bounds of sequences that do not see each other; query, key and
                value then have no axis B, nor has the context.
        """
        if packed_seq_params is not None:
            lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
            parts = zip(*(tensor.split(lengths) for tensor in (query_SBND, key_SBGD, value_SBGD)), strict=True)
            return torch.cat([self(*(part[:, None] for part in sequence), None)[:, 0] for sequence in parts])
        causal = attention_mask is None and (attn_mask_type or self.attn_mask_type) == AttnMaskType.causal
        if causal and 0 <= self.window_size[0] < query_SBND.size(0) - 1:
            causal, attention_mask = False, _outside_window_SS(query_SBND, self.window_size[0])
        query_BNSD, key_BGSD, value_BGSD = (t.permute(1, 2, 0, 3) for t in (query_SBND, key_SBGD, value_SBGD))

        def attend() -> torch.Tensor:
            return scaled_dot_product_attention(
                query_BNSD,
                key_BGSD,
                value_BGSD,
                attn_mask=None if attention_mask is None else ~attention_mask,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=causal,
                scale=self.scale,
                enable_gqa=query_BNSD.size(1) != key_BGSD.size(1),
            )

        if self.training and self.dropout > 0.0:
            # heads differ between tensor-parallel ranks, so their dropout must as well
            with tensor_parallel.get_cuda_rng_tracker().fork():
                context_BNSD = attend()
        else:
            context_BNSD = attend()
        context_SBND = context_BNSD.permute(2, 0, 1, 3)
        return context_SBND.reshape(context_SBND.size(0), context_SBND.size(1), -1)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """Nothing: attention has no parameters."""
        return {}


def _outside_window_SS(query_SBND: torch.Tensor, before: int) -> torch.Tensor:
    """True where a key comes after the query's token, or more than ``before`` tokens ahead of it."""
    seen_SS = torch.ones(query_SBND.size(0), query_SBND.size(0), dtype=torch.bool, device=query_SBND.device)
    return ~seen_SS.tril().triu(-before)


class SequenceParallelNorm(torch.nn.RMSNorm):
    """RMSNorm whose weight is marked so that its gradient is summed over the tensor-parallel ranks.

    Megatron's ``WrappedTorchNorm`` refuses sequence parallelism, although the sum is all that is missing.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **unused: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def local_block_spec(config: Any, vp_stage: int | None = None) -> Any:
    """Specification of the decoder for ``GPTModelConfig.transformer_layer_spec``.

    Args:
        config: the ``GPTModelConfig``.
        vp_stage: virtual pipeline stage, passed on by the model builder.
    """
    block = get_gpt_decoder_block_spec(
        config.transformer,
        use_transformer_engine=False,
        normalization=config.transformer.normalization,
        vp_stage=vp_stage,
    )
    for layer in block.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = TorchAttention
        use_latent_attention(layer)
        layer.submodules.sharded_state_dict_keys_map = _checkpoint_names(layer.submodules)
    if config.transformer.sequence_parallel:
        for layer in block.layer_specs:
            for submodules in (layer.submodules, layer.submodules.self_attention.submodules):
                for name, value in vars(submodules).items():
                    if value is WrappedTorchNorm:
                        setattr(submodules, name, SequenceParallelNorm)
        block.layer_norm = SequenceParallelNorm
    return block


def _checkpoint_names(layer: Any) -> dict[str, str]:
    """Names of a local layer's norms in checkpoints, so that they are those of Transformer Engine's layers.

    There a norm is fused with the projection after it, but for the one before experts and the one before latent
    attention. Megatron's own map is right for dense layers only.
    """
    names = {}
    if issubclass(layer.self_attention.module, MLASelfAttention):
        names["self_attention.q_layernorm."] = "self_attention.linear_q_up_proj.layer_norm_"
        names["self_attention.kv_layernorm."] = "self_attention.linear_kv_up_proj.layer_norm_"
    else:
        names["input_layernorm."] = "self_attention.linear_qkv.layer_norm_"
    if _module(layer.mlp) is not MoELayer:
        names["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
    return names


def _module(spec: Any) -> Any:
    """The class that a specification builds: a ``ModuleSpec``, or a constructor with arguments bound."""
    return getattr(spec, "module", None) or getattr(spec, "func", spec)
