"""The scored model: lm-eval's Hugging Face backend with a stated first-token policy and progress.

Likelihoods go wrong silently at the first token. A document's first token needs something to condition on, and lm-eval
puts one prefix token there; if the tokenizer also adds its own, the model sees two, and if the prefix is a token that
training never showed, perplexity can be off by orders of magnitude. So the prefix is declared, recorded and checked,
and the tokenizer adds nothing when whole documents are scored.

Imported by the worker alone: it loads torch and transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from pydantic import BaseModel
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from pamp_pipelines.errors import InputError

Progress = Callable[[str, int, int], None]
"""Called with the kind of request, those done and all of them."""


class TokenPolicy(BaseModel):
    """What stands at the beginning, recorded with every score.

    Attributes:
        prefix: token before the first token of a document.
        prefix_id: its id.
        prefix_source: ``declared``, ``bos`` or ``eos``.
        tokenizer_adds: ids that the tokenizer puts before a text of its own accord; they are left out when documents
            are scored and kept in prompts, where they are the only ones.
        bos_id, eos_id: the tokenizer's.
    """

    prefix: str
    prefix_id: int
    prefix_source: str
    tokenizer_adds: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None


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


class ScoredModel(HFLM):
    """A loaded model. ``configure`` fits it to an evaluation without loading it again."""

    def __init__(self, model: Any, tokenizer: Any, policy: TokenPolicy, device: str, progress: Progress) -> None:
        super().__init__(
            pretrained=model, tokenizer=tokenizer, batch_size=1, device=device, prefix_token_id=policy.prefix_id
        )
        self.add_bos_token: bool | None = None  # None: as the tokenizer is configured
        self.logits_cache: bool = True
        self.policy = policy
        self._progress = progress
        self._kind = ""
        self._done = self._all = 0

    def configure(self, batch_size: int, max_length: int | None) -> None:
        self.batch_size_per_gpu = batch_size
        self._max_length = max_length

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        texts = [request.args[0] for request in requests]
        # One window a max_length of tokens: what `utils.get_rolling_token_windows` makes of them.
        windows = sum(max(1, -(-len(self._document_tokens(text)) // self.max_length)) for text in texts)
        before = self.add_bos_token, self.logits_cache
        # The cache merges windows of equal tokens that are split elsewhere into context and continuation, and then
        # scores the wrong positions (lm-eval 0.4.13, Collator.get_cache): in repetitive text the total comes out wrong.
        self.add_bos_token, self.logits_cache = False, False
        try:
            with self._counted("loglikelihood_rolling", windows):
                return super().loglikelihood_rolling(requests, disable_tqdm=True)
        finally:
            self.add_bos_token, self.logits_cache = before

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        with self._counted("loglikelihood", len(requests)):
            return super().loglikelihood(requests, disable_tqdm=True)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        with self._counted("generate_until", len(requests)):
            return super().generate_until(requests, disable_tqdm=True)

    def document_length(self, text: str) -> int:
        """Tokens of a document as scored: nothing added."""
        return len(self._document_tokens(text))

    def _document_tokens(self, text: str) -> list[int]:
        return self.tok_encode(text, add_special_tokens=False)

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = super()._model_call(inps, *args, **kwargs)
        self._advance(inps.shape[0])
        return logits

    def _model_generate(self, context: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        tokens = super()._model_generate(context, *args, **kwargs)
        self._advance(context.shape[0])
        return tokens

    @contextlib.contextmanager
    def _counted(self, kind: str, all: int) -> Iterator[None]:
        """Report the first and the last; in between ``_advance`` does, which misses requests that lm-eval merges."""
        self._kind, self._done, self._all = kind, 0, all
        self._progress(kind, 0, all)
        yield
        self._progress(kind, all, all)

    def _advance(self, rows: int) -> None:
        self._done = min(self._done + rows, self._all)
        self._progress(self._kind, self._done, self._all)


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
