"""Hugging Face's loss over held-out windows: ``python -m pamp_pipelines.verification.loss_worker JOB.json``.

Axes: B  windows of a batch, S  tokens of a window, P  a part of them, V  vocabulary
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.disk import run_main
from pamp_pipelines.verification.job import Losses, LossWork, Split, SplitLoss
from pamp_pipelines.verification.loss import LOSSES

_LOGIT_BYTES = 256 * 2**20
"""Float32 logits of one batch; a single window may need more."""
_ROWS = 128
"""Positions whose logits are held in float64 at once."""
_SHARE_OF_MEMORY = 0.5
"""Of what is free, for the weights."""
_EVENT_SECONDS = 1.0


def main(path: Path) -> int:
    from pamp_pipelines.lake.atomic import write_text

    work = LossWork.model_validate_json(path.read_bytes())
    log = EventLog(work.work / "events.jsonl")
    try:
        losses = _losses(work, log)
    except PampError as error:
        log.write("failed", message=str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    write_text(work.work / LOSSES, losses.model_dump_json(indent=2))
    log.write("finished", stage="verify", seconds=losses.seconds)
    return 0


def _losses(work: LossWork, log: EventLog) -> Losses:
    start = time.monotonic()
    log.write("started", stage="verify", name=work.job.name)
    import torch

    from pamp_pipelines.verification.hf_side import load_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(work.model, dtype=_dtype(work.model, device)).to(device)
    splits = [_split_loss(model, split, work.job.sequence_length, _throttled(log, split)) for split in work.job.splits]
    seconds = round(time.monotonic() - start, 2)
    return Losses(splits=tuple(splits), device=device, dtype=str(model.dtype).removeprefix("torch."), seconds=seconds)


def _dtype(model: Path, device: str) -> str:
    """`float32`, so that the reference has no rounding of its own; `auto`, as stored, where that would not fit."""
    import psutil
    import torch

    from pamp_pipelines.conversion.hf_source import read_source

    needed = 4 * sum(math.prod(tensor.shape) for tensor in read_source(model).tensors.values())
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    return "float32" if needed <= _SHARE_OF_MEMORY * free else "auto"


def _throttled(log: EventLog, split: Split) -> Callable[[int, int], None]:
    last = 0.0

    def report(done: int, all: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == all or now - last >= _EVENT_SECONDS:
            last = now
            log.write("progress", stage="verify", corpus=split.corpus, done=done, all=all)

    return report


def _split_loss(model: Any, split: Split, sequence_length: int, report: Callable[[int, int], None]) -> SplitLoss:
    """Mean loss of every token but the first of the split, summed in float64 over the windows of the validation."""
    import numpy as np

    from pamp_pipelines.tokenization.indexed import IndexedReader
    from pamp_pipelines.training.windows import HeldOutWindows

    windows = HeldOutWindows(IndexedReader(split.prefix).tokens, sequence_length)
    vocabulary = model.get_input_embeddings().num_embeddings
    batch = max(1, _LOGIT_BYTES // (sequence_length * vocabulary * 4))
    total, tokens = 0.0, 0
    for start in range(0, len(windows), batch):
        numbers = range(start, min(start + batch, len(windows)))
        stacked = [np.stack(part) for part in zip(*(windows[number] for number in numbers), strict=True)]
        total += _batch_loss(model, *stacked)
        tokens += int(stacked[2].sum())
        report(numbers.stop, len(windows))
    mean = total / tokens if tokens else math.nan
    return SplitLoss(corpus=split.corpus, loss=mean if math.isfinite(mean) else None, tokens=tokens)


def _batch_loss(model: Any, tokens_BS: Any, labels_BS: Any, mask_BS: Any) -> float:
    """Sum of the negative log likelihoods, in nats, of the labels that count.

    In float64: torch's float32 softmax over a large vocabulary is off by 1e-5 and more, depending on the layout.
    """
    import torch

    tokens, labels, mask = (torch.from_numpy(array).to(model.device) for array in (tokens_BS, labels_BS, mask_BS))
    total = 0.0
    with torch.inference_mode():
        logits_BSV = model(input_ids=tokens, use_cache=False).logits
        for logits_SV, labels_S, mask_S in zip(logits_BSV, labels, mask, strict=True):
            for part_PV, labels_P, mask_P in zip(
                logits_SV.split(_ROWS), labels_S.split(_ROWS), mask_S.split(_ROWS), strict=True
            ):
                exact_PV = part_PV.double()
                chosen_P = exact_PV.gather(-1, labels_P[:, None])[:, 0]
                total += float(((exact_PV.logsumexp(-1) - chosen_P) * mask_P).sum())
    return total


if __name__ == "__main__":
    run_main(main)
