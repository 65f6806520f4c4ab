"""What a tiktoken vocabulary does not say of itself: how text is split, and which special tokens there are.

The file holds ranks only; pattern and special tokens are code of the model that it belongs to. They are taken from the
first of these that there is:

1. ``tiktoken.json`` beside it, which anyone can write: ``{"pattern": …, "special_tokens": {"<|endoftext|>": 151643}}``,
   and if need be ``"normalization": "NFC"`` and ``"eod"``;
2. the table of published vocabularies here, by the SHA-256 of the file;
3. ``tokenizer_config.json`` beside it, of a class whose pattern is known here: it lists the special tokens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pamp_pipelines.errors import InputError

SETTINGS = "tiktoken.json"


class TiktokenSettings(BaseModel):
    """Everything that decides ids beside the ranks.

    Attributes:
        pattern: regular expression (of Rust's fancy-regex) whose matches are encoded one by one.
        special_tokens: token to id. Spelled out in a text they become their id, as Qwen's and Kimi's own code does it
            and as the ``tokenizer.json`` of the same models does.
        normalization: Unicode normal form that a text is brought into first.
        eod: token that ends a document where nothing else is declared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: Annotated[str, Field(min_length=1)]
    special_tokens: dict[str, Annotated[int, Field(ge=0)]]
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None
    eod: str | None = None


def settings_for(file: Path, sha256: str, ranks: int) -> TiktokenSettings:
    """The settings of a vocabulary.

    Args:
        file: the vocabulary.
        sha256: of its bytes.
        ranks: tokens in it.

    Raises:
        InputError: a damaged ``tiktoken.json``, or none and an unknown vocabulary; says what to write.
    """
    declared = file.with_name(SETTINGS)
    if declared.exists():
        try:
            return TiktokenSettings.model_validate_json(declared.read_bytes())
        except (OSError, ValidationError) as error:
            raise InputError(f"{declared}: not the settings of a tiktoken vocabulary: {error}") from error
    if sha256 in _PUBLISHED:
        return _PUBLISHED[sha256]
    if found := _from_config(file.with_name("tokenizer_config.json"), ranks):
        return found
    raise InputError(
        f"{file}: how text is split and which special tokens there are is not in a tiktoken vocabulary, and this "
        f'one is not known here. Write {declared}: {{"pattern": "…", "special_tokens": {{"<|endoftext|>": {ranks}}}}}, '
        "as the code of its model has them."
    )


def _from_config(file: Path, ranks: int) -> TiktokenSettings | None:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not readable JSON: {error}") from error
    known = _CLASSES.get(str(content.get("tokenizer_class"))) if isinstance(content, dict) else None
    if known is None:
        return None
    pattern, reserved = known
    # ids that the config does not name are named by the class's own code
    tokens = {ranks + i: f"<|reserved_token_{ranks + i}|>" for i in range(reserved)}
    try:
        listed = {int(id): token["content"] for id, token in content.get("added_tokens_decoder", {}).items()}
        return TiktokenSettings(pattern=pattern, special_tokens={t: i for i, t in {**tokens, **listed}.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: added_tokens_decoder: {error!r}; it maps ids to objects with `content`.") from error


_GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"""
    r"""|\s+(?!\S)|\s"""
)
_TAIL = r"""\s*[\r\n]+|\s+(?!\S)|\s+"""
_CONTRACTIONS = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)"""
_LLAMA3 = rf"""{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"""
_QWEN = rf"""{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"""
_QWEN35 = (
    rf"""{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"""
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(but: str = "") -> str:
    """Words cut where lower case is followed by upper case."""
    upper, lower, first = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]", r"[^\r\n\p{L}\p{N}]?"
    return f"{first}{upper}*{lower}+{_CONTRACTIONS}?|{first}{upper}+{lower}*{_CONTRACTIONS}?"


_O200K = rf"""{_cased()}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"""
_KIMI = rf"""[\p{{Han}}]+|{_cased(r"&&[^\p{Han}]")}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"""

_CLASSES: Mapping[str, tuple[str, int]] = {"TikTokenTokenizer": (_KIMI, 256)}
"""Class in tokenizer_config.json to its pattern and the number of its special tokens: Moonlight and Kimi."""


def _numbered(tokens: "list[str] | tuple[str, ...]", start: int) -> dict[str, int]:
    return {token: start + i for i, token in enumerate(tokens)}


def _reserved(prefix: str, first: int, count: int) -> list[str]:
    return [f"<|{prefix}reserved_special_token_{i}|>" for i in range(first, first + count)]


_LLAMA3_TOKENS = _numbered(
    [
        *("<|begin_of_text|>", "<|end_of_text|>", *_reserved("", 0, 2), "<|finetune_right_pad_id|>", "<|step_id|>"),
        *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"),
        *_reserved("", 2, 244),
    ],
    128_000,
)
_LLAMA4_TOKENS = _numbered(
    [
        *("<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
        *("<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>", *_reserved("text_post_train_", 0, 6)),
        *("<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>", *_reserved("text_post_train_", 8, 61)),
        *("<|image_start|>", "<|image_end|>", *_reserved("vision_", 0, 2), "<|tile_x_separator|>"),
        *("<|tile_y_separator|>", *_reserved("vision_", 2, 4), "<|image|>", *_reserved("vision_", 6, 1), "<|patch|>"),
        *_reserved("vision_", 7, 1041),
        *(*_reserved("reasoning_", 0, 8), "<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"),
        *_reserved("", 0, 904),
    ],
    200_000,
)
_QWEN_TOKENS = _numbered(
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))], 151_643
)
_QWEN35_TOKENS = _numbered(
    [
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
        *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
        *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>"),
        *("<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
        *("<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"),
        *("<tts_text_bos_single>", "<|audio_pad|>"),
    ],
    248_044,
)
_ENDOFTEXT = "<|endoftext|>"

_PUBLISHED: Mapping[str, TiktokenSettings] = {
    # Llama 3, 3.1, 3.2, 3.3: original/tokenizer.model
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": TiktokenSettings(
        pattern=_LLAMA3, special_tokens=_LLAMA3_TOKENS, eod="<|end_of_text|>"
    ),
    # Llama 4: tokenizer.model
    "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed": TiktokenSettings(
        pattern=_O200K, special_tokens=_LLAMA4_TOKENS, eod="<|end_of_text|>"
    ),
    # Qwen 1, 1.5, 2, 2.5 and 3 share these ranks: qwen.tiktoken, with Qwen 1's special tokens
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": TiktokenSettings(
        pattern=_QWEN, special_tokens=_QWEN_TOKENS, normalization="NFC", eod=_ENDOFTEXT
    ),
    # Qwen 3.5 and 3.6
    "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd": TiktokenSettings(
        pattern=_QWEN35, special_tokens=_QWEN35_TOKENS, normalization="NFC", eod=_ENDOFTEXT
    ),
    # OpenAI's, as tiktoken_ext/openai_public.py of tiktoken 0.14 has them: r50k_base (GPT-2's), p50k_base, cl100k_base,
    # o200k_base
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": TiktokenSettings(
        pattern=_GPT2, special_tokens={_ENDOFTEXT: 50_256}, eod=_ENDOFTEXT
    ),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": TiktokenSettings(
        pattern=_GPT2, special_tokens={_ENDOFTEXT: 50_256}, eod=_ENDOFTEXT
    ),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": TiktokenSettings(
        pattern=_CL100K,
        special_tokens={
            **_numbered([_ENDOFTEXT, "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"], 100_257),
            "<|endofprompt|>": 100_276,
        },
        eod=_ENDOFTEXT,
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": TiktokenSettings(
        pattern=_O200K, special_tokens={_ENDOFTEXT: 199_999, "<|endofprompt|>": 200_018}, eod=_ENDOFTEXT
    ),
}
"""SHA-256 of a published vocabulary to its settings."""
