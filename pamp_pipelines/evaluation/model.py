"""The scored model: lm-eval's Hugging Face backend with a stated first-token policy and progress.

Likelihoods go wrong silently at the first token. A document's first token needs something to condition on, and lm-eval
puts one prefix token there; if the tokenizer also adds its own, the model sees two, and if the prefix is a token that
training never showed, perplexity can be off by orders of magnitude. So the prefix is declared, recorded and checked,
and the tokenizer adds nothing when whole documents are scored.

Imported by the worker alone: it loads torch and transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from pydantic import BaseModel
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answers import Answers
from pamp_pipelines.evaluation.batching import auto_rows, halving, out_of_memory

CPU_BATCH = 4
"""``batch_size: auto`` on a CPU, where larger batches only pad more."""

Progress = Callable[[str, int, int], None]
"""Called with the kind of request, those done and all of them."""

Own = Callable[[Sequence[Sequence[Any]]], list[Any]]
Share = Callable[[str, Sequence[Sequence[Any]], tuple[Any, ...], Own], list[Any]]
"""Answers requests with others' help: given their kind, their arguments, the configuration and what answers a share."""


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
        self._answers_file: Path | None = None
        self._content = ""
        self._share: Share | None = None
        self._kind = ""
        self._done = self._all = 0

    def configure(self, batch_size: int | str, max_length: int | None) -> None:
        """Fit to an evaluation; on a GPU ``auto`` takes as many rows at once as ``batching.auto_rows`` finds."""
        self._configuration = batch_size, max_length
        self._auto = batch_size == "auto" and self.device.type != "cpu"
        self.batch_size_per_gpu = CPU_BATCH if batch_size == "auto" else batch_size
        self._largest = 0
        self._max_length = max_length

    @property
    def batch_used(self) -> int | None:
        """Requests in a forward pass: as declared, or the most that ``auto`` took; None before it took any."""
        return self.batch_size_per_gpu if not self._auto else self._largest or None

    def keep_answers(self, path: Path | None, content: str) -> None:
        """Look answers up in a file, and put them there; ``content`` is the hash of the model."""
        self._answers_file, self._content = path, content

    def share_by(self, share: Share | None) -> None:
        """Deal requests to further processes, too: ``Helpers.answer``."""
        self._share = share

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        return self._answered("loglikelihood_rolling", requests, self._rolling)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return self._answered("loglikelihood", requests, super().loglikelihood)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return self._answered("generate_until", requests, super().generate_until)

    def _rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        before = self.add_bos_token, self.logits_cache
        # The cache merges windows of equal tokens that are split elsewhere into context and continuation, and then
        # scores the wrong positions (lm-eval 0.4.13, Collator.get_cache): in repetitive text the total comes out wrong.
        self.add_bos_token, self.logits_cache = False, False
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm=True)
        finally:
            self.add_bos_token, self.logits_cache = before

    def _answered(self, kind: str, requests: list[Any], ask: Callable[..., list[Any]]) -> list[Any]:
        """Answers from the file where they are known, else from this process's model and the helpers'."""
        setting = (self._content, self.dtype_name, self.max_length, self.policy.prefix_id)
        self.cache_hook = Answers(self._answers_file, setting)
        answers = [self.cache_hook.known(kind, request.args) for request in requests]
        unknown = [i for i, answer in enumerate(answers) if answer is None]
        if not unknown:
            return answers

        def own(arguments: Sequence[Sequence[Any]]) -> list[Any]:
            of_this = [SimpleNamespace(args=tuple(args)) for args in arguments]
            with self._counted(kind, self._units(kind, of_this)):
                return self._fitted(kind, of_this, ask) if of_this else []

        asked = [requests[i].args for i in unknown]
        found = own(asked) if self._share is None else self._share(kind, asked, self._configuration, own)
        for i, answer in zip(unknown, found, strict=True):
            answers[i] = answer
        return answers

    def _fitted(self, kind: str, requests: list[Any], ask: Callable[..., list[Any]]) -> list[Any]:
        """Answers of this process's model, in batches that its memory takes."""
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

    def _units(self, kind: str, requests: Sequence[Any]) -> int:
        """What progress counts: requests, of whole documents their windows (`utils.get_rolling_token_windows`)."""
        if kind != "loglikelihood_rolling":
            return len(requests)
        return sum(max(1, -(-self.document_length(request.args[0]) // self.max_length)) for request in requests)

    @property
    def dtype_name(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device_name(self) -> str:
        return self.device.type

    def document_length(self, text: str) -> int:
        """Tokens of a document as scored: nothing added."""
        return len(self.document_tokens(text))

    def document_tokens(self, text: str) -> list[int]:
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
