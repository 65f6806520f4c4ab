import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pamp_pipelines.declarations.corpus import Corpus, Filter
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.filters import Filters
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job


def steps(*declared: dict[str, Any]) -> Filters:
    return Filters([Filter.model_validate(step) for step in declared])


def test_each_drop_has_its_reason() -> None:
    filters = steps(
        {"normalize": "NFKC"}, {"min_characters": 3}, {"max_characters": 8}, {"drop_matching": "(?i)lorem|^x"}
    )
    dropped: Counter[str] = Counter()
    assert filters.apply(["ﬁn", "ab", "a" * 9, "a LOREM", "xyz", "keep"], [], dropped) == (["fin", "keep"], [])
    assert dropped == {"too_short": 1, "too_long": 1, "matches_pattern": 2}


def test_order_counts() -> None:
    dropped: Counter[str] = Counter()
    assert steps({"min_characters": 3}, {"normalize": "NFKC"}).apply(["ﬁn"], [], dropped) == ([], [])
    assert dropped == {"too_short": 1}


def test_nothing_declared_touches_nothing() -> None:
    texts = ["a"]
    assert steps().apply(texts, [], Counter())[0] is texts


def test_fields_stay_with_their_documents() -> None:
    filters = Filters([Filter.model_validate({"min_characters": 2})], also=["by"])
    assert filters.fields == ("by",)
    assert filters.apply(["ab", "c", "de"], [[1], [2], [3]], Counter()) == (["ab", "de"], [[1], [3]])


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_language_by_the_sources_own_field(tmp_path: Path, tokenizer: Path, format: str) -> None:
    rows = [{"text": f"text {i}", "meta": {"lang": lang}} for i, lang in enumerate(["en", "zh", None, "de", "en"])]
    source = tmp_path / f"rows.{format}"
    if format == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "text 5"}]))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([*rows, {"text": "text 5", "meta": None}]), source)
    keep = [Filter.model_validate({"language": {"field": "meta.lang", "keep": ["en", "de"]}})]
    artifact = tokenize(plain_tokenize_job([str(source)], tokenizer, tmp_path / "out", filters=keep))
    engine, reader = open_tokenizer(artifact.path), IndexedReader(artifact.path / "train")
    assert [engine.decode(reader[i][:-1].tolist()) for i in range(len(reader))] == ["text 0", "text 3", "text 4"]
    assert artifact.manifest.stats["dropped"] == {"other_language": 3}
    assert not artifact.manifest.failed_checks


def test_filters_are_part_of_the_identity(make_job: Callable[..., TokenizeJob]) -> None:
    ids = [make_job(["a"], filters=[Filter(min_characters=n)] if n else []).id for n in (0, 1, 2)]
    assert len(set(ids)) == 3


CORPUS = {"licence": "x", "sources": ["a.jsonl"], "format": "jsonl"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filters": [{"min_characters": 1, "max_characters": 2}]}, "exactly one of"),
        ({"filters": [{}]}, "exactly one of"),
        ({"filters": [{"drop_matching": "("}]}, "not a regular expression"),
        ({"filters": [{"deduplicate": "exact"}, {"min_characters": 1}]}, "must be the last"),
        ({"format": "text", "filters": [{"language": {"field": "l", "keep": ["en"]}}]}, "has no fields"),
        ({"format": "text", "shard_sets": {"a": "b"}}, "has no fields"),
        ({"format": "text", "held_out": {"by": "id"}}, "has no fields"),
        ({"shard_sets": {"A/b": "b"}}, "shard_sets"),
        ({"encoding": "latin-1"}, "encoding"),
    ],
)
def test_declarations_that_cannot_be_meant_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Corpus.model_validate(CORPUS | changes)
