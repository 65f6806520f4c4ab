"""Whatever the reader, the filters and the layout: the same shards, and every row accounted for."""

import bz2
import gzip
import io
import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamp_pipelines.declarations.corpus import Filter, HeldOut
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.tokenization import pieces
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.heldout import held_out_rule
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.tokenization.inspect import prefixes
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job

ROW = st.one_of(st.text(st.characters(codec="utf-8"), max_size=12), st.sampled_from(["copy", "ﬁ x", None, "long " * 9]))
FILTERS = st.lists(
    st.sampled_from(
        [{"normalize": "NFKC"}, {"min_characters": 3}, {"max_characters": 40}, {"drop_matching": "[xyz]"}]
    ).map(Filter.model_validate),
    max_size=3,
)


def jsonl(rows: list[str | None]) -> bytes:
    return b"".join(json.dumps({"text": row} if row is not None else {}).encode() + b"\n" for row in rows)


def parquet(rows: list[str | None]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(rows, pa.string())}), sink, row_group_size=5)
    return sink.getvalue()


READERS: dict[str, Callable[[list[str | None]], bytes]] = {
    "jsonl": jsonl,
    "jsonl.gz": lambda rows: gzip.compress(jsonl(rows)),
    "jsonl.bz2": lambda rows: bz2.compress(jsonl(rows)),
    "parquet": parquet,
}


def expected(
    rows: list[str | None], filters: list[Filter], once: bool, fraction: float
) -> tuple[list[str], list[str], Counter[str]]:
    """By definition: training and held-out documents in order, and drops by reason."""
    dropped: Counter[str] = Counter()
    kept: list[str] = []
    for row in rows:
        text = row
        reason = "missing_field" if text is None else "empty" if not text else ""
        for step in filters:
            if reason or text is None:
                break
            if step.normalize:
                text = unicodedata.normalize(step.normalize, text)
            elif step.min_characters and len(text) < step.min_characters:
                reason = "too_short"
            elif step.max_characters and len(text) > step.max_characters:
                reason = "too_long"
            elif step.drop_matching and any(c in text for c in "xyz"):
                reason = "matches_pattern"
        if not reason and once and text in kept:
            reason = "duplicate"
        if reason:
            dropped[reason] += 1
        else:
            assert text is not None
            kept.append(text)
    held_out = held_out_rule(fraction, 0)
    return [t for t in kept if not held_out(t)], [t for t in kept if held_out(t)], dropped


def check(artifact: Artifact, side: str, texts: list[str]) -> None:
    stats = artifact.manifest.stats
    engine = open_tokenizer(artifact.path)
    found: list[str] = []
    tokens = 0
    for name in prefixes(stats, side):
        reader = IndexedReader(artifact.path / name)
        ids = [reader[i] for i in range(len(reader))]
        assert all(of[-1] == stats["eod_id"] and stats["eod_id"] not in of[:-1] for of in ids)
        assert reader.document_indices.tolist() == list(range(len(reader) + 1))
        assert int(reader.lengths.sum()) == len(reader.tokens)
        assert np.array_equal(np.concatenate([*ids, np.empty(0, np.uint16)]), reader.tokens)
        found += [engine.decode(of[:-1].tolist()) for of in ids]
        tokens += len(reader.tokens)
    assert found == texts
    assert stats[side]["documents"] == len(texts)
    assert stats[side]["tokens"] == tokens


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROW, max_size=25),
    suffix=st.sampled_from(list(READERS)),
    files=st.integers(1, 3),
    filters=FILTERS,
    once=st.booleans(),
    fraction=st.sampled_from([0.0, 0.4]),
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 100), st.integers(20, 200)),
    stop_after=st.integers(0, 3),
)
def test_layouts(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Path,
    rows: list[str | None],
    suffix: str,
    files: int,
    filters: list[Filter],
    once: bool,
    fraction: float,
    sizes: tuple[int, int, int],
    stop_after: int,
) -> None:
    # one that is held out and one that is not, so that neither side is empty
    rows = ["document 5 of it", *rows, "document 3 of it"]
    folder = tmp_path_factory.mktemp("layout")
    (folder / "in").mkdir()
    share = -(-len(rows) // files)
    for number in range(files):
        (folder / "in" / f"{number}.{suffix}").write_bytes(READERS[suffix](rows[number * share : (number + 1) * share]))
    declared = [*filters, Filter(deduplicate="exact")] if once else filters
    more: dict[str, Any] = {"held_out": HeldOut(fraction=fraction), "on_error": "drop", "filters": declared}
    train, heldout, dropped = expected(rows, filters, once, fraction)
    if not train or (fraction and not heldout):
        return
    job = plain_tokenize_job([str(folder / "in")], tokenizer, folder / "one", workers=1, **more)
    whole = tokenize(job)
    assert whole.manifest.stats["dropped"] == dict(sorted(dropped.items()))
    assert whole.manifest.stats["documents_read"] == len(rows)
    assert not whole.manifest.failed_checks
    task_bytes, batch_bytes, pair_bytes = sizes
    cut = job.model_copy(update={"task_bytes": task_bytes, "batch_bytes": batch_bytes})
    again = tokenize_after_an_interruption(cut.model_copy(update={"output": folder / "cut"}), stop_after)
    assert again.content == whole.content
    pairs = tokenize(cut.model_copy(update={"output": folder / "pairs", "pair_bytes": pair_bytes}))
    assert pairs.manifest.stats["dropped"] == whole.manifest.stats["dropped"]
    for artifact in (whole, pairs):
        check(artifact, "train", train)
        if fraction:
            check(artifact, "heldout", heldout)


def tokenize_after_an_interruption(job: TokenizeJob, after: int) -> Artifact:
    """A build that is interrupted after some pieces, then a second one."""
    make = pieces.PieceMaker.make
    made: list[int] = []

    def interrupted(self: pieces.PieceMaker, task: int, on_batch: Any) -> Any:
        if len(made) == after:
            raise KeyboardInterrupt
        made.append(task)
        return make(self, task, on_batch)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces.PieceMaker, "make", interrupted)
        try:
            return tokenize(job)
        except KeyboardInterrupt:
            pass
    return tokenize(job)
