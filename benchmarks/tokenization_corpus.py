"""A large corpus of many files from first to last: raw_corpus, shards with several numbers of workers, and both again.

    python benchmarks/tokenization_corpus.py --corpus C.jsonl --tokenizer FILE --eod TOKEN --gigabytes 10 --files 1000 \
        --workers 1 2 --work FOLDER

The documents of C are repeated, each with a running number in front, over all files. Every step is a process of its
own. Prints a JSON object a step: wall and CPU seconds, the largest private memory of a process and of all together
(sampled twice a second), and for a step that is run again its seconds for 1,000 files. Shards of any number of workers
must have the same ``content``.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
from tokenization_memory import family, private

PROGRAM = """
import json, sys, time
from pathlib import Path
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.corpus import Corpus
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
A = json.loads(sys.argv[1])
root = Path(A["work"])
model = {"from_scratch": {"config": {"vocab_size": 300_000}, "tokenizer": A["tokenizer"]}, "eod": A["eod"]}
catalog = Catalog(
    Project(root),
    corpora={"c": Corpus(licence="CC0-1.0", sources=("text",), format="jsonl")},
    models={"m": Model.model_validate(model)},
)
lake = Lake(root / "lake")
started = time.monotonic()
if A["step"] == "raw_corpus":
    artifact = scan_corpus(corpus_job(catalog, lake, "c"))
else:
    job = tokenize_job(catalog, lake, "c", "m")
    artifact = tokenize(job.model_copy(update={"workers": A["workers"]}))
print(json.dumps({
    "seconds": round(time.monotonic() - started, 2),
    "documents": artifact.manifest.stats.get("documents_written", artifact.manifest.stats.get("documents")),
    "path": str(artifact.path),
    "content": artifact.content[:16],
    "failed": [check.name for check in artifact.manifest.failed_checks],
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL with a field text")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--eod", required=True)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", type=Path, required=True, help="folder that is made and removed")
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    write(options.corpus, options.work / "text", options.files, int(options.gigabytes * 1e9 / options.files))
    time.sleep(3)  # files that were just written are not remembered
    common = {"work": str(options.work), "tokenizer": str(options.tokenizer.absolute()), "eod": options.eod}
    run(common | {"step": "raw_corpus"})
    again(common | {"step": "raw_corpus"}, options.files)
    for workers in options.workers:
        made = run(common | {"step": "tokenized_shards", "workers": workers})
        again(common | {"step": "tokenized_shards", "workers": workers}, options.files)
        shutil.rmtree(made["path"])
    shutil.rmtree(options.work)


def write(corpus: Path, folder: Path, files: int, size: int) -> None:
    """Files of ``size`` bytes each, in which no document repeats."""
    texts = [orjson.loads(line)["text"] for line in corpus.read_bytes().splitlines()]
    folder.mkdir()
    number = 0
    for index in range(files):
        with (folder / f"{index:06}.jsonl").open("wb", buffering=1 << 20) as out:
            while out.tell() < size:
                out.write(orjson.dumps({"text": f"{number} {texts[number % len(texts)]}"}) + b"\n")
                number += 1


def again(arguments: dict[str, Any], files: int) -> None:
    """The step once more, which finds what it made."""
    run(arguments | {"again": True}, files)


def run(arguments: dict[str, Any], files: int = 0) -> dict[str, Any]:
    """One step; prints and gives its row."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    before = os.times()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    together = largest = 0
    while process.poll() is None:
        sizes = [private(pid) for pid in family(process.pid)]
        together, largest = max(together, sum(sizes)), max(largest, *sizes)
        time.sleep(0.5)
    after = os.times()
    assert process.stdout is not None
    said = process.stdout.read().splitlines()
    if process.returncode:
        raise SystemExit(process.returncode)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    row: dict[str, Any] = {k: v for k, v in arguments.items() if k in ("step", "workers", "again")}
    row |= {"cpu_s": round(cpu, 2), "private_mb_largest": round(largest / 1e6), "private_mb": round(together / 1e6)}
    row |= json.loads(said[-1])
    if files:
        row["seconds_per_1000_files"] = round(row["seconds"] * 1000 / files, 2)
    print(json.dumps({k: v for k, v in row.items() if k != "path"}), flush=True)
    return row


if __name__ == "__main__":
    main()
