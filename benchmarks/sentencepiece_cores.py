"""A SentencePiece model through the whole stage, and through the sentencepiece library with all cores, by turns.

    python benchmarks/sentencepiece_cores.py --corpus C.jsonl --tokenizer tokenizer.model --cores 2 --repeats 3

The library encodes batches of 4 MB in ``--cores`` threads and writes the ids; the stage has as many workers, and also
hashes, joins and checks. Prints a JSON object a run with wall and CPU seconds; ``same_bytes`` compares their ``.bin``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = """
import itertools, json, sys, time
import numpy as np, orjson, sentencepiece
A = json.loads(sys.argv[1])
processor = sentencepiece.SentencePieceProcessor(model_file=A["tokenizer"])
started = time.monotonic()
with open(A["corpus"], "rb") as stream, open(A["output"] + ".bin", "wb") as out:
    while lines := stream.readlines(4 << 20):
        texts = [orjson.loads(line)["text"] for line in lines]
        for ids in processor.encode(texts, num_threads=A["cores"], add_eos=True):
            out.write(np.array(ids, np.uint16).tobytes())
print(json.dumps({"seconds": round(time.monotonic() - started, 2), "bin": A["output"] + ".bin"}))
"""

STAGE = """
import json, sys, time
from pathlib import Path
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import plain_tokenize_job
A = json.loads(sys.argv[1])
started = time.monotonic()
job = plain_tokenize_job([A["corpus"]], Path(A["tokenizer"]), Path(A["output"]), workers=A["cores"])
job = job.model_copy(update={"task_bytes": max(1 << 20, job.files[0].bytes // (8 * A["cores"]))})
artifact = tokenize(job)
said = {"seconds": round(time.monotonic() - started, 2), "bin": str(artifact.path / "train.bin")}
print(json.dumps(said | {"engine": artifact.manifest.stats["engine"]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL with a field text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="SentencePiece .model with fewer than 65,500 ids")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            written = []
            for name, program in (("library", LIBRARY), ("stage", STAGE)):
                arguments = {
                    "corpus": str(options.corpus.absolute()),
                    "tokenizer": str(options.tokenizer.absolute()),
                    "output": f"{folder}/{name}",
                    "cores": options.cores,
                }
                before = os.times()
                command = [sys.executable, "-c", program, json.dumps(arguments)]
                ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                after = os.times()
                said = json.loads(ended.stdout.splitlines()[-1])
                written.append(Path(said.pop("bin")).read_bytes())
                cpu = after.children_user + after.children_system - before.children_user - before.children_system
                same = {"same_bytes": written[0] == written[-1]} if len(written) > 1 else {}
                row = {"repeat": repeat, "contender": name, "cores": options.cores, "cpu_s": round(cpu, 2)}
                print(json.dumps(row | said | same), flush=True)


if __name__ == "__main__":
    main()
