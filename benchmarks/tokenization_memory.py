"""Memory of the whole tokenization stage on a generated corpus of any size, under a limit that ends it when exceeded.

    python benchmarks/tokenization_memory.py --corpus F.jsonl --tokenizer FILE --gigabytes 5 --limit-gb 1.5 --work DIR

The documents of FILE are repeated, each with the number of the round in front. Each process may have ``--limit-gb`` of
private memory (RLIMIT_DATA); the sum over all of them is sampled twice a second. Prints a JSON object.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import orjson

PROGRAM = """
import json, sys
from pathlib import Path
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import plain_tokenize_job
source, tokenizer, output, workers, eod = sys.argv[1:]
job = plain_tokenize_job([source], Path(tokenizer), Path(output), workers=int(workers), eod=eod or None)
manifest = tokenize(job).manifest
names = ("documents_read", "documents_written", "engine", "seconds")
print(json.dumps({name: manifest.stats[name] for name in names} | {"failed": [c.name for c in manifest.failed_checks]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL with a field text")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--eod", default="")
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--limit-gb", type=float, default=1.5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    source, output = options.work / "corpus.jsonl", options.work / "shards"
    write(options.corpus, source, int(options.gigabytes * 1e9))
    limit = int(options.limit_gb * 1e9)
    words = [str(source), options.tokenizer, str(output), str(options.workers), options.eod]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    together, each = 0, 0
    while process.poll() is None:
        sizes = [private(pid) for pid in family(process.pid)]
        together, each = max(together, sum(sizes)), max(each, *sizes)
        time.sleep(0.5)
    assert process.stdout is not None
    said = process.stdout.read().splitlines()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {
        "gigabytes": round(source.stat().st_size / 1e9, 2),
        "exit": process.returncode,
        "limit_gb": options.limit_gb,
        "private_mb_together": round(together / 1e6),
        "private_mb_largest": round(each / 1e6),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        **(json.loads(said[-1]) if said else {}),
    }
    print(json.dumps(row))
    source.unlink()
    shutil.rmtree(output, ignore_errors=True)


def write(corpus: Path, target: Path, size: int) -> None:
    """Repeat the documents of a corpus until the target has ``size`` bytes."""
    texts = [orjson.loads(line)["text"] for line in corpus.read_bytes().splitlines()]
    number = 0
    with target.open("wb", buffering=1 << 20) as out:
        while out.tell() < size:
            out.writelines(orjson.dumps({"text": f"{number} {text}"}) + b"\n" for text in texts)
            number += 1


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(found for child in children for found in family(int(child)))]


def private(pid: int) -> int:
    """Bytes of memory that only this process has, and that no file backs."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("Anonymous:")), 0)


if __name__ == "__main__":
    main()
