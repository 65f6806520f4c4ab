"""``batch_size: auto`` on a GPU: computed from what one row takes, instead of searched for from above.

lm-eval's search begins with rows of the whole context and halves its batch until one fits: it spends seconds on that,
and where requests are shorter than the context it ends too small, which makes generation slow, since a step of decoding
takes about as long for one row as for a hundred. Here two rows as long as the longest request are run, the peak of
memory that they take is read, and free memory is divided by it. A batch that does not fit after all is halved.

Imported by the worker alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lm_eval.models.utils import normalize_gen_kwargs
from torch.nn import functional

from pamp_pipelines.errors import InputError

MAX_ROWS = 256
TOKENS_AT_ONCE = 65_536
"""Of a forward pass that scores: even a small model keeps a GPU busy with so many, and more rows only pad more."""
_SHARE = 0.8
"""Of free memory: a cache that grows by a token each step leaves holes."""
_PROBED = 8
"""So many of the longest texts are tokenised to find the longest in tokens."""


def auto_rows(model: Any, kind: str, requests: Sequence[Any]) -> int:
    """Rows of a batch for requests of one kind on a GPU.

    Args:
        model: a ``ScoredModel`` on a GPU.
        kind: ``generate_until``, ``loglikelihood`` or ``loglikelihood_rolling``.
        requests: with ``args`` as lm-eval has them.
    """
    length = _longest(model, kind, requests)
    rows = rows_that_fit(lambda rows: _peak(model, kind, rows, length), lambda: _free(model.device))
    if kind == "generate_until":
        return dealt_evenly(len(requests), rows)
    return max(1, min(rows, TOKENS_AT_ONCE // length))


def rows_that_fit(peak: Callable[[int], int], free: Callable[[], int]) -> int:
    """Rows for which there is memory, 1 to ``MAX_ROWS``.

    Args:
        peak: bytes that a run of so many rows takes while it lasts.
        free: bytes that are free.
    """
    try:
        peak(2)  # libraries take their workspaces now
        of_two = peak(2)
    except torch.OutOfMemoryError:
        return 1
    return max(1, min(MAX_ROWS, int(2 * _SHARE * free() / max(1, of_two))))


def dealt_evenly(requests: int, rows: int) -> int:
    """Rows of a batch when as few batches as ``rows`` allows are about equally large: 300 by 256 are two of 150."""
    batches = max(1, -(-requests // rows))
    return max(1, -(-requests // batches))


def halving(ask: Callable[[int], Any], rows: int, length: str) -> tuple[Any, int]:
    """What ``ask`` gives with so many rows, or with half as many where memory does not suffice; and how many it was.

    Raises:
        InputError: one row alone does not fit; ``length`` names what it is.
    """
    while True:
        try:
            return ask(rows), rows
        except torch.OutOfMemoryError as error:
            if rows == 1:
                raise out_of_memory(rows, length) from error
        torch.cuda.empty_cache()  # after the exception, whose traceback holds the tensors
        rows = -(-rows // 2)


def out_of_memory(rows: int, length: str) -> InputError:
    advice = "declare a smaller `max_length` or `dtype: bfloat16`" if rows == 1 else "lower `batch_size`, or `auto`"
    return InputError(f"a batch of {rows} ({length}) does not fit into the memory of the GPU: {advice}.")


def _longest(model: Any, kind: str, requests: Sequence[Any]) -> int:
    """Tokens of the longest request, its answer included."""
    texts = ["".join(part for part in request.args if isinstance(part, str)) for request in requests]
    tokens = max(len(model.tok_encode(text)) for text in sorted(texts, key=len)[-_PROBED:])
    if kind == "generate_until":
        settings = (normalize_gen_kwargs(dict(request.args[1]), model.max_gen_toks) for request in requests)
        tokens += max(setting["max_gen_toks"] for setting in settings)
    return max(2, min(tokens + 1, model.max_length))


def _peak(model: Any, kind: str, rows: int, length: int) -> int:
    """Bytes that a batch of so many rows of ``length`` tokens takes beside the weights."""
    tokens = torch.arange(rows * length, device=model.device).reshape(rows, length) % model.vocab_size
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    with torch.inference_mode():
        if kind == "generate_until":  # after one token the cache holds all of the length
            mask = torch.ones_like(tokens)
            model.model.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=1,
                do_sample=False,
                pad_token_id=model.tokenizer.pad_token_id,
            )
        else:
            functional.log_softmax(model.model(tokens).logits, dim=-1)
    return torch.cuda.max_memory_allocated(model.device) - before


def _free(device: torch.device) -> int:
    """Bytes that the driver has, and those that torch has taken and does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused
