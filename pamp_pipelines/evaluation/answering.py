"""What every backend does around lm-eval's own methods: known answers, help of others, progress, the first token.

lm-eval's backends disagree on the tokenizer's own BOS: `hf` and `vllm` look whether a prompt begins with the token that
stands before documents, which need not be the BOS that a chat template writes; the client for servers leaves BOS out.
Here a prompt has the tokenizer's own special tokens, once, and a document none, whatever runs the model.

Imported by the worker alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs
from pydantic import BaseModel

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answers import Answers

_SPECIAL = 4
"""More tokens than a tokenizer puts before or after a text."""

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


class Answering:
    """Put before a backend of lm-eval among the bases of a class, which sets ``policy`` and calls ``begin``.

    Attributes:
        policy: the first tokens.
        add_bos_token: lm-eval's switch. None: prompts get what the tokenizer adds.
        dtype_name, device_name: for the rows of scores.
        prompts, prompts_cut: prompts asked, and those of them whose beginning lm-eval cuts off, since they are longer
            than the context; it says so in a log at most.
    """

    policy: TokenPolicy
    dtype_name: str
    device_name: str
    max_length: int
    add_bos_token: bool | None
    prompts = prompts_cut = 0
    _configuration: tuple[Any, ...] = ()

    def begin(self, policy: TokenPolicy, progress: Progress) -> None:
        self.policy = policy
        self.add_bos_token = None
        self._progress = progress
        self._answers_file: Path | None = None
        self._setting = ""
        self._share: Share | None = None
        self._kind = ""
        self._done = self._all = 0

    def keep_answers(self, path: Path | None, setting: str) -> None:
        """Look answers up in a file, and put them there; ``setting`` stands for the model and what runs it."""
        self._answers_file, self._setting = path, setting

    def share_by(self, share: Share | None) -> None:
        """Deal requests to further processes, too: ``Helpers.answer``."""
        self._share = share

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        return self._answered("loglikelihood_rolling", requests, self._rolling)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return self._answered("loglikelihood", requests, super().loglikelihood)  # type: ignore[misc]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return self._answered("generate_until", requests, super().generate_until)  # type: ignore[misc]

    def document_length(self, text: str) -> int:
        """Tokens of a document as scored: nothing added."""
        return len(self.document_tokens(text))

    def document_tokens(self, text: str) -> list[int]:
        return list(self.tok_encode(text, add_special_tokens=False))  # type: ignore[attr-defined]

    def _rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        before, self.add_bos_token = self.add_bos_token, False
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm=True)  # type: ignore[misc, no-any-return]
        finally:
            self.add_bos_token = before

    def _answered(self, kind: str, requests: list[Any], ask: Callable[..., list[Any]]) -> list[Any]:
        """Answers from the file where they are known, else from this process's model and the helpers'."""
        if kind != "loglikelihood_rolling":
            self._count_cut(kind, requests)
        setting = (self._setting, self.dtype_name, self.max_length, self.policy.prefix_id)
        self.cache_hook = Answers(self._answers_file, setting)
        answers = [self.cache_hook.known(kind, request.args) for request in requests]
        unknown = [i for i, answer in enumerate(answers) if answer is None]
        if not unknown:
            return answers

        def own(arguments: Sequence[Sequence[Any]]) -> list[Any]:
            of_this = [SimpleNamespace(args=tuple(args)) for args in arguments]
            with self._counted(kind, self._units(kind, of_this)):
                return self._asked(kind, of_this, ask) if of_this else []

        asked = [requests[i].args for i in unknown]
        found = own(asked) if self._share is None else self._share(kind, asked, self._configuration, own)
        for i, answer in zip(unknown, found, strict=True):
            answers[i] = answer
        return answers

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.max_length

    def _count_cut(self, kind: str, requests: Sequence[Any]) -> None:
        """Count prompts that do not fit.

        Raises:
            InputError: answers alone do not; over a server lm-eval would cut prompts anywhere.
        """
        for request in requests:
            text, more = request.args[:2]
            if kind == "generate_until":
                default = getattr(self, "max_gen_toks", None) or getattr(self, "_max_gen_toks", 256)
                answer = normalize_gen_kwargs(dict(more), default)["max_gen_toks"]
                room = self.context - answer
                if room <= 0:
                    raise InputError(
                        f"answers of up to {answer} tokens do not fit into a context of {self.context}: declare a "
                        "larger `max_length`, or a smaller `max_gen_toks` in `generation`."
                    )
            else:
                text, room = text + more, self.context + 1  # the last token of a continuation is only predicted
            self.prompts += 1
            # No token stands for less than a byte, so most texts need not be tokenised to know that they fit.
            if len(text.encode()) + _SPECIAL > room and len(self.tok_encode(text)) > room:  # type: ignore[attr-defined]
                self.prompts_cut += 1

    def _asked(self, kind: str, requests: list[Any], ask: Callable[..., list[Any]]) -> list[Any]:
        """Answers of this process's model."""
        return ask(requests, disable_tqdm=True)

    def _units(self, kind: str, requests: Sequence[Any]) -> int:
        """What progress counts: requests, of whole documents their windows (`utils.get_rolling_token_windows`)."""
        if kind != "loglikelihood_rolling":
            return len(requests)
        return sum(max(1, -(-self.document_length(request.args[0]) // self.max_length)) for request in requests)

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
