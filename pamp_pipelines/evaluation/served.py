"""A model behind an OpenAI-like server of completions, as vLLM, SGLang or llama.cpp have. Imported by the worker alone.

The server is sent token ids, so that prompts and first tokens are those of every other backend. It is believed to serve
the checkpoint that it is said to serve.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
            return ask(requests, disable_tqdm=True)
        except (http.RequestException, aiohttp.ClientError, TimeoutError) as error:
            response = getattr(error, "response", None)
            reply = response.text[:500] if response is not None else ""
            raise InputError(
                f"{self.base_url}: no completions from this server ({error}){': ' + reply if reply else ''}. It has to "
                f"serve the model under the name {self.model!r} (`backend_arguments: {{model: …}}`) with a context of "
                f"{length + 1} tokens; declare a smaller `max_length` where it has less."
            ) from error
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{self.base_url}: completions without {error}; likelihoods need `echo` and `logprobs` of the prompt."
            ) from error
        finally:
            self.max_length = length
