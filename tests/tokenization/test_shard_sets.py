"""One declaration, several text fields: a corpus and shards for each, with the same rows held out."""

import json
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog, load_catalog, read_catalog
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.tokenization.job import tokenize_job

ROWS = [{"text": f"long text {i}", "meta": {"summary": f"short {i % 20}", "id": i}} for i in range(60)]


@pytest.fixture
def root(tmp_path: Path, tokenizer: Path) -> Path:
    for folder in ("corpora", "models", "training_configs", "evaluations"):
        (tmp_path / "assets" / folder).mkdir(parents=True)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = {"vocab_size": 2048, "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1}
    (tmp_path / "assets/models/m.yaml").write_text(
        json.dumps({"licence": "MIT", "from_scratch": {"config": config, "tokenizer": str(tokenizer)}})
    )
    declare(tmp_path)
    return tmp_path


def declare(root: Path, **changes: Any) -> None:
    content = {"licence": "MIT", "sources": ["rows.jsonl"], "format": "jsonl", "held_out": {"fraction": 0.3}}
    content |= {"shard_sets": {"summary": "meta.summary"}, **changes}
    (root / "assets/corpora/news.yaml").write_text(json.dumps(content))


def shards(root: Path, corpus: str) -> Artifact:
    catalog, lake = load_catalog(Project(root)), Lake(root / "lake")
    scan_corpus(corpus_job(catalog, lake, corpus))
    return tokenize(tokenize_job(catalog, lake, corpus, "m"))


def texts(artifact: Artifact, side: str) -> list[str]:
    engine, reader = open_tokenizer(artifact.path), IndexedReader(artifact.path / side)
    return [engine.decode(reader[i][:-1].tolist()) for i in range(len(reader))]


def test_each_field_is_a_corpus_of_its_own(root: Path) -> None:
    catalog = load_catalog(Project(root))
    assert list(catalog.corpora) == ["news", "news.summary"]
    made = catalog.corpus("news.summary")
    assert (made.text_field, made.shard_sets, made.held_out.by) == ("meta.summary", {}, "text")
    assert catalog.file_of("corpus", "news.summary") == root / "assets/corpora/news.yaml"
    main, summary = shards(root, "news"), shards(root, "news.summary")
    assert main.path.parent.name == "news"
    assert summary.path.parent.name == "news.summary"
    assert summary.manifest.declaration["corpora"]["news.summary"]["text_field"] == "meta.summary"
    assert sorted(texts(main, "train") + texts(main, "heldout")) == sorted(row["text"] for row in ROWS)
    assert not (root / "lake/corpora/news.summary/.sources.json").exists()  # hashed once, remembered for both


def test_the_same_rows_are_held_out(root: Path) -> None:
    main, summary = shards(root, "news"), shards(root, "news.summary")
    rows = {row["text"]: row["meta"]["summary"] for row in ROWS}  # type: ignore[index]
    for side in ("train", "heldout"):
        assert [rows[text] for text in texts(main, side)] == texts(summary, side)


def test_a_copy_on_both_sides_stays_held_out(root: Path) -> None:
    declare(root, filters=[{"deduplicate": "exact"}])
    summary = shards(root, "news.summary")
    train, heldout = texts(summary, "train"), texts(summary, "heldout")
    assert sorted(train + heldout) == sorted(f"short {i}" for i in range(20))
    assert summary.manifest.stats["dropped"] == {"duplicate": 40}
    rows = {row["text"]: row["meta"]["summary"] for row in ROWS}  # type: ignore[index]
    assert set(heldout) == {rows[text] for text in texts(shards(root, "news"), "heldout")}


def test_rows_without_the_field_follow_on_error(root: Path) -> None:
    rows = [*ROWS[:30], {"text": "no summary"}, {"meta": {"summary": "no text"}}, *ROWS[30:]]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"row 31: no field 'meta'"):
        shards(root, "news.summary")
    declare(root, on_error="drop")
    summary = shards(root, "news.summary")
    assert summary.manifest.stats["dropped"] == {"missing_field": 1}
    assert "no text" in texts(summary, "train") + texts(summary, "heldout")


def test_training_configs_blend_them_by_name(root: Path) -> None:
    config = {
        "corpora": {"news": 3, "news.summary": 1},
        **{"sequence_length": 8, "iterations": 1, "global_batch_size": 1, "optimizer": {"lr": 0.1}},
        **{"checkpoint": {"interval": 1}, "validation": {"interval": 1}},
    }
    (root / "resources").mkdir()
    (root / "resources/local.yaml").write_text("{}")
    file = root / "assets/training_configs/c.yaml"
    file.write_text(json.dumps(config))
    assert load_catalog(Project(root)).blend("c") == {"news": 0.75, "news.summary": 0.25}
    file.write_text(json.dumps(config | {"corpora": {"news.sumary": 1}}))
    _, problems = read_catalog(Project(root))
    assert "Did you mean 'news.summary'?" in str(problems[0])


def test_a_name_that_is_taken_is_a_problem(root: Path) -> None:
    (root / "assets/corpora/news.summary.yaml").write_text((root / "assets/corpora/news.yaml").read_text())
    catalog, problems = read_catalog(Project(root))
    assert [p.field for p in problems] == ["shard_sets.summary"]
    assert "makes a corpus 'news.summary', which" in problems[0].message
    assert isinstance(catalog, Catalog)
