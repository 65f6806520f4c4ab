"""Wall time of the whole tokenization stage for several numbers of workers, on an otherwise idle machine.

    python benchmarks/tokenization_scaling.py --corpus FILE.jsonl --tokenizer tokenizer.json --eod TOKEN \
        --copies 40 --workers 1 2 4 8 16 --work FOLDER

The corpus is written ``--copies`` times into one file. Prints a JSON object a line: ``pieces_s`` is the time of the
workers, ``seconds`` the whole stage with joining, checking, hashing and flushing; ``content`` must be the same for all.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import plain_tokenize_job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--eod", required=True)
    parser.add_argument("--copies", type=int, default=40)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    source = options.work / "corpus.jsonl"
    with source.open("wb") as out:
        for _ in range(options.copies):
            with options.corpus.open("rb") as stream:
                shutil.copyfileobj(stream, out, 1 << 20)
    time.sleep(3)  # a file that was just written would be hashed twice
    first = None
    for workers in options.workers:
        output = options.work / f"shards-{workers}"
        job = plain_tokenize_job([str(source)], options.tokenizer, output, eod=options.eod, workers=workers)
        started = time.monotonic()
        artifact = tokenize(job)
        seconds = time.monotonic() - started
        stats = artifact.manifest.stats
        first = first or stats["seconds"]
        row = {
            "workers": workers,
            "megabytes": round(source.stat().st_size / 1e6),
            "pieces_s": stats["seconds"],
            "seconds": round(seconds, 2),
            "speed_up_of_pieces": round(first / stats["seconds"], 2),
            "content": artifact.content[:16],
        }
        print(json.dumps(row), flush=True)
        shutil.rmtree(output)
    source.unlink()


if __name__ == "__main__":
    main()
