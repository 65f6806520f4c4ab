"""Time of a run's first step: Megatron's index over many documents, built, and read again.

    python benchmarks/training_index.py --documents 10000000 --work FOLDER

The shards are sparse (their lengths are real, their tokens zeros). Each case runs in a process of its own, so that
nothing is cached but what lies on the disk. Prints a JSON object a case; ``seconds`` and ``cpu_seconds`` are of the
index alone, without the import of Megatron. A run reads every document once.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pamp_pipelines.tokenization.indexed import bin_path, write_index

SEQUENCE_LENGTH = 4096


def write_shards(prefix: Path, documents: int) -> None:
    lengths = np.random.default_rng(0).integers(200, 1800, documents, dtype=np.int32)
    file = prefix.with_suffix(".lengths")
    lengths.tofile(file)
    write_index(prefix, file, np.int32)
    file.unlink()
    with bin_path(prefix).open("wb") as stream:
        stream.truncate(4 * int(lengths.sum(dtype=np.int64)))


def measure(prefix: Path, index: Path) -> None:
    logging.disable(logging.INFO)
    from pamp_pipelines.tokenization.indexed import IndexedReader
    from pamp_pipelines.training.data import blended

    job = SimpleNamespace(
        train=[SimpleNamespace(prefix=prefix, weight=1.0)],
        document_attention="cross",
        data_seed=1,
        sequence_length=SEQUENCE_LENGTH,
    )
    tokenizer = SimpleNamespace(eod=0, pad=-1, vocab_size=128_256, unique_identifiers={})
    samples = (len(IndexedReader(prefix).tokens) - 1) // SEQUENCE_LENGTH
    index.mkdir(exist_ok=True)
    complete = any(index.iterdir())
    wall, cpu = time.monotonic(), time.process_time()
    dataset = blended(job, samples, tokenizer, index)
    dataset[0]
    print(
        json.dumps(
            {
                "case": "cached" if complete else "built",
                "samples": samples,
                "seconds": round(time.monotonic() - wall, 2),
                "cpu_seconds": round(time.process_time() - cpu, 2),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    prefix, index = options.work / "train", options.work / "index"
    if options.measure:
        measure(prefix, index)
        return
    options.work.mkdir(parents=True)
    write_shards(prefix, options.documents)
    for _ in range(2):
        again = [sys.executable, __file__, "--work", str(options.work), "--measure"]
        subprocess.run(again, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
