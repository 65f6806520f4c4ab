"""The `hf_template/` of a converted model: everything of the source but its weights, byte for byte.

config.json, generation_config.json and the tokenizer's files, of whatever kind, travel with the checkpoint, so that an
export is complete without the source.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.tokenization.tiktoken_settings import SETTINGS

_WEIGHTS = (
    ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".gguf", ".h5",
    ".msgpack", ".onnx", ".onnx_data", ".distcp", ".npz", ".tflite",
)  # fmt: skip
_CODE = (".py", ".so", ".sh", ".ipynb")
_FOLDERS = ("additional_chat_templates",)
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json"),
    *("sentencepiece.bpe.model", "tiktoken.model"),
)
"""Files of which a tokenizer has at least one; `*.tiktoken` counts too."""


def template_files(source: Path) -> tuple[list[Path], list[Path]]:
    """(files that make up the template, files with code, which are left behind) of a Hugging Face directory, sorted."""
    kept, code = [], []
    for path in sorted(source.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            kept += sorted(f for f in path.rglob("*.jinja") if f.is_file()) if path.name in _FOLDERS else []
        elif path.name.endswith(_CODE):
            code.append(path)
        elif not path.name.endswith(_WEIGHTS) and path.name != "manifest.json":
            kept.append(path)
    return kept, code


def copy_template(source: Path, target: Path) -> list[str]:
    """Copies the template files; symbolic links, as in a hub cache, are followed. Returns warnings for the user."""
    kept, code = template_files(source)
    target.mkdir(parents=True, exist_ok=True)
    for file in kept:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    warnings = []
    if code:
        names = ", ".join(f.name for f in code)
        warnings.append(f"{source}: left out {names}: code that comes with a model is never run")
    if not has_tokenizer(target):
        warnings.append(f"{source}: no tokenizer files; the checkpoint and its exports have no tokenizer")
    return warnings


def has_tokenizer(directory: Path) -> bool:
    return any((directory / name).is_file() for name in TOKENIZER_FILES) or any(directory.glob("*.tiktoken"))


def write_scratch_template(config: dict[str, Any], tokenizer: Path, target: Path) -> list[str]:
    """The template of a model without weights: the declared config and the files of the declared tokenizer.

    tokenizer: a directory, `tokenizer.json`, a SentencePiece `.model` file, or a tiktoken vocabulary.

    Raises:
        InputError: there is no tokenizer at that path.
    """
    target.mkdir(parents=True, exist_ok=True)
    if tokenizer.is_dir():
        warnings = copy_template(tokenizer, target)
        if not has_tokenizer(target):
            raise InputError(f"{tokenizer}: holds none of {', '.join(TOKENIZER_FILES)}")
    elif tokenizer.is_file() and tokenizer.suffix in (".json", ".model", ".tiktoken"):
        warnings = []
        shutil.copyfile(tokenizer, target / f"tokenizer{tokenizer.suffix}")
        if tokenizer.suffix != ".json" and (settings := tokenizer.with_name(SETTINGS)).is_file():
            shutil.copyfile(settings, target / SETTINGS)
    else:
        raise InputError(
            f"{tokenizer}: no tokenizer: expected a directory, tokenizer.json, a SentencePiece .model or a tiktoken "
            "vocabulary"
        )
    write_json(target / "config.json", config)
    return warnings
