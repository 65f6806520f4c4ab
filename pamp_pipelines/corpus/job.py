"""What the corpus stage is to do, as plain data."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.corpus.fingerprints import fingerprint
from pamp_pipelines.corpus.readers import ReadingRules
from pamp_pipelines.corpus.sources import SourceFile, expand
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.manifest import artifact_id
from pamp_pipelines.lake.store import Lake

KIND = "raw_corpus"
STAGE_VERSION = 3
"""Bumped when equal sources give other files."""


class CorpusJob(BaseModel):
    """Scan the files of a corpus. The id covers the files' names, order and content and how they are read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: str
    id: str
    output: Path
    files: tuple[SourceFile, ...]
    rules: ReadingRules
    declaration: dict[str, Any]
    language_field: str | None = None
    sample_rows: int = 20


def corpus_id(files: tuple[SourceFile, ...], rules: ReadingRules, language_field: str | None = None) -> str:
    """Identity of a corpus: what is read and how, not where it lies."""
    parameters = {"rules": rules.model_dump(), "files": [[f.name, f.bytes, f.sha256] for f in files]}
    if language_field is not None:
        parameters["language_field"] = language_field
    return artifact_id(KIND, STAGE_VERSION, [], parameters)


def corpus_job(catalog: Catalog, lake: Lake, corpus: str) -> CorpusJob:
    """Resolve a declared corpus. New and changed source files are hashed, others are remembered.

    Raises:
        InputError: the corpus is not declared, or sources are absent or cannot be read.
    """
    declared = catalog.corpus(corpus)
    try:
        locations = expand(declared.sources, catalog.project.root)
        # corpora that one declaration makes have the same sources
        origin = catalog.file_of("corpus", corpus).stem
        files = fingerprint(locations, cache=lake.root / "corpora" / origin / ".sources.json")
    except InputError as error:
        raise InputError(f"{catalog.file_of('corpus', corpus)}: {error}") from error
    rules = ReadingRules(
        format=declared.format,
        text_field=declared.text_field,
        encoding=declared.encoding,
        on_error=declared.on_error,
    )
    id = corpus_id(files, rules, declared.language_field)
    return CorpusJob(
        corpus=corpus,
        id=id,
        output=lake.corpus_dir(corpus, id),
        files=files,
        rules=rules,
        declaration={corpus: declared.model_dump(mode="json")},
        language_field=declared.language_field,
    )
