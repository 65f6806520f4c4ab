"""Speed and memory of the pipeline's own worker on this machine's GPUs, on real shards, beside what the plan foretold.

    python benchmarks/train_gpu.py OUTPUT.json [--text FOLDER] [CASE ...]

A case is a training config over a model with random weights (``gpu_shapes.SHAPES``). Figures are medians over the
iterations after the first eight. ``--text`` names a folder with ``*.jsonl.gz`` and tokenizers (``gpu_shapes.project``);
without it the small corpus of this repository is read many times over, which changes losses and no speed.
``predicted_gib`` is what ``pamp plan`` says of the case on this GPU; ``off`` is its distance from the measured peak.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import gpu_runs
from gpu_shapes import SHAPES, prepare

from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.lake.producer import library_versions
from pamp_pipelines.training.accelerators import GIB, recognise
from pamp_pipelines.training.planning import plan

BASE: dict[str, Any] = {
    "sequence_length": 4096,
    "iterations": 1000,
    "global_batch_size": 16,
    "micro_batch_size": 8,
    "optimizer": {"lr": 3e-4, "min_lr": 3e-5, "warmup_iterations": 10},
    "checkpoint": {"interval": 1000},
    "validation": {"interval": 1000},
    "parallelism": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    "determinism": "fast",
}
_TE = {"cross_entropy": "transformer_engine"}
_ONE_SAMPLE = {"global_batch_size": 8, "micro_batch_size": 1, **_TE}
_BIG = {**_ONE_SAMPLE, "state_precision": "bf16"}
# an optimizer that the host takes part in keeps its state in float32
_OFFLOADED = {
    **_ONE_SAMPLE,
    "offload": {"optimizer": 0.5},
    "megatron_args": {"grad-reduce-in-bf16": True, "main-grads-dtype": "bf16"},
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16-te": ("llama-1b-shape", _TE),
    "fp8-delayed-te": ("llama-1b-shape", {"precision": "fp8_delayed", **_TE}),
    "fp8-tensorwise-te": ("llama-1b-shape", {"precision": "fp8_tensorwise", **_TE}),
    "fp8-blockwise-te": ("llama-1b-shape", {"precision": "fp8_blockwise", **_TE}),
    "bf16": ("llama-1b-shape", {"micro_batch_size": 4}),
    "fp16": ("llama-1b-shape", {"precision": "fp16", "micro_batch_size": 4}),
    "tf32": ("llama-1b-shape", {"precision": "tf32", "micro_batch_size": 2, **_TE}),
    "fp32": ("llama-1b-shape", {"precision": "fp32", "micro_batch_size": 2, **_TE}),
    "bf16-exact": ("llama-1b-shape", {"micro_batch_size": 4, "determinism": "exact"}),
    "bf16-te-recompute": ("llama-1b-shape", {"recompute": "full", **_TE}),
    "3b-bf16-te": ("llama-3b-shape", {"micro_batch_size": 2, **_TE}),
    "8b-bf16": ("llama-8b-32-layers", _BIG),
    "8b-fp8": ("llama-8b-32-layers", {"precision": "fp8_delayed", **_BIG}),
    "offload-1b": ("llama-1b-shape", {"micro_batch_size": 4, "offload": {"optimizer": 1.0}, **_TE}),
    # what else may make bf16 faster
    "bf16-te-mbs16": ("llama-1b-shape", {"micro_batch_size": 16, **_TE}),
    "bf16-te-graphs": ("llama-1b-shape", {**_TE, "megatron_args": {"cuda-graph-impl": "local"}}),
    "bf16-te-activation": ("llama-1b-shape", {**_TE, "megatron_args": {"use-te-activation-func": True}}),
    "bf16-te-fuser": ("llama-1b-shape", {**_TE, "megatron_args": {"use-transformer-engine-op-fuser": True}}),
    "bf16-te-bf16-gradients": ("llama-1b-shape", {**_TE, "megatron_args": {"grad-reduce-in-bf16": True}}),
    "bf16-te-norm": ("llama-1b-shape", _TE),
}
ITERATIONS = {"fp32": 12, "tf32": 14, "offload-1b": 12, "8b-bf16": 14, "8b-fp8": 14}
ENVIRONMENT = {"bf16-te-norm": {"NVTE_NORM_FWD_USE_CUDNN": "1", "NVTE_NORM_BWD_USE_CUDNN": "1"}}


def _largest() -> None:
    """Dense models of Llama-3-8B's width and more layers, to find where one GPU ends."""
    ways = {"fp32-state": {**_ONE_SAMPLE}, "bf16-state": _BIG, "offload": _OFFLOADED}
    for model in SHAPES:
        if model.startswith("llama-8b-"):
            for way, config in ways.items():
                name = f"{way}-{model.split('-')[2]}"
                CASES[name] = (model, {**config, "recompute": "full"})
                ITERATIONS[name] = 11


_largest()


def predicted(model: str, config: dict[str, Any], device: str) -> float | None:
    """GiB that the plan says; None for a device that it does not know."""
    known = recognise(device)
    if known is None:
        return None
    declared = TrainingConfig.model_validate({"corpora": {"text": 1.0}, **config})
    found = plan(SHAPES[model], declared, gpus=1, accelerator=known).declared
    return None if found is None else round(found.memory.total / GIB, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--text", type=Path)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds that a case may take")
    options = parser.parse_args()
    names = options.cases or list(CASES)
    configs = {name: {**BASE, **CASES[name][1]} for name in names}
    device = gpu_runs.device_name()
    report: dict[str, Any] = {"device": device, "libraries": library_versions(), "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        catalog, lake = prepare(Path(folder), {CASES[name][0] for name in names}, configs, options.text)
        for name in names:
            begun, model = time.monotonic(), CASES[name][0]
            last = ITERATIONS.get(name, options.iterations)
            run = gpu_runs.start(catalog, lake, model, name, last, ENVIRONMENT.get(name, {}))
            gpu_runs.finish([run], options.limit)
            found = {"model": model, **gpu_runs.figures(run), "seconds": round(time.monotonic() - begun, 1)}
            gpu_runs.forget(run)
            foretold = predicted(model, configs[name], device)
            if foretold and found.get("peak_memory_gib"):
                found |= {"predicted_gib": foretold, "off": round(foretold / found["peak_memory_gib"] - 1, 3)}
            report["cases"][name] = found
            print(name, found, flush=True)
            gpu_runs.write(options.output, report)


if __name__ == "__main__":
    main()
