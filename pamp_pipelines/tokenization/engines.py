"""Tokenizers behind one interface: exactly the ids of the reference library, without special tokens around a text."""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.tokenization.batch import flatten, threads
from pamp_pipelines.tokenization.indexed import Lengths, Tokens
from pamp_pipelines.tokenization.tiktoken_engine import TiktokenEngine, is_tiktoken


class Engine(Protocol):
    """A loaded tokenizer.

    Attributes:
        file: what it was loaded from.
        name: library and version that compute the ids.
        vocab_size: highest id + 1, added tokens included.
        sha256: hash over everything that decides ids; equal for two tokenizers that always give equal ids.
        added_tokens: tokens beside the model's own, which may be spelled out in a text.
        fast: library that is tried in place of this one (``encoders``).
    """

    file: Path
    name: str
    vocab_size: int
    sha256: str
    added_tokens: Sequence[str]
    fast: str

    def encode(self, texts: Sequence[str]) -> tuple[Tokens, Lengths]:
        """Ids of all texts one after another, uint32 [tokens], and the number of each text's, int64 [texts]."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens shown."""
        ...

    def token_id(self, token: str) -> int | None:
        """Id of a token, or None when it is not in the vocabulary."""
        ...

    @property
    def own_eod(self) -> str | None:
        """The token that the tokenizer file itself says ends a text."""
        ...

    @property
    def fast_json(self) -> bytes | None:
        """A ``tokenizer.json`` for the fast library; None where that reads the file itself."""
        ...

    def save(self, directory: Path) -> Path:
        """Write what decides ids and text as one file, equal bytes for equal ``sha256``."""
        ...


class HuggingFaceEngine:
    """A ``tokenizer.json`` through Hugging Face tokenizers, which splits a batch over the cores (RAYON_NUM_THREADS)."""

    fast = "fastokens"

    def __init__(self, file: Path) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
            self.content = deciding_part(file)
            content = orjson.loads(self.content)
        except Exception as error:  # the library raises bare Exception
            raise InputError(
                f"{file}: not a tokenizer.json that tokenizers {tokenizers.__version__} can read: {error}"
            ) from error
        if content["model"].get("dropout"):
            raise InputError(
                f"{file}: model.dropout is {content['model']['dropout']}: ids would be random. Set it to null."
            )
        # both are settings of some inference call that was saved along; they would cut or pad every document
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.file = file
        self.name = f"tokenizers {tokenizers.__version__}"
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        self.added_tokens: Sequence[str] = tuple(token["content"] for token in content.get("added_tokens") or ())

    def encode(self, texts: Sequence[str]) -> tuple[Tokens, Lengths]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return flatten([e.ids for e in encodings])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))

    def token_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    @property
    def own_eod(self) -> str | None:
        return None

    @property
    def fast_json(self) -> bytes:
        return self.content

    def save(self, directory: Path) -> Path:
        path = directory / "tokenizer.json"
        path.write_bytes(self.content)
        return path


class SentencePieceEngine:
    """A SentencePiece ``.model`` through the sentencepiece library.

    A tokenizer.json converted from the same model is not exact: white space and normalisation differ in corner cases.
    """

    fast = "kitoken"

    def __init__(self, file: Path) -> None:
        import sentencepiece

        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
        except (OSError, RuntimeError) as error:
            raise InputError(f"{file}: not a SentencePiece model: {error}") from error
        self.file = file
        self.name = f"sentencepiece {sentencepiece.__version__}"
        self.vocab_size = int(self._processor.get_piece_size())
        self.sha256 = sha256_file(file)
        self.added_tokens: Sequence[str] = ()

    def encode(self, texts: Sequence[str]) -> tuple[Tokens, Lengths]:
        return flatten(self._processor.encode(list(texts), out_type=int, num_threads=threads()))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode([int(i) for i in ids]))

    def token_id(self, token: str) -> int | None:
        id = int(self._processor.piece_to_id(token))
        # an unknown piece gives the id of <unk>
        return id if self._processor.id_to_piece(id) == token else None

    @property
    def own_eod(self) -> str | None:
        id = int(self._processor.eos_id())
        return str(self._processor.id_to_piece(id)) if id >= 0 else None

    @property
    def fast_json(self) -> None:
        return None

    def save(self, directory: Path) -> Path:
        path = directory / "tokenizer.model"
        path.write_bytes(self.file.read_bytes())
        return path


def find_tokenizer(path: Path) -> Path:
    """The tokenizer file at ``path``: itself, or the one in this folder.

    A folder with both kinds gives ``tokenizer.json``, since that is what transformers loads and evaluates with.

    Raises:
        InputError: no such path, or no tokenizer in the folder; lists what is there.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(
            f"{path}: no such tokenizer; give a tokenizer.json, a SentencePiece .model, a tiktoken vocabulary or their "
            "folder."
        )
    for name in ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model"):
        if (path / name).is_file():
            return path / name
    vocabularies = sorted(path.glob("*.tiktoken"))
    if len(vocabularies) == 1:
        return vocabularies[0]
    if vocabularies:
        raise InputError(f"{path}: {len(vocabularies)} tiktoken vocabularies: name one of them.")
    there = ", ".join(sorted(p.name for p in path.iterdir())[:20]) or "nothing"
    raise InputError(f"{path}: neither tokenizer.json nor tokenizer.model nor *.tiktoken; there is {there}.")


def open_tokenizer(path: Path) -> Engine:
    """Load the tokenizer at a file or folder.

    Raises:
        InputError: absent, of an unknown kind or damaged.
    """
    file = find_tokenizer(path)
    return _open(file, *_state(file), *_state(file.with_name("tiktoken.json")))


def _state(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@functools.lru_cache(maxsize=1)
def _open(file: Path, *_: int) -> Engine:
    """Loaded once for each state of the file: a large vocabulary takes half a second."""
    match file.suffix:
        case ".json":
            return HuggingFaceEngine(file)
        case ".model" | ".tiktoken":
            return TiktokenEngine(file) if is_tiktoken(file) or file.suffix != ".model" else SentencePieceEngine(file)
    raise InputError(
        f"{file}: unknown kind of tokenizer; it must end in .json (Hugging Face), .model (SentencePiece, tiktoken) "
        "or .tiktoken."
    )


def deciding_part(file: Path) -> bytes:
    """A tokenizer.json reduced to what decides ids and their text, as canonical JSON.

    The post-processor only adds special tokens, which documents do not get; truncation and padding are switched off.
    """
    content: dict[str, Any] = orjson.loads(file.read_bytes())
    kept = ("version", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "model")
    reduced = {key: content.get(key) for key in kept} | {"truncation": None, "padding": None, "post_processor": None}
    return orjson.dumps(reduced, option=orjson.OPT_SORT_KEYS)
