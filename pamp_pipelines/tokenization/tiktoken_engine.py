"""Vocabularies in tiktoken's format: a line for each token, its bytes in base64, a space, its rank, which is its id.

Llama 3's and 4's ``original/tokenizer.model``, Qwen's ``qwen.tiktoken``, Kimi's ``tiktoken.model`` and OpenAI's
``*.tiktoken`` are such files. Where text is cut before it is encoded is in ``tiktoken_settings``.
"""

import base64
import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization.batch import flatten, threads
from pamp_pipelines.tokenization.indexed import Lengths, Tokens
from pamp_pipelines.tokenization.tiktoken_settings import SETTINGS, settings_for

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+")

Ranks = dict[bytes, int]


def is_tiktoken(file: Path) -> bool:
    """Whether a file begins as a tiktoken vocabulary does; a SentencePiece model, also called .model, never does."""
    with file.open("rb") as stream:
        return _LINE.fullmatch(stream.readline(1 << 16).rstrip(b"\r\n")) is not None


def read_ranks(file: Path, content: bytes) -> Ranks:
    """Bytes of each token to its rank.

    Raises:
        InputError: names the line that is not of the format or repeats a token or rank, or the bytes that no token
            covers (such a text could not be encoded).
    """
    ranks: Ranks = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        if _LINE.fullmatch(line) is None:
            raise InputError(f"{file}: line {number}: {line[:80]!r} is not base64, a space and a rank; fetch it again.")
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    if len(ranks) != sum(1 for line in content.splitlines() if line) or len(set(ranks.values())) != len(ranks):
        raise InputError(f"{file}: a token or a rank occurs twice; fetch it again.")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise InputError(
            f"{file}: no token for {len(missing)} of the 256 bytes, e.g. {missing[0]:#04x}; fetch it again."
        )
    return ranks


class TiktokenEngine:
    """A tiktoken vocabulary through the tiktoken library. Tokens spelled out in a text become their ids."""

    fast = "fastokens"

    def __init__(self, file: Path) -> None:
        import tiktoken

        content = file.read_bytes()
        self._ranks = read_ranks(file, content)
        self._settings = settings_for(file, hashlib.sha256(content).hexdigest(), len(self._ranks))
        special = self._settings.special_tokens
        taken = {rank: token for token, rank in self._ranks.items()}
        if clash := [f"{token} ({id})" for token, id in special.items() if id in taken]:
            raise InputError(f"{file}: ids of special tokens are ranks of other tokens: {', '.join(clash[:5])}.")
        if len(set(special.values())) != len(special):
            raise InputError(f"{file}: two special tokens have one id.")
        try:
            self._encoding = tiktoken.Encoding(
                file.name, pat_str=self._settings.pattern, mergeable_ranks=self._ranks, special_tokens=special
            )
        except ValueError as error:
            raise InputError(f"{file}: tiktoken refuses the pattern: {error}") from error
        self.file = file
        self.name = f"tiktoken {tiktoken.__version__}"
        self.vocab_size = 1 + max(*self._ranks.values(), *special.values(), -1)
        self.added_tokens: Sequence[str] = tuple(special)
        self.sha256 = hashlib.sha256(self._deciding() + self._lines()).hexdigest()

    def encode(self, texts: Sequence[str]) -> tuple[Tokens, Lengths]:
        form = self._settings.normalization
        given = [unicodedata.normalize(form, text) for text in texts] if form else list(texts)
        return flatten(self._encoding.encode_batch(given, allowed_special="all", num_threads=threads()))

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoding.decode([int(i) for i in ids])

    def token_id(self, token: str) -> int | None:
        special = self._settings.special_tokens.get(token)
        return special if special is not None else self._ranks.get(token.encode())

    @property
    def own_eod(self) -> str | None:
        return self._settings.eod

    def save(self, directory: Path) -> Path:
        path = directory / "tokenizer.tiktoken"
        path.write_bytes(self._lines())
        (directory / SETTINGS).write_bytes(self._deciding())
        return path

    @functools.cached_property
    def fast_json(self) -> bytes:
        """``tokenizer_json`` with each merge as one string, as older ones have them: read in two thirds of the time."""
        return self._as_json([" ".join(merge) for merge in self._merges()])

    @property
    def tokenizer_json(self) -> bytes:
        """The same tokenizer as a ``tokenizer.json``: what transformers and servers read."""
        return self._as_json(self._merges())

    def _merges(self) -> list[tuple[str, str]]:
        """Each pair of tokens whose bytes together are a token, in the order of that token's rank.

        Ranks and merges agree except where overlapping pairs make the same token, which no test text has shown; as with
        every fast encoder, that is tried and not assumed.
        """
        rank_of, spelled = self._ranks.get, self._spelled()
        merges: list[tuple[str, str]] = []
        # a loop, and the second half cut only where the first is a token: half the time of a comprehension
        for token, _ in sorted(self._ranks.items(), key=lambda item: item[1]):
            pairs = []
            for cut in range(1, len(token)):
                left = rank_of(token[:cut])
                if left is not None and (right := rank_of(token[cut:])) is not None:
                    pairs.append((left, right, cut))
            pairs.sort()
            merges += [(spelled[token[:cut]], spelled[token[cut:]]) for _, _, cut in pairs]
        return merges

    def _spelled(self) -> dict[bytes, str]:
        """Tokens as byte-level vocabularies write them."""
        symbols = _byte_symbols()
        # Latin-1 gives each byte the character of its number
        return {token: token.decode("latin-1").translate(symbols) for token in self._ranks}

    def _as_json(self, merges: Sequence[Any]) -> bytes:
        settings = self._settings
        spelled = self._spelled()
        split = {"type": "Split", "pattern": {"Regex": settings.pattern}, "behavior": "Isolated", "invert": False}
        by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        content: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
                | {"normalized": False, "special": True}
                for token, id in sorted(settings.special_tokens.items(), key=lambda item: item[1])
            ],
            "normalizer": {"type": settings.normalization} if settings.normalization else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, by_bytes]},
            "post_processor": None,
            "decoder": by_bytes | {"use_regex": True},
            "model": {
                "type": "BPE",
                **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
                "fuse_unk": False,
                "byte_fallback": False,
                # a whole match that is a token is never split, whatever its merges say; so tiktoken does it
                "ignore_merges": True,
                # special tokens in a gap between ranks close it, as in vocabularies that Hugging Face trains
                "vocab": {spelled[token]: rank for token, rank in self._ranks.items()}
                | {token: id for token, id in settings.special_tokens.items() if id < max(self._ranks.values())},
                "merges": merges,
            },
        }
        return orjson.dumps(content)

    def _deciding(self) -> bytes:
        return orjson.dumps(self._settings.model_dump(), option=orjson.OPT_SORT_KEYS)

    def _lines(self) -> bytes:
        by_rank = sorted(self._ranks.items(), key=lambda item: item[1])
        return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in by_rank)


@functools.cache
def _byte_symbols() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level vocabularies: GPT-2's ``bytes_to_unicode``."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + i) for i in range(256))
    return {byte: chr(byte) if byte in shown else next(others) for byte in range(256)}
