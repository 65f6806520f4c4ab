"""``pamp plan``'s memory against the peak of real runs on this machine's GPU, through the stage functions.

    python benchmarks/plan_gpu.py OUTPUT.json [CASE ...]

Each case is a run of a few iterations of the 1.236 B model of ``train_gpu.py``. Peaks are those of PyTorch's allocator,
as ``peak_memory_gib`` in the run's manifest. The plan has to be within 10 %.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import train_gpu

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.lake.producer import library_versions
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.accelerators import GIB, recognise
from pamp_pipelines.training.planning import plan
from pamp_pipelines.training.resolve import train_job
from pamp_pipelines.training.run import train

SHORT: dict[str, Any] = {"iterations": 6, "checkpoint": {"interval": 6}, "validation": {"interval": 6}}
SHORT["optimizer"] = {"lr": 3e-4, "warmup_iterations": 1}
_TE = {"cross_entropy": "transformer_engine"}
CASES: dict[str, dict[str, Any]] = {
    "bf16 micro batch 2": {"micro_batch_size": 2},
    "bf16 micro batch 4": {"micro_batch_size": 4},
    "bf16 micro batch 8, TE cross entropy": {"micro_batch_size": 8, **_TE},
    "bf16 micro batch 8, recompute full": {"micro_batch_size": 8, "recompute": "full"},
    "bf16 precision-aware": {"micro_batch_size": 4, "megatron_args": {"use-precision-aware-optimizer": True}, **_TE},
    "fp8 delayed micro batch 8, TE cross entropy": {"precision": "fp8_delayed", "micro_batch_size": 8, **_TE},
}
WITHIN = 0.10


def measure(folder: Path, cases: list[str], device: str) -> dict[str, Any]:
    """Predicted and measured GiB of each case."""
    known = recognise(device)
    assert known is not None, f"the plan does not know {device!r}"
    names = {f"case{number}": case for number, case in enumerate(cases)}
    train_gpu.CASES.update({name: {**SHORT, **CASES[case]} for name, case in names.items()})
    catalog, lake = load_catalog(train_gpu.project(folder, list(names), 1)), Lake(folder / "data/lake")
    scan_corpus(corpus_job(catalog, lake, "shakespeare"))
    tokenize(tokenize_job(catalog, lake, "shakespeare", train_gpu.MODEL))
    import_hf(import_job(catalog, lake, train_gpu.MODEL))
    results: dict[str, Any] = {}
    for name, case in names.items():
        found = plan(train_gpu.SHAPE, catalog.training_config(name), gpus=1, accelerator=known)
        assert found.declared is not None
        results[case] = {"predicted_gib": round(found.declared.gib, 1), **found.declared.data()["bytes"]}
        try:
            run = train(train_job(catalog, lake, train_gpu.MODEL, name), train_gpu.show)
        except Exception as error:  # the other cases still count
            results[case]["error"] = str(error)[-2000:]
            continue
        stats = run.manifest.stats
        measured = stats["peak_memory_gib"]
        size = sum(f.stat().st_size for f in (run.path / "checkpoints").glob("iter_*/*"))
        results[case] |= {
            "measured_gib": round(measured, 1),
            "off": round(found.declared.memory.total / GIB / measured - 1, 3),
            "within": abs(found.declared.memory.total / GIB / measured - 1) <= WITHIN,
            "checkpoint_predicted_bytes": found.checkpoint_bytes,
            "checkpoint_bytes": size,
            "model_tflops": stats.get("model_tflops"),
            "mfu": stats.get("mfu"),
        }
        print(case, results[case], flush=True)
        shutil.rmtree(run.path)
    return results


def main() -> None:
    import torch

    output, *cases = sys.argv[1:]
    device = torch.cuda.get_device_name(0)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), cases or list(CASES), device)
    report = {"device": device, "libraries": library_versions(), "cases": results}
    Path(output).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
