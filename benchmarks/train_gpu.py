"""Training speed of the pipeline's own worker on this machine's GPUs, on real shards, through the stage functions.

    python benchmarks/train_gpu.py OUTPUT.json [CASE ...]

Each case is a training config over a 1.236 B model of Llama-3.2-1B's shape with random weights. The corpus is the one
that ships with the repository, so samples repeat; speed does not depend on it. Figures are medians over the iterations
after the first ten, since the first ones compile and fill caches.
"""

import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.producer import library_versions
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.resolve import train_job
from pamp_pipelines.training.run import train

ROOT = Path(__file__).parent.parent
MODEL = "llama-1b-shape"
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
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
BASE: dict[str, Any] = {
    "corpora": {"shakespeare": 1.0},
    "sequence_length": 4096,
    "iterations": 30,
    "global_batch_size": 16,
    "micro_batch_size": 4,
    "optimizer": {"lr": 3e-4, "min_lr": 3e-5, "warmup_iterations": 5},
    "checkpoint": {"interval": 30},
    "validation": {"interval": 30},
    "parallelism": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    "determinism": "fast",
}
CASES: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "bf16-mbs8": {"precision": "bf16", "micro_batch_size": 8},
    "bf16-te": {"precision": "bf16", "micro_batch_size": 8, "cross_entropy": "transformer_engine"},
    "bf16-exact": {"precision": "bf16", "determinism": "exact"},
    "fp8-delayed": {"precision": "fp8_delayed", "micro_batch_size": 8},
    "fp8-te": {"precision": "fp8_delayed", "micro_batch_size": 8, "cross_entropy": "transformer_engine"},
    "fp8-tensorwise": {"precision": "fp8_tensorwise", "micro_batch_size": 8},
    "fp8-blockwise": {"precision": "fp8_blockwise", "micro_batch_size": 8},
    "fp16": {"precision": "fp16"},
    "fp32": {"precision": "fp32", "micro_batch_size": 2, "iterations": 15},
}
WARM_UP = 10


def project(folder: Path, cases: list[str], gpus: int) -> Project:
    """A project in ``folder`` with the cases as training configs."""
    shutil.copytree(ROOT / "data/corpora", folder / "data/corpora")
    shutil.copytree(ROOT / "data/tokenizers", folder / "data/tokenizers")
    (folder / "workspace.yaml").write_text("")
    declarations: dict[str, dict[str, Any]] = {
        "assets/corpora/shakespeare": yaml.safe_load((ROOT / "assets/corpora/shakespeare.yaml").read_text()),
        f"assets/models/{MODEL}": {
            "from_scratch": {"tokenizer": "data/tokenizers/shakespeare-bpe-2k", "config": SHAPE},
        },
        "resources/local": {"launcher": "local", "processes_per_node": gpus},
        **{f"assets/training_configs/{case}": {**BASE, **CASES[case]} for case in cases},
    }
    for name, value in declarations.items():
        file = folder / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(value))
    return Project(folder)


def show(event: Event) -> None:
    if event.kind in {"warning", "failed", "started", "finished"} or event.data.get("iteration", 1) % 10 == 0:
        print(event.kind, event.data, file=sys.stderr, flush=True)


def measure(folder: Path, cases: list[str], gpus: int) -> dict[str, Any]:
    """Tokens per second of each case, over all GPUs and per GPU."""
    catalog, lake = load_catalog(project(folder, cases, gpus)), Lake(folder / "data/lake")
    scan_corpus(corpus_job(catalog, lake, "shakespeare"))
    tokenize(tokenize_job(catalog, lake, "shakespeare", MODEL))
    import_hf(import_job(catalog, lake, MODEL))
    results: dict[str, Any] = {}
    for case in cases:
        start = time.monotonic()
        try:
            run = train(train_job(catalog, lake, MODEL, case), show)
        except Exception as error:  # the other cases still count
            results[case] = {"error": str(error)[-2000:]}
            continue
        records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        speed = [r["tokens_per_second"] for r in records if r["iteration"] > WARM_UP and "tokens_per_second" in r]
        results[case] = {
            "tokens_per_second": round(statistics.median(speed)),
            "tokens_per_second_per_gpu": round(statistics.median(speed) / gpus),
            "milliseconds_per_iteration": round(
                1e3 * statistics.median(r["seconds_per_iteration"] for r in records[WARM_UP:]), 1
            ),
            "loss": {str(r["iteration"]): r["loss"] for r in records if r["iteration"] in (1, 5, 10, 15, 30)},
            "validation_loss": records[-1].get("validation_loss"),
            "wall_seconds": round(time.monotonic() - start, 1),
        }
        print(case, results[case], flush=True)
        shutil.rmtree(run.path)
    return results


def main() -> None:
    import torch

    output, *cases = sys.argv[1:]
    gpus = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), cases or list(CASES), gpus)
    report = {"device": torch.cuda.get_device_name(0), "gpus": gpus, "libraries": library_versions(), "cases": results}
    Path(output).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
