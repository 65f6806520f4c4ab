"""A small valid project in a temporary folder, which tests then break in one place."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.errors import DeclarationError
from pamp_pipelines.project import Project

FILES = {
    "workspace.yaml": "load_from: []\n",
    "data/text/a.jsonl": '{"text": "one"}\n',
    "data/tok/tokenizer.json": json.dumps(
        {
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
            "added_tokens": [{"id": 2, "content": "<|endoftext|>"}],
        }
    ),
    "data/hf/config.json": json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 8,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "num_hidden_layers": 4,
            "intermediate_size": 96,
            "max_position_embeddings": 128,
        }
    ),
    "data/hf/tokenizer.json": json.dumps({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}, "added_tokens": []}),
    "resources/local.yaml": "processes_per_node: 1\n",
    "resources/eight.yaml": "processes_per_node: 8\n",
    "assets/corpora/text.yaml": """\
        licence: CC0-1.0
        sources: [data/text/*.jsonl]
        format: jsonl
        """,
    "assets/models/tiny.yaml": """\
        from_scratch:
          tokenizer: data/tok
          config:
            architectures: [LlamaForCausalLM]
            vocab_size: 3
            hidden_size: 64
            intermediate_size: 128
            num_attention_heads: 4
            num_hidden_layers: 2
            max_position_embeddings: 256
        eod: <|endoftext|>
        """,
    "assets/models/hf.yaml": """\
        hf:
          path: data/hf
        """,
    "assets/training_configs/cfg.yaml": """\
        models: [tiny]
        corpora:
          text: 1
        sequence_length: 32
        iterations: 10
        global_batch_size: 4
        optimizer:
          lr: 1e-3
        checkpoint:
          interval: 5
        validation:
          interval: 5
        """,
    "assets/evaluations/ppl.yaml": """\
        tasks: [heldout_perplexity]
        data:
          heldout_perplexity: held_out
        """,
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    write(tmp_path, FILES)
    return Project(tmp_path)


Edit = Callable[[str, str, str], None]


@pytest.fixture
def edit(project: Project) -> Edit:
    """``edit(file, old, new)`` replaces text that must be there."""

    def replace(file: str, old: str, new: str) -> None:
        path = project.root / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return replace


@pytest.fixture
def problems(project: Project) -> Callable[[], list[str]]:
    """Problems of the project, as printed, with paths relative to it; empty when it loads."""

    def load() -> list[str]:
        try:
            load_catalog(project)
        except DeclarationError as error:
            return [str(p).replace(f"{project.root}/", "") for p in error.problems]
        return []

    return load
