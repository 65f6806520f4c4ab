"""Speed and memory of import and export beside a plain sequential copy of the same bytes, and their growth with size.

    python benchmarks/conversion.py OUTPUT.json [--directory DIR] [--repeats 2] [--size '2.5 GB']

Each size is a bfloat16 model of Llama's shape with random bits. The copy reads the weights and writes them again in
blocks of 4 MiB, then flushes, as conversions do. The conversions are measured in the worker, without the hashes that
identify inputs and outputs. Memory is the anonymous memory of the process and its children together, sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = {"0.6 GB": 4, "1.2 GB": 11, "2.5 GB": 26}
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 2048,
    "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
_BLOCK = 4 * 2**20

_RUN = """
import json, sys, time
from pathlib import Path
from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.lake.events import EventLog

if __name__ == "__main__":
    stage, source, target, workers = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    target.mkdir()
    events = EventLog(target.parent / "events.jsonl")
    if stage == "import":
        from pamp_pipelines.conversion.import_work import run_import as run
        job = ImportJob(name="bench", id="bench", output=target, source=source, workers=workers)
    else:
        from pamp_pipelines.conversion.export_work import run_export as run
        checkpoint, template = source / "checkpoint" / "release", source / "hf_template"
        job = ExportJob(name="bench", id="bench", output=target, checkpoint=checkpoint, template=template,
                        workers=workers)
    print(json.dumps({"seconds": run(job, target, events).stats["seconds"]}))
"""


def write_model(directory: Path, layers: int) -> int:
    """A model of bfloat16 weights below 2 in magnitude; returns their bytes."""
    from pamp_pipelines.conversion.dtypes import BFLOAT16
    from pamp_pipelines.conversion.export_plan import safetensors_header
    from pamp_pipelines.conversion.layout import layout_of

    config = {**_CONFIG, "num_hidden_layers": layers}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    shapes = layout_of(config).hf_shapes()
    header, _ = safetensors_header([(name, BFLOAT16, shape) for name, shape in shapes.items()])
    random = np.random.default_rng(0)
    block = random.integers(0, 0x3FFF, _BLOCK // 2, dtype=np.uint16).tobytes()
    left = total = sum(2 * int(np.prod(shape)) for shape in shapes.values())
    with (directory / "model.safetensors").open("wb") as stream:
        stream.write(header)
        while left:
            left -= stream.write(block[: min(left, len(block))])
        os.fsync(stream.fileno())
    return total


def plain_copy(source: Path, target: Path) -> dict[str, float]:
    """Seconds and CPU seconds of a sequential copy through one buffer, flushed to storage."""
    started, cpu = time.monotonic(), time.process_time()
    buffer = bytearray(_BLOCK)
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            writer.write(memoryview(buffer)[:count])
        os.fsync(writer.fileno())
    return {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time() - cpu}


def anonymous_kib(pid: int) -> int:
    """Anonymous memory of a process and all its children."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    return own + sum(anonymous_kib(int(child)) for child in children)


def convert(stage: str, source: Path, target: Path, workers: int) -> dict[str, float]:
    """Seconds and peak anonymous memory of one conversion in a process of its own."""
    script = target.parent / "run.py"
    script.write_text(_RUN)
    command = [sys.executable, str(script), stage, str(source), str(target), str(workers)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_kib(process.pid))
        time.sleep(0.01)
    output = process.communicate()[0]
    if process.returncode:
        raise RuntimeError(f"{stage} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": json.loads(output)["seconds"], "cpu_seconds": cpu, "peak_anonymous_mb": peak // 1024}


def warm(source: Path, folder: Path) -> None:
    """Leaves as much free page cache behind as the next one writes.

    A virtual machine gives out memory that it had not used before at several times the cost of the copy. The first to
    write would leave its pages to the second and none to the third.
    """
    plain_copy(source, folder / "warm")
    (folder / "warm").unlink()


def measure(name: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Copy, import and export in turn, so that a change of the machine's load hits all alike; medians."""
    source = folder / "source"
    size = write_model(source, LAYERS[name])
    runs: dict[str, list[dict[str, float]]] = {}
    weights = source / "model.safetensors"
    for _ in range(repeats):
        warm(weights, folder)
        runs.setdefault("copy", []).append(plain_copy(weights, folder / "copy"))
        (folder / "copy").unlink()
        for workers in (1, 2):
            warm(weights, folder)
            runs.setdefault(f"import-{workers}", []).append(convert("import", source, folder / "imported", workers))
            warm(weights, folder)
            exported = convert("export", folder / "imported", folder / "exported", workers)
            runs.setdefault(f"export-{workers}", []).append(exported)
            shutil.rmtree(folder / "imported")
            shutil.rmtree(folder / "exported")
    shutil.rmtree(source)
    copy = statistics.median(run["seconds"] for run in runs["copy"])
    found: dict[str, Any] = {"bytes": size}
    for kind, measured in runs.items():
        seconds = statistics.median(run["seconds"] for run in measured)
        found[kind] = {
            "seconds": round(seconds, 2),
            "gigabytes_per_second": round(size / 1e9 / seconds, 2),
            "share_of_copy": round(copy / seconds, 2),
            "cpu_seconds": round(statistics.median(run["cpu_seconds"] for run in measured), 2),
            **({"peak_anonymous_mb": max(r["peak_anonymous_mb"] for r in measured)} if kind != "copy" else {}),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--directory", type=Path, help="where the files go; default: a temporary directory")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--size", action="append", choices=list(LAYERS), help="one of the sizes; may be repeated")
    args = parser.parse_args()
    report = {}
    for name in args.size or LAYERS:
        with tempfile.TemporaryDirectory(dir=args.directory) as folder:
            report[name] = measure(name, Path(folder), args.repeats)
        print(name, json.dumps(report[name]), flush=True)
        args.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
