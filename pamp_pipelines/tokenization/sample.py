"""A sample of the documents, encoded again by the reference: the proof that a fast encoder was exact on this corpus."""

import numpy as np
import orjson

from pamp_pipelines.tokenization.engines import Engine
from pamp_pipelines.tokenization.indexed import dtype_for
from pamp_pipelines.tokenization.pieces import Plan, Staging

_TEXTS = 2000
"""At most some 4 MB of text: two seconds of the reference."""


def compare_sample(plan: Plan, staging: Staging, reference: Engine) -> tuple[int, str | None]:
    """How many documents were compared, and the text of the first whose stored ids are not the reference's.

    Each piece names its first short document of each batch; of these, evenly many are taken from all pieces.
    """
    tasks = range(0, len(plan.tasks), max(1, len(plan.tasks) // _TEXTS))
    per_piece = max(1, _TEXTS // len(tasks))
    compared = 0
    for task in tasks:
        rows = [orjson.loads(line) for line in staging.file(task, "sample.jsonl").read_bytes().splitlines()]
        for row in rows[:: max(1, len(rows) // per_piece)]:
            (ids, _) = reference.encode([row["text"]])
            if not np.array_equal(
                _stored(plan, staging, task, row["side"], row["index"]), [*ids, plan.job.tokenizer.eod_id]
            ):
                return compared, row["text"]
            compared += 1
    return compared, None


def _stored(plan: Plan, staging: Staging, task: int, side: str, index: int) -> np.ndarray:
    dtype = np.dtype(dtype_for(plan.job.tokenizer.vocab_size))
    lengths = np.fromfile(staging.file(task, f"{side}.lengths"), "<i4", index + 1)
    start = int(lengths[:-1].sum(dtype=np.int64)) * dtype.itemsize
    return np.fromfile(staging.file(task, f"{side}.bin"), dtype.newbyteorder("<"), int(lengths[-1]), offset=start)
