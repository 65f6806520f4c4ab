"""Which tokenizer a corpus is encoded with, and which token ends a document."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.declarations.source_checks import vocabulary_problem
from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization.engines import Engine, open_tokenizer


class TokenizerSpec(BaseModel):
    """A tokenizer pinned to its content.

    Attributes:
        path: tokenizer.json or SentencePiece model.
        sha256: hash over what decides ids.
        vocab_size: highest id + 1.
        eod: token that ends each document.
        eod_id: its id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    sha256: str
    vocab_size: int
    eod: str
    eod_id: int


def describe_tokenizer(path: Path, eod: str | None = None) -> TokenizerSpec:
    """Load the tokenizer at a file or folder once and pin it.

    Args:
        path: file or folder.
        eod: token that ends a document; default: ``eos_token`` of tokenizer_config.json or special_tokens_map.json
            beside the tokenizer, then the eos piece of a SentencePiece model.

    Raises:
        InputError: no usable tokenizer, no token that ends a document, or one that is not in the vocabulary.
    """
    engine = open_tokenizer(path)
    token, id = _resolve_eod(engine, eod)
    return TokenizerSpec(path=engine.file, sha256=engine.sha256, vocab_size=engine.vocab_size, eod=token, eod_id=id)


def require_fit(spec: TokenizerSpec, model: str, model_vocab_size: int) -> None:
    """Raises InputError when the tokenizer has ids that the model has no embedding for."""
    if spec.vocab_size > model_vocab_size:
        raise InputError(vocabulary_problem(spec.path, spec.vocab_size - 1, model, model_vocab_size))


def _resolve_eod(engine: Engine, declared: str | None) -> tuple[str, int]:
    if declared is not None:
        return _in_vocabulary(engine, declared, "the declared `eod`")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if token := _eos_token(engine.file.with_name(name)):
            return _in_vocabulary(engine, token, f"eos_token of {engine.file.with_name(name)}")
    if token := engine.own_eod:
        return _in_vocabulary(engine, token, "the model's eos piece")
    raise InputError(
        f"{engine.file}: no token ends a document: tokenizer_config.json and special_tokens_map.json beside it name no "
        "eos_token. Declare one with `eod` (on the command line: --eod)."
    )


def _in_vocabulary(engine: Engine, token: str, what: str) -> tuple[str, int]:
    id = engine.token_id(token)
    if id is None:
        raise InputError(
            f"{engine.file}: {what}, {token!r}, is not in the vocabulary. Declare `eod` as one of its tokens."
        )
    return token, id


def _eos_token(file: Path) -> str | None:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not readable JSON: {error}") from error
    token = content.get("eos_token") if isinstance(content, dict) else None
    # an AddedToken is saved as an object
    return token.get("content") if isinstance(token, dict) else token
