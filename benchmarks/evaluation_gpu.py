"""Evaluation on one GPU: greedy MATH by batch size and as the pipeline chooses, and what it adds to lm-eval.

    python benchmarks/evaluation_gpu.py OUTPUT.json MODEL_DIR [--device cuda] [--tokens 128] [--batches 1 2 4 …]

MODEL_DIR holds config.json and tokenizer files of a Hugging Face model. Without weights beside them a model of that
shape with random weights is made and the output says so: speed is the same, since every answer gets exactly `--tokens`
tokens (its end is not allowed earlier, and no stop text occurs). Prompts are MATH-500's, four examples each.

`sweep`: generated tokens per second of one worker with one loaded model, between the first request and the last, for
each batch size (twice as many rows, four at least), and for `auto` on as many rows as the largest batch has.
`overhead`: import to Megatron, export, published perplexity of documents of Hamlet, beside `lm-eval run` on the same.
`python -m pamp_pipelines.demo.prepare --benchmarks` makes the MATH rows; `--device cpu --tokens 4 --batches 1 2
--bytes 3000` tries it anywhere.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from evaluation import BATCH, LENGTH, TASK, Timer, hamlet_rows, lm_eval_command_line

ROOT = Path(__file__).parent.parent
MATH, ROWS = "minerva_math_rows", ROOT / "data/benchmarks/math/math500.jsonl"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def with_weights(source: Path, directory: Path) -> str:
    """Put a model into ``directory``; says where its weights are from."""
    shutil.copytree(source, directory)
    (directory / "manifest.json").unlink(missing_ok=True)
    if any(source.glob("*.safetensors")):
        return f"{source.name}, its own"
    import torch
    from safetensors.torch import save_file

    from pamp_pipelines.conversion.layout import layout_of

    torch.manual_seed(0)
    config = json.loads((source / "config.json").read_text())
    tensors = {
        name: (torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.02).bfloat16()
        for name, shape in layout_of(config).hf_shapes().items()
    }
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return f"random, in the shape of {source.name}"


def sweep(model: Path, folder: Path, batches: list[int], tokens: int, device: str) -> dict[str, Any]:
    """Tokens per second by batch size, and those of ``auto``."""
    from pamp_pipelines.declarations.evaluation import Evaluation
    from pamp_pipelines.evaluation.plain import plain_job
    from pamp_pipelines.evaluation.run import evaluate
    from pamp_pipelines.evaluation.scores import SCORES, read_scores
    from pamp_pipelines.lake.events import Event

    def suite(name: str, batch: int | str, rows: int, new: int) -> Evaluation:
        # A stop text of its own, so that no evaluation finds the answers of the one before.
        generation = {"max_gen_toks": new, "min_new_tokens": new, "until": [f"<|never {name}|>"]}
        data = {MATH: str(ROWS)}
        return Evaluation(tasks=(MATH,), data=data, limit=rows, batch_size=batch, generation=generation)

    # Names in the order in which the worker runs them: it sorts.
    suites = {"a-warm-up": suite("a-warm-up", max(batches), max(batches), min(8, tokens))}
    for batch in batches:
        suites[f"b{batch:04}"] = suite(f"b{batch:04}", batch, max(4, 2 * batch), tokens)
    suites["c-auto"] = suite("c-auto", "auto", max(4, 2 * max(batches)), tokens)
    events: list[Event] = []
    job = plain_job(model, list(suites), folder / "scores", declared=suites, root=ROOT, device=device)
    artifacts = evaluate(job, events.append)
    found: dict[str, Any] = {}
    for name, artifact in zip(suites, artifacts, strict=True):
        times = [e.time for e in events if e.data.get("evaluation") == name and "requests" in e.data]
        rows, new = suites[name].limit or 0, int(suites[name].generation["max_gen_toks"])
        seconds = max(times) - min(times)
        found[name] = {
            "batch": read_scores(artifact.path / SCORES)[0]["batch_size"],
            "rows": rows,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(rows * new / seconds, 1),
            "seconds_of_the_evaluation": artifact.manifest.stats["seconds"],
        }
    best = max(found[name]["tokens_per_second"] for name in suites if name != "a-warm-up")
    return {
        "new_tokens_per_row": tokens,
        **found,
        "auto_over_the_best": round(found["c-auto"]["tokens_per_second"] / best, 3),
    }


def overhead(model: Path, folder: Path, size: int, device: str) -> dict[str, Any]:
    """Seconds of export and of scores, and of lm-eval's command line on the same directory and rows."""
    from pamp_pipelines.conversion.exporter import export_hf
    from pamp_pipelines.conversion.importer import import_hf
    from pamp_pipelines.conversion.job import plain_export_job, plain_import_job
    from pamp_pipelines.declarations.evaluation import Evaluation
    from pamp_pipelines.evaluation.plain import plain_job
    from pamp_pipelines.evaluation.run import evaluate

    folder.mkdir()
    rows = hamlet_rows(folder / "rows.jsonl", size)
    text = Evaluation(tasks=(TASK,), data={TASK: str(rows)}, batch_size=BATCH, max_length=LENGTH, dtype="float32")
    imported = import_hf(plain_import_job(model, folder / "megatron"))
    with Timer() as exporting:
        export = export_hf(plain_export_job(imported.path, folder / "export"))
    with Timer() as ours:
        job = plain_job(export.path, ["text"], folder / "scores", declared={"text": text}, device=device)
        [scores] = evaluate(job)
    prefix = scores.manifest.stats["token_policy"]["prefix_id"]
    with Timer() as theirs:
        expected = lm_eval_command_line(export.path, rows, prefix, folder / "lm_eval", device)
    samples = [json.loads(line) for line in (scores.path / "samples.jsonl").open()]
    found = [float(sample["resps"][0][0]) for sample in samples]
    wanted = [float(sample[0][0]) for sample in expected]
    inside = scores.manifest.stats["seconds"]
    return {
        "bytes": sum(len(sample["target"].encode()) for sample in samples),
        "samples": len(found),
        "samples_with_the_same_log_likelihood_bit_for_bit": sum(a == b for a, b in zip(found, wanted, strict=True)),
        "largest_relative_difference": float(np.max(np.abs(np.array(found) / np.array(wanted) - 1))),
        "export": exporting.seconds,
        "scores_from_export_to_published": ours.seconds,
        "of_that_lm_eval_inside_the_worker": inside,
        "lm_evals_command_line": theirs.seconds,
        "overhead_over_lm_eval_inside_the_worker": round(exporting.seconds["wall"] + ours.seconds["wall"] - inside, 2),
        "overhead_over_the_command_line": round(
            exporting.seconds["wall"] + ours.seconds["wall"] - theirs.seconds["wall"], 2
        ),
    }


def main() -> None:
    import torch

    from pamp_pipelines.lake.producer import library_versions

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each answer")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--bytes", type=int, default=40_000, help="text whose perplexity is taken")
    asked = parser.parse_args()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0) if asked.device != "cpu" else "cpu",
        "libraries": library_versions(),
    }
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / asked.model.name
        report["weights"] = with_weights(asked.model, model)
        for part, measure in (
            ("sweep", lambda: sweep(model, Path(name), asked.batches, asked.tokens, asked.device)),
            ("overhead", lambda: overhead(model, Path(name) / "overhead", asked.bytes, asked.device)),
        ):
            report[part] = measure()
            print(part, json.dumps(report[part], indent=1), flush=True)
            asked.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
