"""Whether a run that is killed goes on exactly, for each way of keeping weights and state that only a GPU has.

    python benchmarks/resume_gpu.py OUTPUT.json [CASE ...]

A small model trains for 100 iterations at one go, and once more, killed with SIGKILL when its save at the twentieth has
been announced, which resumes from the newest one. Losses, gradient norms and the SHA-256 over every tensor of the last
checkpoint, weights and optimizer state, have to be equal.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import gpu_runs
from gpu_shapes import SHAPES, llama, prepare

from pamp_pipelines.errors import WorkerFailed
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.producer import library_versions
from pamp_pipelines.launchers.base import read_handle
from pamp_pipelines.launchers.local import kill_leftovers
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.kept import read_record
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.resolve import train_job
from pamp_pipelines.training.run import train

MODEL = "llama-small-shape"
STEPS, SAVED = 100, 20
SHAPES[MODEL] = llama(256, 512, 2, 4, 64, num_key_value_heads=2, vocab_size=2304)
_BASE: dict[str, Any] = {
    "sequence_length": 256,
    "iterations": STEPS,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "optimizer": {"lr": 1e-3, "warmup_iterations": 2},
    "checkpoint": {"interval": SAVED},
    "evaluation": {"steps": [SAVED]},
    "validation": {"interval": STEPS},
    "determinism": "exact",
}
CASES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "bf16, state in bf16": {"state_precision": "bf16"},
    "fp8 delayed, state in bf16": {"precision": "fp8_delayed", "state_precision": "bf16"},
    "fp8 tensorwise": {"precision": "fp8_tensorwise"},
    "fp8 blockwise": {"precision": "fp8_blockwise"},
    "fp16": {"precision": "fp16"},
    "tf32": {"precision": "tf32"},
    "fp32": {"precision": "fp32"},
    "half of the optimizer on the host": {"offload": {"optimizer": 0.5}},
    "asynchronous saves": {"checkpoint": {"interval": SAVED, "asynchronous": True}},
}


def killed_once(job: TrainJob) -> Artifact:
    """Train to the end, with everything of the first attempt killed on the way."""

    def kill(event: Event) -> None:
        handle = read_handle(job.run_dir)
        if event.kind == "checkpoint" and event.data["step"] == SAVED and handle is not None:
            kill_leftovers(handle.token)

    with contextlib.suppress(WorkerFailed):
        train(job, kill)
    return train(job)


def curve(artifact: Artifact) -> list[tuple[Any, ...]]:
    return [tuple(r.get(name) for name in ("loss", "grad_norm", "learning_rate", "loss_scale")) for r in
            read_metrics(artifact.path / "metrics.jsonl")]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    options = parser.parse_args()
    names = {f"case{number}": case for number, case in enumerate(options.cases or CASES)}
    report: dict[str, Any] = {"libraries": library_versions(), "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        configs = {name: {**_BASE, **CASES[case]} for name, case in names.items()}
        catalog, lake = prepare(Path(folder), {MODEL}, configs, None)
        for name, case in names.items():
            try:
                straight = train(train_job(catalog, lake, MODEL, name))
                resumed = killed_once(train_job(catalog, lake, MODEL, name, fresh=True))
            except Exception as error:  # the other cases still count
                report["cases"][case] = {"error": str(error)[-2000:]}
            else:
                last = [read_record(run.path, STEPS).content for run in (straight, resumed)]
                report["cases"][case] = {
                    "resumed_from": resumed.manifest.stats["resumed_from"],
                    "equal_curves": curve(straight) == curve(resumed),
                    "equal_tensors": last[0] == last[1],
                    "last_loss": straight.manifest.stats["final_loss"],
                }
            print(case, report["cases"][case], flush=True)
            gpu_runs.write(options.output, report)


if __name__ == "__main__":
    main()
