import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.corpus import Corpus, HeldOut
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.errors import InputError, MissingInput
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job, tokenize_job


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def catalog(tmp_path: Path, tokenizer: Path, sentencepiece_model: Path) -> Catalog:
    """A corpus; models that share a tokenizer in two forms, one with SentencePiece, and unusable ones."""
    (tmp_path / "text").mkdir()
    rows = "".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(50))
    (tmp_path / "text/a.jsonl").write_text(rows + '{"text": ""}\n')
    hf = tmp_path / "hf"
    shutil.copytree(tokenizer, hf)
    (hf / "tokenizer.json").write_text(json.dumps(json.loads((hf / "tokenizer.json").read_text())))
    (hf / "config.json").write_text('{"vocab_size": 2176}')

    def scratch(path: Path, vocab_size: int, **more: Any) -> Model:
        return Model.model_validate(
            {"from_scratch": {"config": {"vocab_size": vocab_size}, "tokenizer": str(path)}, **more}
        )

    return Catalog(
        Project(tmp_path),
        corpora={
            "tiny": Corpus(licence="CC0-1.0", sources=("text/*",), format="jsonl", held_out=HeldOut(fraction=0.1))
        },
        models={
            "first": scratch(tokenizer, 2048),
            "second": Model.model_validate({"hf": {"path": "hf"}}),
            "pieces": scratch(sentencepiece_model, 500),
            "small": scratch(tokenizer, 2047),
            "other-eod": scratch(tokenizer, 2048, eod="<|pad|>"),
            "no-size": Model.model_validate({"from_scratch": {"config": {"x": 1}, "tokenizer": str(tokenizer)}}),
            "no-tokenizer": scratch(tmp_path / "gone", 2048),
        },
    )


def test_raw_corpus_comes_first(catalog: Catalog, lake: Lake) -> None:
    with pytest.raises(MissingInput, match=r"raw_corpus partition 'tiny' is not materialised; run `pamp materialize"):
        tokenize_job(catalog, lake, "tiny", "first")


def test_lineage_and_counts(catalog: Catalog, lake: Lake) -> None:
    raw = scan_corpus(corpus_job(catalog, lake, "tiny"))
    artifact = tokenize(tokenize_job(catalog, lake, "tiny", "first"))
    assert artifact.manifest.inputs == (raw.ref,)
    assert artifact.path == lake.shards_dir("tiny", artifact.id)
    assert artifact.manifest.stats["documents_read"] == 51
    assert artifact.manifest.stats["dropped"] == {"empty": 1}
    assert not artifact.manifest.failed_checks
    assert artifact.manifest.declaration["corpora"]["tiny"]["licence"] == "CC0-1.0"
    assert str(lake.root.parent) not in artifact.manifest.model_dump_json(exclude={"location"})


def test_models_with_one_tokenizer_share_shards(catalog: Catalog, lake: Lake) -> None:
    scan_corpus(corpus_job(catalog, lake, "tiny"))
    ids = {m: tokenize_job(catalog, lake, "tiny", m).id for m in ("first", "second", "pieces", "other-eod")}
    assert ids["first"] == ids["second"]
    assert len(set(ids.values())) == 3
    first = tokenize(tokenize_job(catalog, lake, "tiny", "first"))
    assert tokenize(tokenize_job(catalog, lake, "tiny", "second"), lambda _: pytest.fail("tokenized twice")) == first


def test_a_changed_source_asks_for_raw_corpus(catalog: Catalog, lake: Lake, tmp_path: Path) -> None:
    scan_corpus(corpus_job(catalog, lake, "tiny"))
    with (tmp_path / "text/a.jsonl").open("a") as stream:
        stream.write('{"text": "more"}\n')
    with pytest.raises(MissingInput, match="sources or how they are read changed"):
        tokenize_job(catalog, lake, "tiny", "first")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("small", r"assets/models/small\.yaml: .*highest token id is 2047, but model 'small' has vocab_size 2047"),
        ("no-size", r"no-size\.yaml: .*no whole number `vocab_size`"),
        ("no-tokenizer", r"no-tokenizer\.yaml: .*gone: no such tokenizer"),
        ("frist", r"no model 'frist' is declared"),
    ],
)
def test_a_tokenizer_that_does_not_fit(catalog: Catalog, lake: Lake, model: str, message: str) -> None:
    scan_corpus(corpus_job(catalog, lake, "tiny"))
    with pytest.raises(InputError, match=message):
        tokenize_job(catalog, lake, "tiny", model)


def test_the_job_is_plain_data(catalog: Catalog, lake: Lake) -> None:
    scan_corpus(corpus_job(catalog, lake, "tiny"))
    job = tokenize_job(catalog, lake, "tiny", "first")
    assert TokenizeJob.model_validate_json(job.model_dump_json()) == job


def test_identity_follows_what_decides_the_shards(make_job: Callable[..., TokenizeJob]) -> None:
    base = make_job(["a", "b"]).id
    assert make_job(["a", "b"], out="elsewhere").id != base  # plain files are known by their names, too
    assert make_job(["a", "b"], seed=7).id == base  # nothing is held out, so the seed decides nothing
    assert make_job(["a", "c"]).id != base
    assert make_job(["a", "b"], fraction=0.5).id != base
    assert make_job(["a", "b"], fraction=0.5).id != make_job(["a", "b"], fraction=0.5, seed=1).id
    assert make_job(["a", "b"], eod="<|pad|>").id != base


def test_plain_paths(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"body": "two"}\n')
    monkeypatch.chdir(tmp_path)
    assert tokenize(plain_tokenize_job(["a.txt"], tokenizer, Path("out"))).path == tmp_path / "out"
    job = plain_tokenize_job(["b.jsonl"], tokenizer, Path("out"), text_field="body")
    assert tokenize(job).manifest.stats["documents_written"] == 1
    with pytest.raises(InputError, match="several formats: jsonl, text"):
        plain_tokenize_job(["a.txt", "b.jsonl"], tokenizer, Path("new"))
    with pytest.raises(InputError, match=r"absent\.txt"):
        plain_tokenize_job(["absent.txt"], tokenizer, Path("new"))


def test_an_output_that_holds_something_else_is_left_alone(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    for name in ("a.txt", "."):
        with pytest.raises(InputError, match="exists and is no tokenized_shards; choose another output"):
            plain_tokenize_job([str(tmp_path / "a.txt")], tokenizer, tmp_path / name)
    (tmp_path / "empty").mkdir()
    plain_tokenize_job([str(tmp_path / "a.txt")], tokenizer, tmp_path / "empty")


def test_making_a_job_imports_nothing_heavy() -> None:
    code = (
        "import sys, pamp_pipelines.tokenization.build, pamp_pipelines.tokenization.job, pamp_pipelines.corpus.scan\n"
        "heavy = 'torch transformers megatron lm_eval datasets pandas matplotlib dagster tokenizers pyarrow'.split()\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
