"""Models with random weights that the GPU benchmarks train, and a project around them."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog, load_catalog
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job

ROOT = Path(__file__).parent.parent
CORPUS = "text"
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def llama(hidden: int, ffn: int, layers: int, heads: int, head_dim: int, **more: Any) -> dict[str, Any]:
    """A config.json of Llama's architecture."""
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "head_dim": head_dim}
    return {**_LLAMA, **sizes, "num_attention_heads": heads, **more}


def llama_8b(layers: int = 32) -> dict[str, Any]:
    """Llama-3-8B's shape; 218 M parameters more or less with each layer."""
    return llama(4096, 14336, layers, 32, 128, tie_word_embeddings=False)


SHAPES: dict[str, dict[str, Any]] = {
    # the blocks of GPT-2 small in Llama's form: 85 M parameters, and 39 M in the embeddings
    "llama-125m-shape": llama(768, 2048, 12, 12, 64, num_key_value_heads=12, vocab_size=50304),
    # Llama-3.2-1B: 1.236 B parameters
    "llama-1b-shape": llama(2048, 8192, 16, 32, 64),
    # Llama-3.2-3B: 3.21 B
    "llama-3b-shape": llama(3072, 8192, 28, 24, 128),
    **{f"llama-8b-{layers}-layers": llama_8b(layers) for layers in (28, 30, 32, 40, 44, 48, 52, 56, 60)},
}


def project(folder: Path, models: set[str], configs: dict[str, dict[str, Any]], text: Path | None) -> Project:
    """A project in ``folder``.

    Args:
        folder: empty.
        models: of ``SHAPES``.
        configs: training configs by name, without ``corpora``.
        text: folder with ``*.jsonl.gz`` and, for each size V of a vocabulary, a directory ``tokenizer-V``; None takes
            the corpus and the tokenizer that ship here.
    """
    shutil.copytree(ROOT / "data/tokenizers", folder / "data/tokenizers")
    (folder / "workspace.yaml").write_text("")
    tokenizers = dict.fromkeys(models, "data/tokenizers/shakespeare-bpe-2k")
    if text is None:
        shutil.copytree(ROOT / "data/corpora", folder / "data/corpora")
        corpus = yaml.safe_load((ROOT / "assets/corpora/shakespeare.yaml").read_text())
    else:
        shutil.copytree(text, folder / "data/text")
        corpus = {
            "licence": "unknown",
            "sources": ["data/text/*.jsonl.gz"],
            "format": "jsonl",
            "text_field": "text",
            "held_out": {"fraction": 0.01},
        }
        tokenizers = {model: f"data/text/tokenizer-{SHAPES[model]['vocab_size']}" for model in models}
    declarations: dict[str, dict[str, Any]] = {
        f"assets/corpora/{CORPUS}": corpus,
        "resources/local": {"launcher": "local"},
        **{
            f"assets/models/{model}": {"from_scratch": {"tokenizer": tokenizers[model], "config": SHAPES[model]}}
            for model in models
        },
        **{f"assets/training_configs/{name}": {"corpora": {CORPUS: 1.0}, **config} for name, config in configs.items()},
    }
    for name, value in declarations.items():
        file = folder / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(value))
    return Project(folder)


def prepare(
    folder: Path, models: set[str], configs: dict[str, dict[str, Any]], text: Path | None
) -> tuple[Catalog, Lake]:
    """The project with everything that its trainings need materialised by the pipeline's stages."""
    catalog, lake = load_catalog(project(folder, models, configs, text)), Lake(folder / "data/lake")
    scan_corpus(corpus_job(catalog, lake, CORPUS))
    for model in sorted(models):
        tokenize(tokenize_job(catalog, lake, CORPUS, model))
        import_hf(import_job(catalog, lake, model))
    return catalog, lake
