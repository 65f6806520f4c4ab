"""What changes an outcome changes the hash; what does not, does not. Training configs: test_training_identity.py."""

import pytest

from pamp_pipelines.declarations.corpus import Corpus
from pamp_pipelines.declarations.data_version import declaration_hash
from pamp_pipelines.declarations.model import Model

CORPUS = {"licence": "CC0-1.0", "sources": ["a.jsonl"], "format": "jsonl"}
MODEL = {"hf": {"path": "data/hf"}}


@pytest.mark.parametrize(
    "change",
    [{"description": "x"}, {"owners": ["team:nlp"]}, {"text_field": "text"}, {"shard_sets": {"summary": "meta.s"}}],
)
def test_same_corpus_same_hash(change: dict) -> None:
    assert declaration_hash(Corpus.model_validate(CORPUS | change)) == declaration_hash(Corpus.model_validate(CORPUS))


@pytest.mark.parametrize(
    "change", [{"sources": ["b.jsonl"]}, {"licence": "MIT"}, {"held_out": {"seed": 1}}, {"shard_bytes": 1e9}]
)
def test_other_corpus_other_hash(change: dict) -> None:
    assert declaration_hash(Corpus.model_validate(CORPUS | change)) != declaration_hash(Corpus.model_validate(CORPUS))


def test_words_about_a_model_are_not_hashed() -> None:
    base = declaration_hash(Model.model_validate(MODEL))
    assert declaration_hash(Model.model_validate(MODEL | {"description": "x", "owners": ["team:nlp"]})) == base
    assert declaration_hash(Model.model_validate(MODEL | {"eod": "</s>"})) != base
