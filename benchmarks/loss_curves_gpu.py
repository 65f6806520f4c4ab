"""Loss curves of every precision and of both cross entropies on the same data and seed, through the pipeline's worker.

    python benchmarks/loss_curves_gpu.py OUTPUT.json --text FOLDER [--steps 200]

Small models (124 M parameters) run all at once on one GPU, so their speed means nothing here; losses do not depend on
it. Each curve is compared with float32: mean loss of the last twenty steps, and the largest and mean difference over
all steps. The 1.236 B model runs in bf16 and fp8: their losses at the end must be within 1 %.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import gpu_runs
from gpu_shapes import prepare

from pamp_pipelines.lake.producer import library_versions

SMALL, LARGE = "llama-125m-shape", "llama-1b-shape"
_TE = {"cross_entropy": "transformer_engine"}
_BASE: dict[str, Any] = {
    "sequence_length": 1024,
    "iterations": 1000,
    "global_batch_size": 16,
    "micro_batch_size": 8,
    "optimizer": {"lr": 6e-4, "min_lr": 6e-5, "warmup_iterations": 20, "decay_iterations": 1000},
    "checkpoint": {"interval": 1000},
    "validation": {"interval": 1000},
    "determinism": "fast",
}
_LARGE: dict[str, Any] = {
    **_BASE,
    "sequence_length": 4096,
    "global_batch_size": 4,
    "micro_batch_size": 4,
    "optimizer": {"lr": 3e-4, "min_lr": 3e-5, "warmup_iterations": 20, "decay_iterations": 1000},
    **_TE,
}
SMALL_CASES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "tf32": {"precision": "tf32"},
    "fp16": {"precision": "fp16"},
    "bf16": {},
    "bf16-te": _TE,
    "fp8-delayed": {"precision": "fp8_delayed"},
    "fp8-tensorwise": {"precision": "fp8_tensorwise"},
    "fp8-blockwise": {"precision": "fp8_blockwise"},
}
LARGE_CASES: dict[str, dict[str, Any]] = {"1b-bf16": {}, "1b-fp8-delayed": {"precision": "fp8_delayed"}}


def against(curve: dict[int, float], reference: dict[int, float], last: int = 20) -> dict[str, float]:
    """How far a curve is from another one, over the iterations that both have."""
    both = sorted(curve.keys() & reference.keys())
    distance = [abs(curve[i] - reference[i]) for i in both]
    ours, theirs = (statistics.fmean(values[i] for i in both[-last:]) for values in (curve, reference))
    return {
        "end": round(ours, 5),
        "end_off": round(ours / theirs - 1, 6),
        "largest": round(max(distance), 5),
        "mean": round(statistics.fmean(distance), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds")
    parser.add_argument("--only", nargs="*", help="cases")
    options = parser.parse_args()
    cases = {
        **{name: (SMALL, {**_BASE, **more}) for name, more in SMALL_CASES.items()},
        **{name: (LARGE, {**_LARGE, **more}) for name, more in LARGE_CASES.items()},
    }
    cases = {name: case for name, case in cases.items() if not options.only or name in options.only}
    report: dict[str, Any] = {"device": gpu_runs.device_name(), "libraries": library_versions()}
    with tempfile.TemporaryDirectory() as folder:
        configs = {name: config for name, (_, config) in cases.items()}
        catalog, lake = prepare(Path(folder), {model for model, _ in cases.values()}, configs, options.text)
        runs = {
            name: gpu_runs.start(catalog, lake, model, name, options.steps, {}) for name, (model, _) in cases.items()
        }
        gpu_runs.finish(list(runs.values()), options.limit)
        found = {name: gpu_runs.figures(run) for name, run in runs.items()}
        report["errors"] = {name: f["error"] for name, f in found.items() if "error" in f}
        report["peak_memory_gib"] = {name: f["peak_memory_gib"] for name, f in found.items() if "error" not in f}
        good = [name for name in cases if name not in report["errors"]]
        curves = {name: gpu_runs.curve(runs[name]) for name in good}
        report["curves"] = {name: [round(loss, 5) for loss in curve.values()] for name, curve in curves.items()}
        gpu_runs.write(options.output, report)  # whatever the comparison says, they are kept
        norms = {name: gpu_runs.curve(runs[name], "grad_norm") for name in good}
        for name in good:
            reference = "fp32" if name in SMALL_CASES else "1b-bf16"
            if reference in curves:
                report.setdefault("loss", {})[name] = against(curves[name], curves[reference])
                report.setdefault("grad_norm", {})[name] = against(norms[name], norms[reference])
        if {"bf16", "bf16-te"} <= set(curves):
            report["cross_entropy"] = {
                "loss": against(curves["bf16-te"], curves["bf16"]),
                "grad_norm": against(norms["bf16-te"], norms["bf16"]),
            }
    gpu_runs.write(options.output, report)
    print({key: value for key, value in report.items() if key != "curves"})


if __name__ == "__main__":
    main()
