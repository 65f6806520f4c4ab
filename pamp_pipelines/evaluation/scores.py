"""The table of scores: one row per task and metric, the same columns everywhere, Parquet on storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamp_pipelines.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SCORES = "scores.parquet"
SAMPLES = "samples.jsonl"
RESULTS = "results.json"

COLUMNS: dict[str, tuple[str, str]] = {
    "model": ("string", "name of the model"),
    "training_config": ("string", "name of the training config; empty for a plain directory"),
    "version": ("int64", "version of the training run"),
    "step": ("int64", "iteration of the checkpoint"),
    "tokens_seen": ("int64", "tokens it was trained on here"),
    "evaluation": ("string", "name of the evaluation"),
    "task": ("string", "lm-eval task or group"),
    "task_version": ("string", "version that the task states"),
    "metric": ("string", "metric, and its filter after a comma unless that is `none`"),
    "value": ("float64", "the score"),
    "stderr": ("float64", "standard error over samples; empty where it has no closed form"),
    "higher_is_better": ("bool", "direction of the metric"),
    "n": ("int64", "samples scored"),
    "n_available": ("int64", "samples that the task has"),
    "num_fewshot": ("int64", "examples before each question"),
    "limit": ("int64", "declared cut of the samples"),
    "prompt_sha256": ("string", "hash over the prompts of all samples, in order: template, examples and rows"),
    "chat_template_sha256": ("string", "hash of the chat template, where one was applied"),
    "task_sha256": ("string", "hash over the task file, its includes and code"),
    "data_sha256": ("string", "hash of the rows or the files that hold them"),
    "split": ("string", "part of the data that was scored"),
    "contamination": ("float64", "part of the samples that share 13 tokens in a row with the training text"),
    "model_content": ("string", "content hash of the scored directory"),
    "checkpoint_content": ("string", "content hash of the checkpoint that the directory was exported from"),
    "prefix_token": ("string", "token before the first token of a document"),
    "prefix_id": ("int64", "its id"),
    "dtype": ("string", "arithmetic of the forward pass"),
    "device": ("string", "device type"),
    "batch_size": ("int64", "requests in a forward pass"),
    "seconds": ("float64", "wall time of the evaluation, without loading the model"),
    "lm_eval": ("string", "version of lm-eval"),
    "code_commit": ("string", "git commit of the pipelines, with + if there were changes"),
}
"""Column -> (Arrow type, description)."""

ADDED = frozenset({"split", "contamination", "checkpoint_content"})
"""Columns that older files lack; they are read as empty."""


def schema() -> pa.Schema:
    """Arrow schema with a description on every column."""
    import pyarrow as pa

    types = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}
    return pa.schema(
        [pa.field(name, types[kind], metadata={"description": text}) for name, (kind, text) in COLUMNS.items()]
    )


def write_scores(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows, each with exactly the columns above (None where empty)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for row in rows:
        if difference := set(row) ^ set(COLUMNS):
            raise ValueError(f"columns {sorted(difference)} are missing or unknown")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema()), path)


def read_scores(path: Path) -> list[dict[str, Any]]:
    """Rows of a scores file.

    Raises:
        InputError: unreadable, or columns are missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: not a readable scores file: {error}; evaluate the checkpoint again.") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if lost := [name for name in missing if name not in ADDED]:
        raise InputError(f"{path}: columns {', '.join(lost)} are missing; evaluate the checkpoint again.")
    rows = table.select([name for name in COLUMNS if name not in missing]).to_pylist()
    return [{name: row.get(name) for name in COLUMNS} for row in rows]
