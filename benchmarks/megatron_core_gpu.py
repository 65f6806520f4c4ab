"""Megatron Core driven directly on one GPU with random tokens: what a training loop around it can reach at best.

    python benchmarks/megatron_core_gpu.py [--precision bf16] [--cross-entropy te] [--micro-batch 8] [--steps 12]

The model of ``train_gpu.py`` (1.236 B parameters) in Transformer Engine layers, with the distributed optimizer and its
overlap, global batch 16, sequence 4096; no data loader, no logging, no NaN checks. Prints one JSON object: the median
of the steps after the first four.

Axes: B  samples of a micro batch, S  tokens of a sample
"""

import argparse
import json
import os
import statistics
import time
from typing import Any

from gpu_shapes import SHAPES

MODEL, SEQUENCE, BATCH, WARM_UP = "llama-1b-shape", 4096, 16, 4
FP8 = {"fp8-delayed": "delayed", "fp8-tensorwise": "tensorwise", "fp8-blockwise": "blockwise"}


def build(precision: str, cross_entropy: str, micro_batch: int) -> tuple[Any, Any, Any]:
    """Model under data parallelism, optimizer, and Megatron's forward-backward function."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    shape = SHAPES[MODEL]
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    init_num_microbatches_calculator(0, None, BATCH, micro_batch, 1)
    recipe = {"fp8": "hybrid", "fp8_recipe": FP8[precision]} if precision in FP8 else {}
    config = TransformerConfig(
        num_layers=shape["num_hidden_layers"],
        hidden_size=shape["hidden_size"],
        ffn_hidden_size=shape["intermediate_size"],
        num_attention_heads=shape["num_attention_heads"],
        num_query_groups=shape["num_key_value_heads"],
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        bias_activation_fusion=True,
        apply_rope_fusion=True,
        gradient_accumulation_fusion=False,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl=cross_entropy,
        **recipe,
    )
    model = GPTModel(
        config,
        get_gpt_layer_with_transformer_engine_spec(),
        shape["vocab_size"],
        SEQUENCE,
        position_embedding_type="rope",
        rotary_base=500000,
        share_embeddings_and_output_weights=True,
    ).cuda()
    for module in model.modules():  # as the pipeline's model does it
        if hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = True
    data_parallel = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=True, use_distributed_optimizer=True
    )
    wrapped = DistributedDataParallel(config, data_parallel, Float16Module(config, model))
    adam = OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=True,
        clip_grad=1.0,
    )
    optimizer = get_megatron_optimizer(adam, [wrapped])
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    config.no_sync_func = wrapped.no_sync
    return wrapped, optimizer, get_forward_backward_func()


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["bf16", *FP8], default="bf16")
    parser.add_argument("--cross-entropy", choices=["te", "native"], default="te")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    torch.cuda.set_device(0)
    vocabulary, rows = SHAPES[MODEL]["vocab_size"], options.micro_batch
    model, optimizer, forward_backward = build(options.precision, options.cross_entropy, rows)
    positions_BS = torch.arange(SEQUENCE, device="cuda").unsqueeze(0).expand(rows, -1)

    def forward(_: Any, model: Any) -> Any:
        tokens_BS = torch.randint(0, vocabulary, (rows, SEQUENCE + 1), device="cuda")
        inputs_BS, labels_BS = tokens_BS[:, :-1].contiguous(), tokens_BS[:, 1:].contiguous()
        losses_BS = model(inputs_BS, positions_BS, None, labels=labels_BS)
        return losses_BS, lambda losses: (losses.float().mean(), {"loss": losses.detach().float().mean()})

    seconds = []
    for _ in range(WARM_UP + options.steps):
        started = time.perf_counter()
        model.zero_grad_buffer()
        optimizer.zero_grad()
        forward_backward(
            forward_step_func=forward,
            data_iterator=None,
            model=[model],
            num_microbatches=BATCH // rows,
            seq_length=SEQUENCE,
            micro_batch_size=rows,
            forward_only=False,
        )
        optimizer.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    step = statistics.median(seconds[WARM_UP:])
    print(
        json.dumps(
            {
                **{name: value for name, value in vars(options).items() if name != "steps"},
                "tokens_per_second": round(BATCH * SEQUENCE / step),
                "ms_per_step": round(1e3 * step, 1),
                "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
