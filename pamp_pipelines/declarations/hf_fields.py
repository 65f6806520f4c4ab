"""Fields of the config.json files of the supported families, to find misspelt ones without transformers.

A test compares them with the config classes of the installed transformers, and with what the conversion reads.
"""

from __future__ import annotations

from collections.abc import Mapping

_GENERIC = """
        _name_or_path architectures auto_map chunk_size_feed_forward dtype id2label is_encoder_decoder label2id
        model_type output_attentions output_hidden_states problem_type return_dict tokenizer_class torch_dtype
        transformers_version"""

_DECODER = """
        attention_dropout bos_token_id eos_token_id hidden_act hidden_size initializer_range intermediate_size
        max_position_embeddings num_attention_heads num_hidden_layers num_key_value_heads pad_token_id rms_norm_eps
        rope_parameters tie_word_embeddings use_cache vocab_size"""

_READ = """
        attention_bias head_dim layer_types mlp_bias original_max_position_embeddings partial_rotary_factor
        quantization_config rope_scaling rope_theta sliding_window use_sliding_window"""
"""What the conversion reads besides in each family: names of transformers 4, and what is refused where it is set."""

_FAMILIES: Mapping[str, str] = {
    "llama": """
        attention_bias head_dim mlp_bias pretraining_tp""",
    "mistral": """
        head_dim sliding_window""",
    "mixtral": """
        head_dim num_experts num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef
        router_jitter_noise sliding_window""",
    "qwen2": """
        layer_types max_window_layers sliding_window use_sliding_window""",
    "qwen2_moe": """
        decoder_sparse_step layer_types max_window_layers mlp_only_layers moe_intermediate_size norm_topk_prob
        num_experts num_experts_per_tok output_router_logits qkv_bias router_aux_loss_coef
        shared_expert_intermediate_size sliding_window use_sliding_window""",
    "qwen3": """
        attention_bias head_dim layer_types max_window_layers sliding_window use_sliding_window""",
    "qwen3_moe": """
        attention_bias decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts
        num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef sliding_window
        use_sliding_window""",
    "deepseek_v2": """
        attention_bias aux_loss_alpha first_k_dense_replace head_dim kv_lora_rank mlp_bias moe_intermediate_size
        moe_layer_freq n_group n_routed_experts n_shared_experts norm_topk_prob num_experts num_experts_per_tok
        num_nextn_predict_layers output_router_logits pretraining_tp q_lora_rank qk_head_dim qk_nope_head_dim
        qk_rope_head_dim routed_scaling_factor router_aux_loss_coef scoring_func seq_aux topk_group topk_method
        v_head_dim""",
    "deepseek_v3": """
        attention_bias aux_loss_alpha first_k_dense_replace head_dim kv_lora_rank moe_intermediate_size
        moe_layer_freq n_group n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok
        num_local_experts num_mtp_layers num_nextn_predict_layers output_router_logits pretraining_tp q_lora_rank
        qk_head_dim qk_nope_head_dim qk_rope_head_dim rope_interleave routed_scaling_factor router_aux_loss_coef
        scoring_func seq_aux topk_group topk_method v_head_dim""",
}

CLASSES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
"""Value of `architectures` to value of `model_type`."""

_ROPE = """
    attention_factor beta_fast beta_slow factor high_freq_factor long_factor low_freq_factor mscale mscale_all_dim
    original_max_position_embeddings partial_rotary_factor rope_theta rope_type short_factor truncate type"""
ROPE_FIELDS = frozenset(_ROPE.split())
"""Fields of `rope_parameters` (transformers 5) and `rope_scaling` (before)."""


def known_fields(model_type: str) -> frozenset[str]:
    """Every field that a config.json of this family may have a reason to set.

    Raises:
        KeyError: the family is not supported.
    """
    return frozenset(f"{_GENERIC} {_DECODER} {_READ} {_FAMILIES[model_type]}".split())
