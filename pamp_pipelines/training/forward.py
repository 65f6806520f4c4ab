"""One micro batch through the model: from the data iterator to the loss.

Axes:
    B  samples of the micro batch    S  tokens of a sample (of this context-parallel rank's share, once sliced)
    D  documents of the micro batch, plus 1
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import mpu
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.utils import get_batch_on_this_cp_rank
from megatron.training import get_args

from pamp_pipelines.training.data import Batch

LOSS = "lm loss"
"""Name of the training and validation loss in TensorBoard and in metric records."""


def forward_step(iterator: Iterator[Batch] | None, model: Any) -> tuple[torch.Tensor, Any]:
    """The ``forward_step_func`` of ``pretrain``.

    Returns:
        The output of this pipeline stage, and the function that turns that of the last stage into a loss.
    """
    batch = _batch(iterator)
    # without documents an argument that is not given: that is how Megatron tells the two formats apart
    packed = {"packed_seq_params": batch.pop("documents")} if "documents" in batch else {}
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], **packed)
    return output, partial(_loss, batch["loss_mask"])


def _batch(iterator: Iterator[Batch] | None) -> dict[str, Any]:
    """The micro batch on this rank's device; ``None`` values on pipeline stages that read none of it."""
    args = get_args()
    masked = args.reset_attention_mask
    # attention needs the ends of the documents on every stage
    if not masked and not mpu.is_pipeline_first_stage() and not mpu.is_pipeline_last_stage():
        return dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids"))
    tokens_BS, labels_BS, mask_BS, positions_BS = _same_on_tensor_parallel_ranks(iterator)
    batch = {"tokens": tokens_BS, "labels": labels_BS, "loss_mask": mask_BS.float(), "position_ids": positions_BS}
    if masked:
        return _packed(batch)
    if mpu.get_context_parallel_world_size() > 1:
        batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=mpu.get_context_parallel_group())
    return batch


def _packed(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The samples one after another as one of B*S tokens, and where each document in it begins.

    Kernels for packed sequences attend within each document and count its positions from 0; a mask of (S, S) would
    rule out flash attention. A document begins where the position is 0: at each sample, and after each that ended.
    """
    samples, length = batch["tokens"].shape
    flat = {name: tensor.reshape(1, -1) for name, tensor in batch.items()}
    starts = torch.nonzero(flat["position_ids"][0] == 0)[:, 0]
    bounds_D = torch.cat([starts, starts.new_tensor([samples * length])]).int()
    documents = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=bounds_D,
        cu_seqlens_kv=bounds_D,
        # from above: the longest would have to be waited for
        max_seqlen_q=length,
        max_seqlen_kv=length,
    )
    return {**flat, "documents": documents}


def _same_on_tensor_parallel_ranks(iterator: Iterator[Batch] | None) -> tuple[torch.Tensor, ...]:
    """Tokens, labels, loss mask and positions, all int64 (B, S); only the first of these ranks has an iterator."""
    device = torch.cuda.current_device()
    if mpu.get_tensor_model_parallel_rank() == 0:
        assert iterator is not None
        batch = next(iterator)
        packed = torch.stack([batch["tokens"], batch["labels"], batch["loss_mask"].long(), batch["position_ids"]])
        packed = packed.to(device, non_blocking=True)
    else:
        args = get_args()
        # validation has the same micro batch size
        packed = torch.empty(4, args.micro_batch_size, args.seq_length, dtype=torch.int64, device=device)
    if mpu.get_tensor_model_parallel_world_size() > 1:
        group = mpu.get_tensor_model_parallel_group()
        torch.distributed.broadcast(packed, mpu.get_tensor_model_parallel_src_rank(), group=group)
    return packed.unbind(0)


def _loss(mask_BS: torch.Tensor, losses_BS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of the token losses, their number, and both for the report.

    Args:
        mask_BS: 1.0 where the token counts.
        losses_BS: negative log likelihood in nats of each label.

    Raises:
        RuntimeError: the loss is not finite; Megatron runs the step again to tell a fault of the machine from one of
            the run, and ends the process with 16 (start again) or 17 (never).
    """
    total = torch.sum(losses_BS.float() * mask_BS)
    count = mask_BS.sum().int()
    if get_args().check_for_nan_in_loss_and_grad:
        machine = get_rerun_state_machine()
        for name, rejects in (("NaN", torch.isnan), ("infinite", torch.isinf)):
            machine.validate_result(
                result=total, rejection_func=rejects, message=f"the loss is {name}", tolerance=0.0, fatal=True
            )
    return total, count, {LOSS: torch.stack([total.detach(), count.float()])}
