"""The scored model: lm-eval's Hugging Face backend with a stated first-token policy and progress.

Likelihoods go wrong silently at the first token. A document's first token needs something to condition on, and lm-eval
puts one prefix token there; if the tokenizer also adds its own, the model sees two, and if the prefix is a token that
training never showed, perplexity can be off by orders of magnitude. So the prefix is declared, recorded and checked,
and the tokenizer adds nothing when whole documents are scored.

Imported by the worker alone: it loads torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import has_bos_prefix
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answering import Answering, Progress, TokenPolicy
from pamp_pipelines.evaluation.batching import auto_rows, halving, out_of_memory

CPU_BATCH = 4
"""``batch_size: auto`` on a CPU, where larger batches only pad more."""


def token_policy(tokenizer: Any, declared: str | int | None, vocabulary: int) -> TokenPolicy:
    """Decide on the prefix token and check it against the tokenizer and the model.

    Args:
        tokenizer: a transformers tokenizer.
        declared: token, its id, or None for bos, else eos.
        vocabulary: rows of the model's embedding.

    Raises:
        InputError: no such token, no token to fall back to, an id outside the embedding, or a tokenizer that adds more
            than one token in front.
    """
    name = getattr(tokenizer, "name_or_path", "tokenizer")
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if declared is not None:
        token = declared if isinstance(declared, int) else tokenizer.get_vocab().get(declared)
        source = "declared"
        if token is None:
            raise InputError(f"{name}: no token {declared!r}; the model's `eod` must be one of the tokenizer's tokens.")
    elif bos is not None:
        token, source = bos, "bos"
    elif eos is not None:
        token, source = eos, "eos"
    else:
        raise InputError(f"{name}: neither bos nor eos token; declare `eod`, the token that separates documents.")
    if not 0 <= token < vocabulary:
        raise InputError(f"{name}: token id {token} is outside the model's {vocabulary} embeddings; wrong tokenizer?")
    bare = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a")
    added = full[: next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)]
    if len(added) > 1:
        raise InputError(
            f"{name}: adds {len(added)} tokens before a text ({added}); a model is trained with one at most."
        )
    return TokenPolicy(
        prefix=tokenizer.convert_ids_to_tokens(token),
        prefix_id=token,
        prefix_source=source,
        tokenizer_adds=tuple(added),
        bos_id=bos,
        eos_id=eos,
    )


class ScoredModel(Answering, HFLM):
    """A loaded model. ``configure`` fits it to an evaluation without loading it again."""

    def __init__(self, model: Any, tokenizer: Any, policy: TokenPolicy, device: str, progress: Progress) -> None:
        super().__init__(
            pretrained=model, tokenizer=tokenizer, batch_size=1, device=device, prefix_token_id=policy.prefix_id
        )
        self.logits_cache: bool = True
        self.dtype_name = str(self.model.dtype).removeprefix("torch.")
        self.device_name = self.device.type
        self.begin(policy, progress)

    def configure(self, batch_size: int | str, max_length: int | None) -> None:
        """Fit to an evaluation; on a GPU ``auto`` takes as many rows at once as ``batching.auto_rows`` finds."""
        self._configuration = batch_size, max_length
        self._auto = batch_size == "auto" and self.device.type != "cpu"
        self.batch_size_per_gpu: int = CPU_BATCH if batch_size == "auto" else int(batch_size)
        self._largest = 0
        self._max_length = max_length

    @property
    def batch_used(self) -> int | None:
        """Requests in a forward pass: as declared, or the most that ``auto`` took; None before it took any."""
        return self.batch_size_per_gpu if not self._auto else self._largest or None

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> list[int]:
        """As lm-eval's; but a prompt that has the tokenizer's BOS, as chat templates write it, gets no second one."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.bos_token):
            add_special_tokens = False
        return super().tok_encode(string, add_special_tokens=add_special_tokens, **more)

    def _rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        before = self.logits_cache
        # The cache merges windows of equal tokens that are split elsewhere into context and continuation, and then
        # scores the wrong positions (lm-eval 0.4.13, Collator.get_cache): in repetitive text the total comes out wrong.
        self.logits_cache = False
        try:
            return super()._rolling(requests, disable_tqdm)
        finally:
            self.logits_cache = before

    def _asked(self, kind: str, requests: list[Any], ask: Callable[..., list[Any]]) -> list[Any]:
        """Answers in batches that memory takes."""
        longest = f"of up to {max(len(str(request.args[0])) for request in requests):,} characters"
        if not self._auto:
            try:
                return ask(requests, disable_tqdm=True)
            except torch.OutOfMemoryError as error:
                raise out_of_memory(self.batch_size_per_gpu, longest) from error

        def with_rows(rows: int) -> list[Any]:
            self.batch_size_per_gpu = rows
            return ask(requests, disable_tqdm=True)

        answers, rows = halving(with_rows, auto_rows(self, kind, requests), longest)
        self._largest = max(self._largest, rows)
        return answers

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = super()._model_call(inps, *args, **kwargs)
        self._advance(inps.shape[0])
        return logits

    def _model_generate(self, context: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        tokens = super()._model_generate(context, *args, **kwargs)
        self._advance(context.shape[0])
        return tokens


def load_model(directory: Path, prefix: str | int | None, dtype: str, device: str, progress: Progress) -> ScoredModel:
    """Load a Hugging Face directory; ``device`` ``auto`` takes CUDA if there is one, ``dtype`` ``auto`` the config's.

    Raises:
        InputError: unreadable, not safetensors, needs code of its own, or fails ``token_policy``.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, **local)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, use_safetensors=True, **local)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{directory}: transformers cannot load this model: {error}") from error
    policy = token_policy(tokenizer, prefix, model.get_input_embeddings().num_embeddings)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = policy.eos_id if policy.eos_id is not None else policy.prefix_id
    return ScoredModel(model.to(device).eval(), tokenizer, policy, device, progress)
