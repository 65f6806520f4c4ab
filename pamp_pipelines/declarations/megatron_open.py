"""Megatron arguments that `megatron_args` may set. What is in no list here, nor owned, is refused: see megatron_flags.

Criterion: the model of the config.json is trained on the declared tokens all the same; the argument moves speed,
memory, numerics or a hyperparameter that no declaration names.
"""

from __future__ import annotations

from collections.abc import Mapping

OPEN: Mapping[str, str] = {
    "hyperparameters": """
        apply_wd_to_qk_layernorm decoupled_lr decoupled_min_lr embedding_init_method_std hysteresis init_method_std
        init_method_xavier_uniform initial_loss_scale iterations_to_skip loss_scale loss_scale_window
        lr_wsd_decay_iters lr_wsd_decay_style min_loss_scale no_weight_decay_cond_type qk_clip qk_clip_alpha
        qk_clip_threshold""",
    "balance and routing of experts": """
        moe_aux_loss_coeff moe_input_jitter_eps moe_router_bias_update_rate moe_router_load_balancing_type
        moe_router_quantile_balancing_ema moe_z_loss_coeff mtp_detach_heads mtp_loss_scaling_factor""",
    "numerics": """
        accumulate_allreduce_grads_in_fp32 apply_query_key_layer_scaling attention_softmax_in_fp32
        batch_invariant_mode ddp_param_name_patterns_for_fp32_local_accumulation
        ddp_reduce_scatter_with_fp32_accumulation disable_bf16_reduced_precision_matmul exp_avg_dtype exp_avg_sq_dtype
        first_last_layers_bf16 fp16_lm_cross_entropy fp32_residual_connection fp8_amax_compute_algo
        fp8_amax_history_len fp8_interval fp8_margin fp8_output_proj fp8_param_gather fp8_wgrad grad_reduce_in_bf16
        keep_fp8_transpose_cache main_grads_dtype main_params_dtype num_layers_at_end_in_bf16
        num_layers_at_start_in_bf16 reuse_grad_buf_for_mxfp8_param_ag use_precision_aware_optimizer""",
    "kernels": """
        apply_rope_fusion attention_backend bias_dropout_fusion bias_gelu_fusion bias_swiglu_fusion
        cross_entropy_fusion_impl cross_entropy_loss_fusion disable_jit_fuser enable_experimental
        flash_attention_version fused_residual_rmsnorm gradient_accumulation_fusion kitchen_attention_backend
        masked_softmax_fusion moe_permute_fusion moe_permute_fusion_into_hybridep moe_router_fusion
        no_persist_layer_norm onnx_safe use_flash_attn use_kitchen_attention use_te_activation_func
        use_transformer_engine_op_fuser""",
    "CUDA graphs": """
        cuda_graph_impl cuda_graph_modules cuda_graph_scope_deprecated cuda_graph_warmup_steps enable_cuda_graph
        external_cuda_graph optimizer_cuda_graph te_rng_tracker""",
    "dispatch of tokens to experts": """
        delay_wgrad_compute ep_overlap_early_attn_memory_release high_priority_a2a_comm_stream moe_deepep_num_sms
        moe_enable_deepep moe_flex_dispatcher_backend moe_flex_dispatcher_num_sms moe_hybridep_num_blocks_permute
        moe_hybridep_num_blocks_unpermute moe_hybridep_num_sms moe_hybridep_num_sms_preprocessing
        moe_hybridep_pad_uneven_dispatch_inputs moe_ncclep_static_shape moe_ncclep_zero_copy
        moe_pad_experts_for_cuda_graph_inference moe_paged_stash moe_paged_stash_buffer_size_factor_cpu
        moe_paged_stash_buffer_size_factor_cuda moe_paged_stash_page_size moe_router_padding_for_fp8
        moe_router_padding_for_quantization moe_shared_expert_overlap moe_token_dispatcher_type
        overlap_dispatch_backward_with_experts_wgrad overlap_moe_expert_parallel_comm""",
    "communication": """
        align_grad_reduce align_param_gather barrier_with_L1_time clone_scatter_output_in_embedding cp_comm_type
        create_all_gather_group ddp_average_in_collective ddp_bucket_size ddp_num_buckets
        ddp_pad_buckets_for_high_nccl_busbw defer_embedding_wgrad_compute disable_symmetric_registration
        distributed_timeout_minutes distributed_timeout_seconds_after_init gradient_reduce_div_fusion
        hierarchical_context_parallel_sizes high_priority_stream_groups nccl_communicator_config_path nccl_ub
        num_distributed_optimizer_instances overlap_p2p_comm overlap_p2p_comm_warmup_flush
        overlap_param_gather_with_optimizer_step pipeline_model_parallel_comm_backend sharp_enabled_group
        tp_comm_bootstrap_backend tp_comm_bulk_dgrad tp_comm_bulk_wgrad tp_comm_overlap tp_comm_overlap_ag
        tp_comm_overlap_cfg tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_split_ag tp_comm_split_rs
        train_sync_interval use_gloo_process_groups use_ring_exchange_p2p use_sharp use_tp_pp_dp_mapping
        wgrad_deferral_limit""",
    "split of layers and experts over processes": """
        account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_first_pipeline_num_layers
        decoder_last_pipeline_num_layers expert_tensor_parallel_size""",
    "memory": """
        activation_offload_fraction cpu_offloading_retain_pinned_cpu_buffers
        delay_offload_until_cuda_graph delta_offload_bytes_across_pp_ranks distribute_saved_activations
        empty_unused_memory_level fine_grained_activation_offloading fine_grained_offloading_max_inflight_offloads
        manual_gc manual_gc_eval manual_gc_interval min_offloaded_tensor_size mlp_chunks_for_training offload_modules
        overlap_cpu_optimizer_d2h_h2d pin_cpu_grads pin_cpu_params
        recompute_modules use_torch_optimizer_for_cpu_offload""",
    "reading of data": """
        mid_level_dataset_surplus mmap_bin_files num_dataset_builder_threads num_workers""",
    "writing of checkpoints": """
        async_ckpt_cpu_priority async_ckpt_io_priority async_ckpt_use_cpu_shm ckpt_assume_constant_structure
        ckpt_fully_parallel_load ckpt_fully_parallel_load_exchange_algo ckpt_fully_parallel_load_process_group
        ckpt_fully_parallel_save ckpt_fully_parallel_save_process_group ckpt_load_validate_sharding_integrity
        dist_ckpt_workers distrib_optim_fully_reshardable_mem_efficient enable_msc verify_integrity""",
    "tests of the hardware and of results": """
        check_for_large_grads check_for_nan_in_loss_and_grad check_for_spiky_loss
        check_weight_hash_across_dp_replicas_interval disable_straggler_on_startup gpu_sniff_test_interval
        log_straggler rerun_mode result_rejected_tracker_filename straggler_ctrlr_port straggler_minmax_count""",
    "logs": """
        config_logger_dir dump_param_to_param_group_map log_device_memory_used log_max_attention_logit
        log_memory_interval log_memory_to_tensorboard log_num_zeros_in_grad log_params_norm log_progress
        log_throughput log_validation_ppl_to_tensorboard log_world_size_to_tensorboard logging_level
        moe_per_layer_logging tensorboard_queue_size timing_log_level timing_log_option wandb_entity wandb_exp_name
        wandb_project wandb_save_dir""",
    "profiles and dumps": """
        flight_recorder_dump_on_timeout flight_recorder_dump_path flight_recorder_extra_dump_on_exec
        flight_recorder_include_only_active flight_recorder_include_stack_trace flight_recorder_trace_buffer_size
        memory_snapshot_path moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits
        moe_routing_trace_dump_weights moe_routing_trace_max_training_iters moe_routing_trace_path nvtx_ranges profile
        profile_ranks profile_step_end profile_step_start pytorch_profiler_collect_callstack
        pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes record_memory_history record_shapes
        save_activations_interval save_dgrads_interval save_params_interval save_tokens_per_expert_interval
        save_wgrads_interval use_pytorch_profiler""",
}
"""What an argument is about, to argparse destinations."""

OPEN_DESTINATIONS = frozenset(dest for names in OPEN.values() for dest in names.split())
