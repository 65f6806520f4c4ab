"""Does the fast encoder's cache stay bounded on text whose words never repeat? Memory and speed while it encodes.

    python benchmarks/tokenizer_cache.py --tokenizer tokenizer.json --text chinese.jsonl --megabytes 120

Chinese has no blanks, so nearly every run between two marks is new to a cache of words: runs of 2 to 11 characters are
cut from random places of the text and joined by commas. Prints a JSON object eight times on the way.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import orjson

from pamp_pipelines.tokenization.encoders import open_encoder
from pamp_pipelines.tokenization.engines import open_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="JSONL with a field text")
    parser.add_argument("--megabytes", type=float, default=120)
    options = parser.parse_args()
    engine = open_tokenizer(options.tokenizer)
    encoder = open_encoder(engine.file, engine.fast, engine.sha256)
    whole = "".join(orjson.loads(line)["text"] for line in options.text.read_bytes().splitlines())
    rng = np.random.default_rng(0)
    done, shown, used = 0.0, 0.0, 0.0
    while done < options.megabytes:
        texts = []
        for _ in range(200):
            starts, lengths = rng.integers(0, len(whole) - 12, 400), rng.integers(2, 12, 400)
            texts.append("，".join(whole[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)))
        before = time.process_time()
        encoder.encode(texts)
        used += time.process_time() - before
        done += sum(len(text.encode()) for text in texts) / 1e6
        if done >= shown:
            memory = next(
                line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
            )
            row = {"megabytes": round(done), "resident_mb": round(int(memory.split()[1]) / 1024)}
            print(json.dumps(row | {"mb_per_cpu_s": round(done / used, 1)}), flush=True)
            shown += options.megabytes / 8


if __name__ == "__main__":
    main()
