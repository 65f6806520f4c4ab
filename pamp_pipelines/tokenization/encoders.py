"""Fast ways to a tokenizer's ids, used only where they give the reference's: that is tried, not assumed."""

import functools
import random
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np

from pamp_pipelines.lake.events import OnEvent, event
from pamp_pipelines.tokenization.batch import flatten
from pamp_pipelines.tokenization.engines import Engine, open_tokenizer
from pamp_pipelines.tokenization.indexed import Lengths, Tokens

REFERENCE = "reference"


class Encoder(Protocol):
    """What turns text into ids; ``name`` is the library and its version."""

    name: str

    def encode(self, texts: Sequence[str]) -> tuple[Tokens, Lengths]:
        """Ids of all texts one after another [tokens], and the number of each text's, int64 [texts]."""
        ...


class FastokensEncoder:
    """A BPE ``tokenizer.json`` through fastokens: no Python object for a token, 50 times the reference.

    It refuses a text with a byte that the vocabulary lacks, which the reference leaves out: such texts (control
    characters, for SmolLM2) go to the reference, one by one.
    """

    def __init__(self, file: Path, content: bytes) -> None:
        import fastokens

        self._file = file
        self._tokenizer = fastokens.Tokenizer.from_json_str(content.decode())
        self.name = versioned("fastokens")

    @functools.cached_property
    def _reference(self) -> Engine:
        return open_tokenizer(self._file)

    def encode(self, texts: Sequence[str]) -> tuple[Tokens, Lengths]:
        try:
            ids, offsets = self._tokenizer.encode_batch_flat(texts, add_special_tokens=False)
        except ValueError as error:
            if "no token in vocabulary" not in str(error):
                raise
        else:
            ends = np.frombuffer(offsets, "<u8").astype(np.int64)
            return np.frombuffer(ids, "<u4"), ends[1:] - ends[:-1]
        if len(texts) == 1:
            return self._reference.encode(texts)
        half = len(texts) // 2
        parts = [self.encode(texts[:half]), self.encode(texts[half:])]
        tokens, lengths = zip(*parts, strict=True)
        return np.concatenate(tokens), np.concatenate(lengths)


class KitokenEncoder:
    """A SentencePiece ``.model`` through kitoken, which reads the file itself and not a conversion of it."""

    def __init__(self, file: Path) -> None:
        import kitoken

        self._tokenizer = kitoken.Kitoken.from_sentencepiece_file(str(file))
        self.name = versioned("kitoken")

    def encode(self, texts: Sequence[str]) -> tuple[Tokens, Lengths]:
        return flatten(self._tokenizer.encode_all(list(texts), False))


def choose_encoder(reference: Engine, on_event: OnEvent) -> str:
    """Name of the fastest encoder that gives the reference's ids for ``probe_texts``.

    Which library is tried for which kind of file was settled by measurement (docs/measurements.md).

    Args:
        on_event: receives a ``warning`` when the reference has to be used, with the text that differed.
    """
    name = reference.fast
    if reason := _objection_once(reference, name):
        on_event(event("warning", message=f"{reference.file}: {name} is not used, {reference.name} is: {reason}"))
        return REFERENCE
    return name


_open: dict[tuple[Path, str, str], Encoder] = {}


def open_encoder(file: Path, name: str, sha256: str, fast_json: bytes | None = None) -> Encoder:
    """The encoder that ``choose_encoder`` chose. The last one stays loaded, since that takes a second.

    Args:
        sha256: hash of the tokenizer (``Engine.sha256``), so that a changed file is loaded again.
        fast_json: ``Engine.fast_json``, where it is at hand; else the engine is loaded for it.
    """
    key = (file, name, sha256)
    if key not in _open:
        _open.clear()
        _open[key] = _load(file, name, fast_json)
    return _open[key]


def _load(file: Path, name: str, fast_json: bytes | None) -> Encoder:
    match name:
        case "fastokens":
            content = fast_json or open_tokenizer(file).fast_json
            if content is None:
                raise ValueError(f"{file} has no tokenizer.json")
            return FastokensEncoder(file, content)
        case "kitoken":
            return KitokenEncoder(file)
    return open_tokenizer(file)


def probe_texts(tokens: Sequence[str]) -> list[str]:
    """Some 1,500 short texts, always the same, on which fast tokenizers have been seen to differ from their reference.

    Args:
        tokens: added tokens of the tokenizer: their spelling occurs inside the texts.
    """
    choose = random.Random(20261130)
    special = [*tokens, "<|endoftext|>", "</s>"]
    texts = [*_FIXED, *(f"a{token}b {token} c" for token in special[:64])]
    for _ in range(1400):
        pieces = []
        for _ in range(choose.randint(1, 30)):
            first, last = choose.choice(_BLOCKS)
            pieces.append("".join(chr(choose.randrange(first, last)) for _ in range(choose.randint(1, 8))))
            if choose.random() < 0.4:
                pieces.append(choose.choice(_JOINTS))
            if choose.random() < 0.02:
                pieces.append(choose.choice(special))
        texts.append("".join(pieces))
    return texts


_BLOCKS = (
    *((0x20, 0x7F), (0x30, 0x3A), (0x61, 0x7B), (0x41, 0x5B), (0x00, 0x20), (0xA0, 0x250), (0x300, 0x370)),
    *((0x370, 0x600), (0x600, 0x700), (0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200), (0x2000, 0x2100)),
    *((0x2460, 0x2500), (0x3000, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAC80), (0xE000, 0xE010), (0xFB00, 0xFE00)),
    *((0xFF00, 0xFFF0), (0x1D400, 0x1D500), (0x1F300, 0x1F700), (0x20000, 0x20040), (0xE0100, 0xE0110)),
)
_JOINTS = (
    *(" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "   \n  ", " \n", "\u00a0", "\u2003", "\u0085", "\u2028", "\u200d"),
    *("'s", "'LL", "'ſ", "'Re", "▁", "1234567", "١٢٣", "½", "_", "://", "/*", "})", '",'),
)
_FIXED = (
    *(
        "",
        " ",
        "  ",
        "\n",
        "\0",
        "\ufeffabc",
        "\x00\x01",
        "x'ſ",
        "don't WE'LL I'VE",
        "▁ ▁▁x",
        "é e\u0301 a\u0300\u0302",
    ),
    *("a" * 5000, " " * 5000, "\n" * 3000, "ab" * 4000, "0" * 4001, "=-" * 3000, "aaaa b" * 1000, "é" * 3000),
    *(
        "中" * 3000,
        "😀" * 1000,
        "ﬁne ｆｕｌｌ １２３ ①",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "中文與English混排，。！？",
        "\U0010ffff\ue000",
    ),
    "العربية עברית हिन्दी ไทย 한국어 Ελληνικά Русский Tiếng Việt",
    "def f(x):\n    if x > 0:\n\t\treturn {'a': [x**2 for _ in range(10)]}  # 注释\n\n\nclass A(B): pass\n",
)


_judged: dict[tuple[str, str], str | None] = {}


def _objection_once(reference: Engine, name: str) -> str | None:
    key = (name, reference.sha256)
    if key not in _judged:
        _judged[key] = _objection(reference, name)
    return _judged[key]


def _objection(reference: Engine, name: str) -> str | None:
    texts = probe_texts(reference.added_tokens)
    expected, lengths = reference.encode(texts)
    try:
        encoder = open_encoder(reference.file, name, reference.sha256, reference.fast_json)
        others, other_lengths = encoder.encode(texts)
    except BaseException as error:  # libraries raise what they like for what they do not support; Rust's panics too
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"it cannot do this one ({type(error).__name__}: {str(error)[:200]})"
    difference = first_difference((expected, lengths), (others, other_lengths))
    return None if difference is None else f"it gives other ids for {texts[difference][:60]!r}"


def first_difference(expected: tuple[Tokens, Lengths], others: tuple[Tokens, Lengths]) -> int | None:
    """Index of the first text whose ids differ, or None."""
    different = np.flatnonzero(expected[1] != others[1])
    if len(different):
        return int(different[0])
    unequal = np.flatnonzero(expected[0] != others[0])
    return int(np.searchsorted(np.cumsum(expected[1]), unequal[0], side="right")) if len(unequal) else None


def versioned(package: str) -> str:
    """Name and installed version."""
    return f"{package} {version(package)}"
