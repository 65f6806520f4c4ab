"""A model behind an OpenAI-like server of completions, as vLLM, SGLang or llama.cpp have. Imported by the worker alone.

The server is sent token ids, so that prompts and first tokens are those of every other backend. It is believed to serve
the checkpoint that it is said to serve.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import aiohttp
import requests as http
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.models.utils import has_bos_prefix

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answering import Answering, TokenPolicy
from pamp_pipelines.evaluation.spec import EvaluationSpec

LENGTH, BATCH = 2048, 8
"""Context where none is declared, and prompts of a request where ``batch_size: auto``."""
_KEPT = 2
"""lm-eval takes one token from the context for one to generate, and one for the first token of a document."""
_LOGPROBS = ("token_logprobs", "top_logprobs")
_prompts: ContextVar[int] = ContextVar("prompts")
"""Prompts of the request that this task waits for; lm-eval does not tell what reads the answer."""


def served_model(directory: Path, tokenizer: Any, policy: TokenPolicy, spec: EvaluationSpec) -> Any:
    """The client for a server that serves ``directory``.

    Raises:
        InputError: `base_url` is not declared.
        ModuleNotFoundError: what the client needs is not installed: ``tenacity``.
    """
    arguments = dict(spec.backend_arguments)
    if "base_url" not in arguments:
        raise InputError(f"evaluation {spec.name!r}: backend_arguments needs `base_url`, the address of completions.")
    # lm-eval answers for itself where no key is asked for; a server of one's own has none.
    os.environ.setdefault("OPENAI_API_KEY", "none")
    length = spec.max_length or arguments.pop("max_length", None) or LENGTH
    model = Served(
        **{"model": directory.name, "tokenizer": str(directory), "tokenizer_backend": "huggingface"} | arguments,
        custom_prefix_token_id=policy.prefix_id,
        batch_size=BATCH if spec.batch_size == "auto" else spec.batch_size,
        max_length=length + _KEPT,
        seed=spec.seed,
    )
    model.reference_tokenizer = tokenizer
    model.batch_used = BATCH if spec.batch_size == "auto" else spec.batch_size
    return model


class Served(Answering, LocalCompletionsAPI):
    """Completions over HTTP as the harness asks for them."""

    device_name, dtype_name = "server", "as served"
    reference_tokenizer: Any
    batch_used: int

    @property
    def context(self) -> int:
        """Tokens as declared, without those that lm-eval takes."""
        return self.max_length + 1 - _KEPT

    def configure(self, batch_size: int | str, max_length: int | None) -> None:
        """All is set when it is made: evaluations with other settings get one of their own."""

    def tok_encode(
        self,
        string: str | Sequence[str],
        left_truncate_len: int | None = None,
        add_special_tokens: bool | None = None,
        **_: Any,
    ) -> Any:
        """Token ids of a text or of several; lm-eval's own leaves the tokenizer's BOS out of prompts."""
        if not isinstance(string, str):
            return [self.tok_encode(text, left_truncate_len, add_special_tokens) for text in string]
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if special is None:
            special = not has_bos_prefix(string, self.reference_tokenizer.bos_token)
        tokens = list(self.reference_tokenizer.encode(string, add_special_tokens=special))
        return tokens[-left_truncate_len:] if left_truncate_len else tokens

    def _asked(self, kind: str, requests: list[Any], ask: Callable[..., list[Any]]) -> list[Any]:
        """Answers of the server.

        Raises:
            InputError: it is not there, refuses, or answers something else.
        """
        length = self.max_length
        if kind == "generate_until":
            self.max_length = self.context  # prompt and answer together are to fit into the declared context
        try:
            answers = ask(requests, disable_tqdm=True)
        except (http.JSONDecodeError, aiohttp.ContentTypeError, json.JSONDecodeError) as error:
            raise InputError(
                f"{self.base_url}: this server answers, but not in JSON ({error}). Its completions are elsewhere: "
                "`base_url` mostly ends in /v1/completions."
            ) from error
        except (http.RequestException, aiohttp.ClientError, TimeoutError) as error:
            response = getattr(error, "response", None)
            reply = response.text[:500] if response is not None else ""
            raise InputError(
                f"{self.base_url}: no completions from this server ({error}){': ' + reply if reply else ''}. It has to "
                f"serve the model under the name {self.model!r} (`backend_arguments: {{model: …}}`) with a context of "
                f"{length + 1} tokens; declare a smaller `max_length` where it has less."
            ) from error
        finally:
            self.max_length = length
        return answers

    async def amodel_call(self, session: Any, sem: Any, messages: Any, **more: Any) -> Any:
        _prompts.set(len(messages))
        return await super().amodel_call(session, sem, messages, **more)

    def parse_logprobs(  # type: ignore[override]
        self, outputs: Any, tokens: list[list[int]], ctxlens: list[int], **more: Any
    ) -> list[tuple[float, bool]]:
        """Likelihoods as lm-eval reads them, which takes what it finds and scores 0 where nothing is.

        Raises:
            InputError: a prompt has no answer, or one without a number for each of its tokens.
        """
        for choice, prompt, start in zip(self._choices(outputs, len(tokens)), tokens, ctxlens, strict=True):
            found = choice.get("logprobs")
            numbers, best = (found.get(key) if isinstance(found, dict) else None for key in _LOGPROBS)
            if not (isinstance(numbers, list) and isinstance(best, list) and len(numbers) == len(best)):
                raise self._other("no `logprobs` with `token_logprobs` and `top_logprobs` of one length", choice)
            if len(numbers) != len(prompt) + 1:  # one token is generated
                raise self._other(f"`logprobs` of {len(numbers)} tokens where {len(prompt) + 1} were due", choice)
            if not all(
                isinstance(n, (int, float)) and isinstance(b, dict) and b
                for n, b in zip(numbers[start:-1], best[start:-1], strict=True)
            ):
                raise self._other("`logprobs` with gaps", choice)
        return super().parse_logprobs(outputs, tokens=tokens, ctxlens=ctxlens, **more)

    def parse_generations(self, outputs: Any, contexts: Any = None, **_: Any) -> list[str]:  # type: ignore[override]
        """Texts in the order of their prompts.

        Raises:
            InputError: a prompt has no text.
        """
        choices = self._choices(outputs, _prompts.get() if contexts is None else len(contexts))
        for choice in choices:
            if not isinstance(choice.get("text"), str):
                raise self._other(f"`text` is {choice.get('text')!r}", choice)
        return [choice["text"] for choice in choices]

    def _choices(self, outputs: Any, prompts: int) -> list[dict[str, Any]]:
        """One choice for each prompt, in their order."""
        if isinstance(outputs, list) and len(outputs) == 1:  # lm-eval lists replies where it waits for each
            outputs = outputs[0]
        choices = outputs.get("choices") if isinstance(outputs, dict) else None
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise self._other("no list of `choices`", outputs)
        if sorted(str(choice.get("index")) for choice in choices) != sorted(map(str, range(prompts))):
            raise self._other(f"{len(choices)} choices for {prompts} prompts, which `index` should number", outputs)
        return sorted(choices, key=lambda choice: int(choice["index"]))

    def _other(self, what: str, reply: Any) -> InputError:
        return InputError(
            f"{self.base_url}: not what completions are ({what}): {str(reply)[:300]}. The server has to take several "
            "prompts of token ids at once, and for likelihoods `echo` and `logprobs` with `max_tokens: 1`."
        )
