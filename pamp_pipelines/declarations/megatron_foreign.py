"""Megatron arguments of other architectures, objectives and programs, which `megatron_args` may not set either."""

from __future__ import annotations

from collections.abc import Mapping

_REASONS: Mapping[str, str] = {
    "it follows from the model's config.json": """
        activation_func_clamp_value add_position_embedding apply_residual_connection_post_layernorm decoder_num_layers
        dsa_indexer_head_dim dsa_indexer_k_norm_epsilon dsa_indexer_k_norm_fp32 dsa_indexer_loss_coeff
        dsa_indexer_n_heads dsa_indexer_rope_interleaved dsa_indexer_rotate_activation dsa_indexer_scoring_relu
        dsa_indexer_skip_topk_offset dsa_indexer_topk dsa_indexer_topk_freq dsa_indexer_use_sparse_loss
        dsa_kernel_backend encoder_num_layers experimental_attention_variant glu_linear_offset
        heterogeneous_layers_config_encoded_json heterogeneous_layers_config_path hybrid_layer_pattern
        hybrid_override_pattern is_hybrid_model layernorm_zero_centered_gamma linear_attention_freq
        linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
        mamba_head_dim mamba_num_groups mamba_num_heads mamba_state_dim moe_apply_probs_on_input moe_latent_size
        moe_upcycling_granularity moe_use_upcycling mrope_section mtp_hybrid_override_pattern mtp_standalone
        mtp_use_repeated_layer mup_attn_scale_power mup_base_head_dim mup_base_hidden_size mup_embedding_mult
        mup_output_mult mup_width_mult no_rope_freq qk_l2_norm relative_attention_max_distance
        relative_attention_num_buckets softmax_type use_mamba_mem_eff_path use_mup window_attn_skip_freq yarn_beta_fast
        yarn_beta_slow yarn_correction_range_round_to_int yarn_original_max_position_embeddings""",
    "it changes how weights lie in a checkpoint, which conversion relies on": """
        mla_down_proj_fusion moe_mlp_glu_interleave_size moe_shared_expert_glu_interleave_size moe_single_grouped_bias
        moe_single_grouped_weight use_fused_weighted_squared_relu use_grouped_gemm_for_dense_mlp
        use_grouped_gemm_for_shared_expert""",
    "no token is dropped or sent to experts by force, as in transformers": """
        moe_expert_capacity_factor moe_expert_rank_capacity_factor moe_pad_expert_input_to_capacity
        moe_router_force_biased moe_router_force_load_balancing moe_token_drop_policy""",
    "it names code to run; only this project's and Megatron's is run": """
        fp4_quantizer_factory fp8_quantizer_factory langrl_env_config spec trust_remote_code""",
    "all weights are initialised from `seed` or the import, and trained": """
        freeze_all_layers perform_initialization""",
    "the objective is the next token of the declared corpora": """
        logits_load_decode_threads logits_load_dir logits_load_ignore_errors logits_load_kd_loss_alpha
        logits_load_msc_prefetch_depth logits_load_prefetch_factor logits_save_dir logits_save_dtype logits_save_top_k
        logits_save_top_p logits_save_top_p_min_k phase_transition_iterations""",
    "the pipeline does no reinforcement learning": """
        grpo_clamp_eps_lower grpo_clamp_eps_upper grpo_entropy_term_weight grpo_filter_groups_with_same_reward
        grpo_group_size grpo_iterations grpo_kl_beta grpo_prompts_per_step moe_enable_routing_replay perform_rl_step
        refit_method rl_consumption_granularity rl_default_temperature rl_default_top_k rl_default_top_p
        rl_generation_lag rl_importance_sampling_truncation_coef rl_inference_expert_model_parallel_size
        rl_inference_expert_tensor_model_parallel_size rl_inference_logprobs_is_correction
        rl_inference_model_unified_memory_level rl_inference_parsers rl_inference_pipeline_model_parallel_size
        rl_inference_tensor_model_parallel_size rl_kv_cache_management_mode rl_offload_inference_model_weights_when_idle
        rl_offload_optimizer_during_inference rl_partial_rollouts rl_persist_cuda_graphs rl_profile rl_profile_dir
        rl_prompts_per_eval rl_sequence_packing_algo rl_sequence_packing_max_sequences_per_bin rl_skip_bos_token
        rl_submission_granularity rl_training_cuda_graphs rl_use_sequence_packing rl_verify_model_weights_swap""",
    "use `corpora` instead": """
        allow_ambiguous_pad_tokens dataloader_defer_npy_index_mmap dataloader_fast_cache_load fim_eod_token
        fim_fragment_rate fim_middle_token fim_no_prefix fim_pad_token fim_prefix_token fim_rate fim_split_sample
        fim_spm_rate fim_suffix_token hybrid_context_parallel max_seqlen_per_dp_cp_rank object_storage_cache_path""",
    "it follows from the model's tokenizer": """
        chat_template metadata_path sft_tokenizer_prompt_format special_tokens tokenizer_hf_no_include_special_tokens
        tokenizer_hf_no_use_fast tokenizer_sentencepiece_ignore_extra_whitespaces tokenizer_sentencepiece_legacy
        use_tokenizer_model_from_checkpoint_args""",
    "the optimizer is AdamW": """
        lion_beta1 lion_beta2 muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec muon_momentum
        muon_nesterov muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_split_qkv muon_tp_mode sgd_momentum
        use_layer_wise_param_layout""",
    "use `optimizer.weight_decay` instead": "end_weight_decay start_weight_decay weight_decay_incr_style",
    "use `optimizer.warmup_iterations` instead, which starts at 0": "lr_warmup_init warmup",
    "use `lr-wsd-decay-iters` instead": "lr_wsd_decay_samples",
    "use `precision` instead": "fp4_param_gather te_precision_config_file",
    "use `recompute` instead": "checkpoint_activations moe_layer_recompute",
    "use `micro_batch_size` instead": "batch_size",
    "use `parallelism.tensor` instead": "model_parallel_size",
    "use `parallelism` instead": "expert_tensor_parallel_num_weight_shards tensor_parallel_num_weight_shards",
    "use `parallelism.distributed_optimizer` instead": """
        data_parallel_sharding_strategy enable_full_sharding_in_hsdp fsdp_db_use_persist_buf_on_alloc_fail
        fsdp_double_buffer fsdp_manual_registration init_model_with_meta_device
        megatron_fsdp_enable_fine_grained_param_gather megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype
        megatron_fsdp_main_params_dtype megatron_fsdp_max_pool_double_buffer outer_dp_sharding_strategy
        strict_fsdp_dtensor_load suggested_communication_unit_size torch_fsdp2_reshard_after_forward""",
    "Megatron 0.19 cannot measure several held-out sets under an interleaved pipeline": (
        "microbatch_group_size_per_vp_stage"
    ),
    "use `checkpoint` instead": """
        async_save async_strategy ckpt_convert_update_legacy_dist_opt_format ckpt_fully_parallel_save_deprecated
        disable_msc_deprecated dist_ckpt_save_pre_mcore_014 non_persistent_local_ckpt_algo replication
        replication_factor replication_jump stream_ckpt_dequant use_persistent_ckpt_worker""",
    "the launcher starts, watches and ends the processes": """
        adlr_autoresume_interval calc_ft_timeouts enable_ft_package exit_signal_handler_for_dataloader
        ft_num_warmup_iters inprocess_active_world_size inprocess_barrier_timeout inprocess_completion_timeout
        inprocess_empty_cuda_cache inprocess_granularity inprocess_hard_timeout inprocess_heartbeat_interval
        inprocess_heartbeat_timeout inprocess_last_call_wait inprocess_max_iterations
        inprocess_monitor_process_interval inprocess_monitor_thread_interval inprocess_progress_watchdog_interval
        inprocess_restart inprocess_soft_timeout inprocess_termination_grace_time run_workload_inspector_server""",
    "it makes a run fail on purpose": """
        error_injection_rate error_injection_type fault_injector_delay_start_iteration fault_injector_fault_delay
        fault_injector_fault_probabilities fault_injector_fault_types fault_injector_mtti_seconds
        fault_injector_num_ranks fault_injector_offset_seconds fault_injector_ranks fault_injector_seed test_mode""",
    "it reports to a service outside": """
        app_tag_run_name app_tag_run_version one_logger_async one_logger_project one_logger_run_name""",
    "it is for Megatron's inference": """
        cache_mla_latents decode_only_cuda_graphs enable_chunked_prefill flash_decode
        inference_batch_times_seqlen_threshold inference_coordinator_port inference_cuda_graph_all_prefills
        inference_cuda_graph_max_tokens inference_cuda_graph_scope inference_disable_ep_consensus
        inference_disable_triton_nvls_kernels inference_dynamic_batching inference_dynamic_batching_async_sched_mode
        inference_dynamic_batching_block_size inference_dynamic_batching_buffer_size_gb
        inference_dynamic_batching_cuda_graph_mixed_prefill_count
        inference_dynamic_batching_cuda_graph_sizing_distribution inference_dynamic_batching_enable_prefix_caching
        inference_dynamic_batching_logprobs_mode inference_dynamic_batching_mamba_memory_ratio
        inference_dynamic_batching_max_requests inference_dynamic_batching_max_tokens
        inference_dynamic_batching_num_cuda_graphs inference_dynamic_batching_paused_buffer_size_gb
        inference_dynamic_batching_prefix_caching_coordinator_policy
        inference_dynamic_batching_prefix_caching_eviction_policy inference_dynamic_batching_prefix_caching_mamba_gb
        inference_dynamic_batching_prefix_caching_routing_alpha inference_dynamic_batching_sampling_backend
        inference_dynamic_batching_track_generated_token_events inference_dynamic_batching_track_paused_request_events
        inference_dynamic_batching_unified_memory_level inference_fuse_tp_communication inference_grouped_gemm_backend
        inference_logging_step_interval inference_max_requests inference_max_seq_length
        inference_moe_disable_fused_quant_kernels inference_moe_token_dispatcher_type inference_rng_tracker
        inference_shards inference_text_gen_server_logging inference_use_synchronous_zmq_collectives
        inference_wandb_logging mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype
        mamba_training_ssm_states_dtype max_tokens_to_oom mlp_chunks_for_prefill nccl_all_reduce_for_prefill
        num_speculative_tokens offset_sampling_seed_by_dp_rank symmetric_ar_type use_legacy_static_engine""",
    "it is for Megatron's BERT, retrieval and vision programs": """
        bert_binary_head bert_embedder_type bert_load biencoder_projection_dim biencoder_shared_query_context_model
        block_data_path classes_fraction data_per_class_fraction dino_bottleneck_size dino_freeze_last_layer
        dino_head_hidden_size dino_local_crops_number dino_local_img_size dino_norm_last_layer dino_teacher_temp
        dino_warmup_teacher_temp dino_warmup_teacher_temp_epochs embedding_path evidence_data_path head_lr_mult
        ict_head_size ict_load img_h img_w indexer_batch_size indexer_log_interval iter_per_epoch mask_factor mask_prob
        mask_type num_channels num_classes output_bert_embeddings patch_dim query_in_block_prob
        retriever_report_topk_accuracies retriever_score_scaling sample_rate short_seq_prob swin_backbone_type
        titles_data_path use_one_sent_docs vision_backbone_type vision_pretraining vision_pretraining_type""",
    "it has no effect any more": "deprecated_use_mcore_models",
}

FOREIGN: Mapping[str, str] = {dest: reason for reason, names in _REASONS.items() for dest in names.split()}
"""Argument, by argparse destination, to why it is not the user's to set or what to set instead."""
