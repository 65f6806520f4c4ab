"""What each sample contributed to each metric, kept small so that two checkpoints can be compared sample by sample.

``values.parquet`` beside the scores: ``task``, ``metric`` (as in the score table), ``sample`` (lm-eval's hash of the
row), ``value`` and, for a ratio of sums such as a perplexity, ``weight``: there ``value`` is the log-likelihood in nats
and the weight counts words, bytes or tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamp_pipelines.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

VALUES = "values.parquet"
_COLUMNS = ("task", "metric", "sample", "value", "weight")


@dataclass(frozen=True)
class Values:
    """Contributions of the samples of one task to one metric.

    Attributes:
        samples: hash of each row, in the order of the task.
        values: shape [samples], float64.
        weights: the same shape, for a ratio of sums; None for a mean.
    """

    samples: tuple[str, ...]
    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64] | None


def contributions(samples: Iterable[Mapping[str, Any]], metrics: Mapping[str, Iterable[str]]) -> list[dict[str, Any]]:
    """Rows of the file.

    Args:
        samples: lm-eval's, each with ``task``, ``filter``, ``doc_hash`` and its metrics.
        metrics: task -> metrics of the score table, with their filters.
    """
    rows = []
    for sample in samples:
        for name in metrics.get(sample["task"], ()):
            metric, _, filter = name.partition(",")
            found = sample.get(metric)
            if sample["filter"] != (filter or "none") or found is None:
                continue
            pair = found if isinstance(found, list | tuple) else (found, None)
            if len(pair) != 2 or not all(part is None or isinstance(part, int | float) for part in pair):
                continue  # e.g. whole texts, for a metric over the corpus
            value, weight = pair
            row = (sample["task"], name, sample["doc_hash"], float(value), None if weight is None else float(weight))
            rows.append(dict(zip(_COLUMNS, row, strict=True)))
    return rows


def write_values(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write what ``contributions`` gave."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, number = pa.dictionary(pa.int32(), pa.string()), pa.float64()
    types = {"task": text, "metric": text, "sample": pa.string(), "value": number, "weight": number}
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(types.items()))), path)


def read_values(path: Path) -> dict[tuple[str, str], Values]:
    """Contributions by (task, metric); empty where the scores were taken before they were kept.

    Raises:
        InputError: unreadable.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return {}
    try:
        table = pq.read_table(path, columns=list(_COLUMNS))
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: not a readable file of values: {error}; evaluate the checkpoint again.") from error
    found: dict[tuple[str, str], list[int]] = {}
    names = zip(table["task"].to_pylist(), table["metric"].to_pylist(), strict=True)
    for place, name in enumerate(names):
        found.setdefault(name, []).append(place)
    samples = np.asarray(table["sample"].to_pylist(), dtype=object)
    values = np.asarray(table["value"].to_numpy(), dtype=np.float64)
    weights = np.asarray(table["weight"].to_pandas(), dtype=np.float64)
    return {
        name: Values(
            tuple(samples[places]), values[places], None if np.isnan(weights[places]).all() else weights[places]
        )
        for name, places in found.items()
    }
