# ruff: noqa: E501 - a row of a table is a line
"""The capacity plan of docs/capacity.md, computed: ``python benchmarks/capacity.py [--write]``.

15 T tokens, 1,024 GPUs, models of 70 B and 671 B parameters. Every figure comes from one of docs/measurements.md, or is
counted by the code that a run uses, by a formula that is shown beside it. `tests/test_capacity.py` holds the page to this
script and the measured figures to the page that they are from.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.conversion_plan import CONFIG as DEEPSEEK_V3
from pamp_pipelines.declarations.corpus import PAIR_BYTES
from pamp_pipelines.orchestration.events import OBSERVATION_INTERVAL_S
from pamp_pipelines.training.footprint import saved_per_parameter
from pamp_pipelines.training.shape import flops_per_token, shape_of

PAGE = Path(__file__).parent.parent / "docs/capacity.md"
MEASUREMENTS = PAGE.with_name("measurements.md")

LLAMA_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
MODELS = {"70 B (Llama 3's shape)": LLAMA_70B, "671 B (DeepSeek-V3's shape)": DEEPSEEK_V3}
TOKENS, GPUS, GPUS_A_NODE = 15e12, 1024, 8
CORES = 1024
"""Processor cores that tokenize: a rack or two of machines without GPUs."""


@dataclass(frozen=True)
class Figure:
    """A measured one: its value, and the words of docs/measurements.md that hold it."""

    value: float
    words: str


MEASURED = {
    "text": Figure(115e6, "| this project, the whole stage | 1.28, 0.95, 1.15, 1.04 | 115 |"),
    "index": Figure(0.10 / 10e6, "The index of 10,000,000 documents: 0.08 to 0.10 CPU seconds"),
    "flops": Figure(525e12, "525 model TFLOP/s"),
    "deepseek": Figure(1365.3e9, "1,365.3 GB as a bfloat16 checkpoint"),
    "plan": Figure(2.5, "| plan, CPU time with the start of Python, at a load of 12 | 2.5 s |"),
    "event": Figure(46e6 / 28_000, "(28,000 events, 46 MB of SQLite)"),
}
# Assumed, since they are the corpus' and the user's, and not ours to measure; `main` takes others
BYTES_A_TOKEN, TOKENS_A_DOCUMENT, SEQUENCE, GRACE_S, SAVES_APART_S = 4.0, 1000.0, 8192, 300.0, 3600.0


def page() -> str:
    return "\n".join([*_head(), *_tokens(), *_training(), *_checkpoints(), *_events(), ""])


def _head() -> Iterator[str]:
    yield from (
        "# Capacity on paper",
        "",
        f"{TOKENS / 1e12:.0f} T tokens, {GPUS:,} GPUs, models of 70 B and 671 B parameters. Nothing here was run at this scale: each figure",
        "is one of [measurements.md](measurements.md), or a count by the code that a run uses, times what its formula says.",
        "`python benchmarks/capacity.py --write` makes this page.",
        "",
        f"Assumed, not measured, because they are the corpus' or the site's: {BYTES_A_TOKEN:g} bytes of text a token,",
        f"{TOKENS_A_DOCUMENT:,.0f} tokens a document, sequences of {SEQUENCE:,}, {GPUS_A_NODE} GPUs a node, "
        f"a save each {SAVES_APART_S / 60:.0f} minutes, `grace_s: {GRACE_S:.0f}`.",
        "",
    )


def _tokens() -> Iterator[str]:
    documents = TOKENS / TOKENS_A_DOCUMENT
    text = TOKENS * BYTES_A_TOKEN
    rate = MEASURED["text"].value
    yield from _table(
        "## Corpus and shards",
        ("text", "tokens x bytes a token", _bytes(text)),
        ("tokenizing, CPU", f"text / {rate / 1e6:g} MB per CPU second (whole stage)", _time(text / rate)),
        (f"tokenizing on {CORES:,} cores", "the same / cores; scaling over many workers was not measured", _time(text / rate / CORES)),
        ("`.bin`, vocabulary above 65,536", "4 bytes x tokens", _bytes(4 * TOKENS)),
        ("`.bin`, vocabulary below", "2 bytes x tokens", _bytes(2 * TOKENS)),
        ("`.idx`", "20 bytes (length 4, pointer 8, document 8) x documents", _bytes(20 * documents)),
        ("building the index, CPU", f"documents x {MEASURED['index'].value * 1e9:.0f} ns", _time(documents * MEASURED["index"].value)),
        (f"pairs of files at the default `shard_bytes` of {PAIR_BYTES / 1e9:.0f} GB", "`.bin` / shard_bytes", f"{4 * TOKENS / PAIR_BYTES:,.0f}"),
        ("pairs at `shard_bytes: 400_000_000_000`", "the same", f"{4 * TOKENS / 400e9:,.0f}"),
        ("documents and index of such a pair", "documents / pairs; x 20 bytes", f"{documents / (4 * TOKENS / 400e9):,.0f}; {_bytes(20 * documents / (4 * TOKENS / 400e9))}"),
    )  # fmt: skip
    yield from (
        "Megatron opens every pair when a training starts, and pays for each: raise `shard_bytes` here. A training's blend",
        "names corpora, not pairs.",
        "",
    )


def _training() -> Iterator[str]:
    rows = []
    for name, config in MODELS.items():
        work = flops_per_token(shape_of(config), SEQUENCE)
        speed = MEASURED["flops"].value / work
        rows += [
            (f"{name}: model FLOPs a token", "`training/shape.py`", f"{work / 1e9:,.0f} G"),
            (f"{name}: tokens a second and GPU", f"{MEASURED['flops'].value / 1e12:.0f} TFLOP/s / FLOPs", f"{speed:,.0f}"),
            (f"{name}: 15 T tokens", f"/ {GPUS:,} GPUs", _time(TOKENS / speed / GPUS)),
        ]  # fmt: skip
    yield from _table("## Training", *rows)
    yield from (
        "A lower bound of the time: the speed is that of 1.2 B parameters on one H200 without communication. A mixture of",
        "experts reaches less of it than a dense model. `pamp plan` searches layouts and forecasts memory.",
        "",
    )


def _checkpoints() -> Iterator[str]:
    bytes_each = saved_per_parameter("bf16", distributed_optimizer=True)
    rows = []
    for name, config in MODELS.items():
        parameters = shape_of(config).parameters
        saved = parameters * bytes_each
        runs = TOKENS / (MEASURED["flops"].value / flops_per_token(shape_of(config), SEQUENCE)) / GPUS
        saves = runs / SAVES_APART_S
        rows += [
            (f"{name}: parameters", "`conversion/layout.py`", f"{parameters / 1e9:,.1f} G"),
            (f"{name}: a resume point", f"{bytes_each} bytes (bf16 weight, float32 master and two moments) x parameters", _bytes(saved)),
            (f"{name}: written by each GPU", f"/ {GPUS:,}", _bytes(saved / GPUS)),
            (f"{name}: bandwidth for a save within `grace_s`", f"/ {GRACE_S:.0f} s", f"{_bytes(saved / GRACE_S)}/s, {_bytes(saved / GRACE_S / (GPUS / GPUS_A_NODE))}/s a node"),
            (f"{name}: share of time that synchronous saves take at that bandwidth", f"{GRACE_S:.0f} s / {SAVES_APART_S:.0f} s", f"{GRACE_S / SAVES_APART_S:.1%}"),
            (f"{name}: on disk with `keep_last: 2`", "3 x (one is being written)", _bytes(3 * saved)),
            (f"{name}: saves of the run", "time / interval", f"{saves:,.0f}"),
            (f"{name}: exported weights, bf16", "2 bytes x parameters", _bytes(2 * parameters)),
        ]  # fmt: skip
    yield from _table("## Checkpoints", *rows)
    parameters = shape_of(DEEPSEEK_V3).parameters
    off = MEASURED["deepseek"].value / (2 * parameters) - 1
    yield from (
        f"Planning the import of the 671 B model from its real headers took {MEASURED['plan'].value:g} CPU seconds and found "
        f"{_bytes(MEASURED['deepseek'].value)} as a",
        f"bf16 checkpoint, {off:+.1%} of the last row. Set `grace_s` and `checkpoint.minutes` by the file system's measured",
        "bandwidth, not the other way round; `checkpoint.asynchronous` takes the writing out of the training's time.",
        "",
    )


def _events() -> Iterator[str]:
    rows = []
    for name, config in MODELS.items():
        seconds = TOKENS / (MEASURED["flops"].value / flops_per_token(shape_of(config), SEQUENCE)) / GPUS
        events = 2 * seconds / OBSERVATION_INTERVAL_S
        rows += [
            (f"{name}: events of the run", f"2 (a line, an observation) each {OBSERVATION_INTERVAL_S:.0f} s", f"{events:,.0f}"),
            (f"{name}: in the event log", f"x {MEASURED['event'].value:,.0f} bytes an event", _bytes(events * MEASURED["event"].value)),
        ]  # fmt: skip
    kept = 100
    scored = kept * (2 + 1 + 10)
    yield from _table(
        "## Dagster's events",
        *rows,
        (
            f"{kept} kept checkpoints, exported and scored by 10 evaluations",
            "2 + 1 + 10 each",
            f"{scored:,} events, {_bytes(scored * MEASURED['event'].value)}",
        ),
    )
    yield (
        "Events grow with hours, not with steps: every step is in `metrics.jsonl` and TensorBoard. What the UI's queries take "
        "with\n10,000 checkpoints is in [measurements.md](measurements.md)."
    )


def _table(title: str, *rows: tuple[str, str, str]) -> Iterator[str]:
    yield from (title, "", "| what | from | figure |", "|---|---|---|")
    yield from (f"| {what} | {how} | {figure} |" for what, how, figure in rows)
    yield ""


def _bytes(value: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def _time(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/capacity.md instead of printing it")
    if parser.parse_args().write:
        PAGE.write_text(page())
    else:
        print(page())


if __name__ == "__main__":
    main()
