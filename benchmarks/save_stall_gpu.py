"""What a save costs the training of the 1.236 B model: asynchronous and synchronous, through the pipeline's worker.

    python benchmarks/save_stall_gpu.py OUTPUT.json [--interval 20] [--saves 3]

The stall of a save is the time between the records of two iterations around it, less what an iteration takes at the
median. It is set against 50 iterations of the global batch of 16 that the speed is measured with. The first save is
told apart: it takes the memory that later ones use again.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import gpu_runs
from gpu_shapes import prepare
from train_gpu import BASE

from pamp_pipelines.lake.producer import library_versions

MODEL, STEPS_BETWEEN, BATCH = "llama-1b-shape", 50, 16
_TE = {"cross_entropy": "transformer_engine"}


def stalls(run: gpu_runs.Running, interval: int) -> dict[str, Any]:
    """Seconds that each save held the training up."""
    arrived = run.arrived
    gaps = {i: arrived[i] - arrived[i - 1] for i in sorted(arrived) if i - 1 in arrived and i > gpu_runs.WARM_UP}
    if not gaps:
        return gpu_runs.figures(run)
    usual = statistics.median(gaps.values())
    # a save stands between the record of its own iteration and the next one; what it slows down later counts too
    found = []
    for save in range(interval, max(arrived), interval):
        span = [gaps[i] - usual for i in range(save, min(save + interval, max(arrived))) if i in gaps]
        found.append({"next_iterations": round(sum(span[:3]), 3), "until_the_next_save": round(sum(span), 3)})
    whole = STEPS_BETWEEN * usual * BATCH / run.job.global_batch_size
    last = found[-1]["until_the_next_save"] if found else float("nan")
    return {
        "seconds_per_iteration": round(usual, 4),
        "saves": found,
        "seconds_of_50_iterations": round(whole, 1),
        "share_of_50_iterations": round(last / whole, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--interval", type=int, default=40)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=["asynchronous", "synchronous"])
    options = parser.parse_args()
    config = {**BASE, "global_batch_size": 8, **_TE}
    save = {"interval": options.interval, "keep_last": 1}
    cases = {
        "asynchronous": {**config, "checkpoint": {**save, "asynchronous": True}},
        "asynchronous-constant": {
            **config,
            "checkpoint": {**save, "asynchronous": True},
            "megatron_args": {"ckpt-assume-constant-structure": True},
        },
        "synchronous": {**config, "checkpoint": save},
    }
    report: dict[str, Any] = {"device": gpu_runs.device_name(), "libraries": library_versions()}
    with tempfile.TemporaryDirectory() as folder:
        configs = {name: cases[name] for name in options.cases}
        catalog, lake = prepare(Path(folder), {MODEL}, configs, options.text)
        for name in options.cases:
            saves = options.saves if name != "synchronous" else 1
            run = gpu_runs.start(catalog, lake, MODEL, name, options.interval * (saves + 1) - 1, {})
            gpu_runs.finish([run], 300)
            report[name] = stalls(run, options.interval)
            gpu_runs.forget(run)
            print(name, report[name], flush=True)
            gpu_runs.write(options.output, report)


if __name__ == "__main__":
    main()
