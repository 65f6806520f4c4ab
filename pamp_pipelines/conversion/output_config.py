"""What an export adds to the template: facts of config.json that follow from the weights, and tokenizer settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.architectures import Config
from pamp_pipelines.conversion.architectures.dense import fp8_blocks
from pamp_pipelines.conversion.dtypes import DType
from pamp_pipelines.conversion.layout import Layout
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.tokenization.encoders import first_difference, probe_texts
from pamp_pipelines.tokenization.engines import HuggingFaceEngine, find_tokenizer
from pamp_pipelines.tokenization.tiktoken_engine import TiktokenEngine, is_tiktoken

_FORCED = {"qwen2": "Qwen2Tokenizer"}
"""Tokenizer classes that transformers 5 takes by `model_type` over the declared one (MODELS_WITH_INCORRECT_HUB_…)."""


def write_output_config(template: Path, target: Path, layout: Layout, dtypes: Sequence[DType]) -> None:
    """`config.json` of the export: the template's, with the type of the weights and the class of the model.

    Nothing else is touched; where nothing differs the file stays the template's, byte for byte. `dtypes`: types of the
    weights, the main one first: transformers knows one for the whole model.
    """
    config: dict[str, Any] = json.loads((template / "config.json").read_text(encoding="utf-8"))
    # transformers 5 writes `dtype` and reads `torch_dtype` too; earlier versions know only the latter
    field = "torch_dtype" if "torch_dtype" in config and "dtype" not in config else "dtype"
    changed: dict[str, Any] = {field: dtypes[0].name}
    if "torch_dtype" in config:
        changed["torch_dtype"] = dtypes[0].name
    if not config.get("architectures"):
        changed["architectures"] = [layout.architecture.classes[0]]
    if not config.get("model_type"):
        changed["model_type"] = layout.architecture.model_types[0]
    quantised = fp8_blocks(config) is not None  # and was dequantised by the import
    if quantised or any(config.get(name) != value for name, value in changed.items()):
        config.pop("quantization_config", None)
        write_json(target / "config.json", config | changed)


def complete_tokenizer(target: Path, config: Config) -> list[str]:
    """Writes `tokenizer_config.json` for a bare `tokenizer.json` or SentencePiece `tokenizer.model`, and first of all a
    `tokenizer.json` for a tiktoken vocabulary, which transformers reads with the code of its model only.

    Without it transformers chooses a class by `model_type`, whose normalisation and special tokens need not be those of
    the file. Returns what was done, in sentences for the user; a tokenizer that has its settings is left alone.
    """
    settings = target / "tokenizer_config.json"
    notes = _from_tiktoken(target, settings)
    if settings.exists():
        return notes
    if (target / "tokenizer.json").is_file():
        source, pieces = "tokenizer.json", _pieces_of_json(target / "tokenizer.json")
        special: dict[str, str] = {}
    elif (target / "tokenizer.model").is_file():
        source = "tokenizer.model"
        pieces, special = _sentencepiece(target / "tokenizer.model")
    else:
        return notes
    for name in ("bos", "eos", "pad"):
        token = config.get(f"{name}_token_id")
        first = token[0] if isinstance(token, list) and token else token
        if isinstance(first, int) and first in pieces:
            special[f"{name}_token"] = pieces[first]
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    write_json(settings, content)
    named = ", ".join(f"{name} {token!r}" for name, token in special.items()) or "no special tokens"
    notes.append(f"the tokenizer is a bare {source}: wrote tokenizer_config.json with {named}")
    forced = _FORCED.get(str(config.get("model_type")))
    if forced:
        notes.append(
            f"transformers opens every {config['model_type']} model with {forced}, whatever is declared: AutoTokenizer "
            f"may give other ids than {source}; open it with PreTrainedTokenizerFast"
        )
    return notes


def _from_tiktoken(target: Path, settings: Path) -> list[str]:
    """Writes the `tokenizer.json` of a folder that holds a tiktoken vocabulary only."""
    try:
        file = find_tokenizer(target)
    except InputError:
        return []  # no tokenizer at all
    if file.suffix == ".json" or not is_tiktoken(file):
        return []
    engine = TiktokenEngine(file)
    made = target / "tokenizer.json"
    made.write_bytes(engine.tokenizer_json)
    texts = probe_texts(engine.added_tokens)
    if (different := first_difference(engine.encode(texts), HuggingFaceEngine(made).encode(texts))) is not None:
        made.unlink()
        return [
            f"{file.name}: no tokenizer.json was made of it: it would give other ids for {texts[different][:60]!r}; "
            "transformers needs the code of the source model for this tokenizer"
        ]
    if settings.exists():
        content = json.loads(settings.read_text(encoding="utf-8"))
        content.pop("auto_map", None)
        write_json(settings, content | {"tokenizer_class": "PreTrainedTokenizerFast"})
    return [f"made tokenizer.json of {file.name}, equal on {len(texts)} texts: transformers has no code for the latter"]


def _pieces_of_json(file: Path) -> dict[int, str]:
    """Token of each id of a `tokenizer.json`."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    return {number: token for token, number in vocabulary.items()}


def _sentencepiece(file: Path) -> tuple[dict[int, str], dict[str, str]]:
    """(token of each id, special tokens that the model itself declares) of a SentencePiece model."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(file))
    pieces = {i: str(model.id_to_piece(i)) for i in range(model.get_piece_size())}
    declared = {"bos": model.bos_id(), "eos": model.eos_id(), "unk": model.unk_id(), "pad": model.pad_id()}
    return pieces, {f"{name}_token": pieces[i] for name, i in declared.items() if i >= 0}
