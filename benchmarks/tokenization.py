"""Tokenization of the same text by this project and by what others use, one core each, in one run.

    python benchmarks/tokenization.py --corpus FILE.jsonl --tokenizer tokenizer.json --eod TOKEN \
        [--megatron CHECKOUT] [--gigatoken PYTHON] [--datatrove PYTHON]

Every contender is a process of its own, which loads its tokenizer and then counts the CPU seconds until its ``.bin`` is
written (user and system time, its children's too); wall time says little on a shared machine. The slow ones get only
the first ``--share`` of the documents. Contenders must write the same bytes: a row whose ``.bin`` differs says so.

* ``loop``: orjson, fastokens' ``encode_batch_flat`` in blocks of 8 MB and numpy: nothing is checked or counted.
* ``ours``: the whole stage with one worker, from hashing the source file to the published artifact;
  ``pieces_mb_per_cpu_s`` is the part of it that the loop does.
* ``megatron``: ``tools/preprocess_data.py --workers 1`` of a checkout, less the CPU time of a run on one line.
* ``gigatoken``: what ``tools/preprocess_data_fast.py`` does (``encode_files``, then ``add_documents``), without the
  imports of Megatron; in the Python that is named, where gigatoken, awkward and numpy are installed.
* ``datatrove``: its ``MegatronDocumentTokenizer``, in the Python that is named.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PREAMBLE = """
import hashlib, json, os, resource, sys, time
A = json.loads(sys.argv[1])
def cpu():
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system
def report(path, started, **more):
    used = cpu() - started
    peak = max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    digest = hashlib.md5()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    print("RESULT " + json.dumps({"cpu_s": used, "peak_mb": round(peak), "md5": digest.hexdigest(), **more}))
"""

LOOP = """
import fastokens, numpy as np, orjson
t = fastokens.Tokenizer.from_file(A["tokenizer"])
eod, dtype, loads = A["eod_id"], np.dtype(A["dtype"]), orjson.loads
out = A["folder"] + "/loop.bin"
started = cpu()
with open(A["corpus"], "rb") as f, open(out, "wb", buffering=0) as w:
    while True:
        B = []; n = 0
        while n < 8 << 20:
            l = f.readline()
            if not l:
                break
            B.append(loads(l)["text"]); n += len(l)
        if not B:
            break
        a, b = t.encode_batch_flat(B, add_special_tokens=False)
        ids = np.frombuffer(a, np.uint32).astype(dtype, copy=False)
        ol = np.frombuffer(b, np.uint64).astype(np.int64).tolist()
        r = np.empty(len(ids) + len(B), dtype); p = 0
        for k in range(len(B)):
            s = ol[k]; e = ol[k + 1]; q = p + e - s
            r[p:q] = ids[s:e]; r[q] = eod; p = q + 1
        w.write(memoryview(r).cast("B"))
report(out, started)
"""

OURS = """
from pathlib import Path
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.encoders import choose_encoder, open_encoder
from pamp_pipelines.tokenization.job import plain_tokenize_job
from pamp_pipelines.tokenization import build
loading = cpu()
engine = open_tokenizer(Path(A["tokenizer"]))
open_encoder(engine.file, choose_encoder(engine, print), engine.sha256)
loading = cpu() - loading
marks = {}
make = build.make_pieces
def timed(*a):
    before = cpu(); make(*a); marks["pieces_s"] = cpu() - before
build.make_pieces = timed
started = cpu()
job = plain_tokenize_job([A["corpus"]], Path(A["tokenizer"]), Path(A["folder"]) / "ours", eod=A["eod"], workers=1)
artifact = tokenize(job)
report(str(artifact.path / "train.bin"), started, loading_s=loading, engine=artifact.manifest.stats["engine"], **marks)
"""

GIGATOKEN = """
import awkward as ak, gigatoken as gt, numpy
t = gt.Tokenizer(A["tokenizer"])
out = A["folder"] + "/gigatoken.bin"
started = cpu()
source = gt.JsonlFileSource([A["corpus"]], field="text") if hasattr(gt, "JsonlFileSource") else None
docs = t.encode_files(source)
flat = numpy.asarray(ak.flatten(docs), dtype=A["dtype"])
lengths = numpy.asarray(ak.num(docs, axis=1))
flat = numpy.insert(flat, numpy.cumsum(lengths), A["eod_id"]).astype(A["dtype"], copy=False)
with open(out, "wb") as w:
    w.write(flat.tobytes(order="C"))
report(out, started)
"""

DATATROVE = """
import glob
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import MegatronDocumentTokenizer
out = A["folder"] + "/datatrove"
started = cpu()
source = os.path.dirname(A["corpus"])
LocalPipelineExecutor(pipeline=[
    JsonlReader(source, glob_pattern=os.path.basename(A["corpus"])),
    MegatronDocumentTokenizer(
        output_folder=out, tokenizer_name_or_path=A["tokenizer"], eos_token=A["eod"], batch_size=1000
    ),
], tasks=1, logging_dir=A["folder"] + "/datatrove-logs").run()
report(glob.glob(out + "/*.bin")[0], started)
"""


def run(python: str, program: str, arguments: dict[str, Any], core: str) -> dict[str, Any]:
    """The report of a program on one core."""
    env = os.environ | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = ["taskset", "-c", core, python, "-c", PREAMBLE + program, json.dumps(arguments)]
    ended = subprocess.run(words, env=env, capture_output=True, text=True)
    for line in ended.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line[7:]))
    return {"error": (ended.stderr.splitlines() or ["no output"])[-1][:300]}


def megatron(checkout: Path, arguments: dict[str, Any], core: str) -> dict[str, Any]:
    """The script itself, less its start."""
    folder = Path(arguments["folder"])
    one = folder / "one.jsonl"
    with Path(arguments["corpus"]).open("rb") as stream:
        one.write_bytes(stream.readline())
    program = """
import subprocess
started = cpu()
subprocess.run([sys.executable, A["checkout"] + "/tools/preprocess_data.py", "--input", A["input"], "--output-prefix",
    A["folder"] + "/" + A["name"], "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
    os.path.dirname(A["tokenizer"]), "--append-eod", "--workers", "1"], check=True,
    env=os.environ | {"PYTHONPATH": A["checkout"], "HF_HUB_OFFLINE": "1"})
report(A["folder"] + "/" + A["name"] + "_text_document.bin", started)
"""
    start = run(
        sys.executable, program, arguments | {"checkout": str(checkout), "input": str(one), "name": "one"}, core
    )
    whole = run(
        sys.executable,
        program,
        arguments | {"checkout": str(checkout), "input": arguments["corpus"], "name": "megatron"},
        core,
    )
    if "cpu_s" in start and "cpu_s" in whole:
        whole |= {"start_s": start["cpu_s"], "cpu_s": whole["cpu_s"] - start["cpu_s"]}
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL with a field text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--eod", required=True)
    parser.add_argument("--megatron", type=Path, help="checkout of Megatron-LM")
    parser.add_argument("--gigatoken", help="a Python with gigatoken and awkward")
    parser.add_argument("--datatrove", help="a Python with datatrove and tokenizers")
    parser.add_argument("--share", type=float, default=0.1, help="of the documents, for the slow contenders")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", default="0")
    parser.add_argument("--work", type=Path, help="default: a temporary folder")
    options = parser.parse_args()

    from pamp_pipelines.tokenization.engines import open_tokenizer
    from pamp_pipelines.tokenization.indexed import dtype_for

    engine = open_tokenizer(options.tokenizer)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        # without a post-processor: nobody adds tokens around a document
        tokenizer = Path(folder) / "tokenizer"
        tokenizer.mkdir()
        engine.save(tokenizer)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": options.eod}
        (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
        lines = options.corpus.read_bytes().splitlines(keepends=True)
        (Path(folder) / "text").mkdir()
        small = Path(folder) / "text" / "small.jsonl"
        small.write_bytes(b"".join(lines[: max(1, int(len(lines) * options.share))]))
        del lines
        arguments: dict[str, Any] = {
            "tokenizer": str(tokenizer / "tokenizer.json"),
            "eod": options.eod,
            "eod_id": engine.token_id(options.eod),
            "dtype": dtype_for(engine.vocab_size).__name__,
        }
        for repeat in range(options.repeats):
            for corpus in (options.corpus, small):
                here = Path(folder) / f"{repeat}-{corpus.stem}"
                here.mkdir()
                common = arguments | {"corpus": str(corpus), "folder": str(here)}
                contenders = [("loop", sys.executable, LOOP), ("ours", sys.executable, OURS)]
                if options.gigatoken:
                    contenders.append(("gigatoken", options.gigatoken, GIGATOKEN))
                if options.datatrove and corpus is small:
                    contenders.append(("datatrove", options.datatrove, DATATROVE))
                rows = {name: run(python, program, common, options.core) for name, python, program in contenders}
                if options.megatron and corpus is small:
                    rows["megatron"] = megatron(options.megatron.resolve(), common, options.core)
                for name, row in rows.items():
                    size = corpus.stat().st_size / 1e6
                    speed = {"mb_per_cpu_s": round(size / row["cpu_s"], 2)} if "cpu_s" in row else {}
                    if "pieces_s" in row:
                        speed["pieces_mb_per_cpu_s"] = round(size / row["pieces_s"], 2)
                    same = {"same_bytes": row.get("md5") == rows["loop"].get("md5")}
                    results.append({"contender": name, "mb": round(size, 1), "repeat": repeat, **row, **speed, **same})
                    print(json.dumps(results[-1]), flush=True)
                for path in sorted(here.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()
    print(json.dumps({"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
