"""What the tokenization stage is to do, as plain data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt

from pamp_pipelines.corpus.fingerprints import fingerprint
from pamp_pipelines.corpus.job import KIND as RAW_CORPUS
from pamp_pipelines.corpus.job import CorpusJob, corpus_id, corpus_job
from pamp_pipelines.corpus.readers import ReadingRules, format_of
from pamp_pipelines.corpus.sources import SourceFile, expand
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.corpus import PAIR_BYTES, CorpusFormat, Encoding, Filter, HeldOut
from pamp_pipelines.declarations.hf_config import hf_directory, read_hf_config
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.errors import InputError, MissingInput
from pamp_pipelines.lake.artifact import Artifact, find
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.manifest import ArtifactRef, artifact_id
from pamp_pipelines.lake.occupied import require_own_folder
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.datatrove_blocks import datatrove_version
from pamp_pipelines.tokenization.overlap import Benchmark, declared_benchmarks
from pamp_pipelines.tokenization.tokenizer_spec import TokenizerSpec, describe_tokenizer, require_fit

KIND = "tokenized_shards"
STAGE_VERSION = 2
"""Bumped when equal documents give other shards."""


class TokenizeJob(BaseModel):
    """Encode a corpus. The id covers corpus, tokenizer, EOD and held-out rule, but no model: models share shards.

    Attributes:
        corpus: name, for messages.
        files: sources with the content that they must still have.
        inputs: the raw_corpus, or nothing for plain files.
        expected_documents: rows that raw_corpus counted, dropped ones included; None for plain files.
        filters: steps between reading and encoding.
        pair_bytes: size of a ``.bin`` after which the next one begins.
        benchmarks: rows whose overlap with the shards is counted; no part of the id, as it changes no shard.
        workers: processes; None: one for each core that this process may use.
        task_bytes: text of a piece, which is made at once by one worker and made again when that is killed.
        batch_bytes: text that is encoded at once; bounds memory and the time to react to a cancel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: str
    id: str
    output: Path
    files: tuple[SourceFile, ...]
    rules: ReadingRules
    held_out: HeldOut
    tokenizer: TokenizerSpec
    inputs: tuple[ArtifactRef, ...] = ()
    declaration: dict[str, Any] = {}
    expected_documents: int | None = None
    filters: tuple[Filter, ...] = ()
    pair_bytes: PositiveInt = PAIR_BYTES
    benchmarks: tuple[Benchmark, ...] = ()
    workers: PositiveInt | None = None
    task_bytes: PositiveInt = 64 << 20
    batch_bytes: PositiveInt = 4 << 20


def shards_id(
    source: str,
    tokenizer: TokenizerSpec,
    held_out: HeldOut,
    filters: Sequence[Filter] = (),
    pair_bytes: int = PAIR_BYTES,
) -> str:
    """Identity of shards; ``source`` is the id of the corpus. Neither workers nor pieces show in the files."""
    parameters = {
        "tokenizer": tokenizer.sha256,
        "eod_id": tokenizer.eod_id,
        "held_out": held_out.model_dump(exclude_none=True) if held_out.fraction else None,
        "filters": [step.model_dump(exclude_none=True) for step in filters],
        "pair_bytes": pair_bytes,
    }
    if installed := datatrove_version(filters):
        parameters["datatrove"] = installed
    return artifact_id(KIND, STAGE_VERSION, [source], parameters)


def tokenize_job(catalog: Catalog, lake: Lake, corpus: str, model: str) -> TokenizeJob:
    """Resolve a declared corpus and model. Needs neither torch nor transformers.

    Raises:
        MissingInput: raw_corpus was not made, or its sources or reading rules changed since.
        VerificationFailed: raw_corpus is damaged.
        InputError: no usable tokenizer, or one that does not fit the model.
    """
    scan = corpus_job(catalog, lake, corpus)
    raw = _raw_corpus(scan)
    declared = catalog.corpus(corpus)
    tokenizer = model_tokenizer(catalog, model)
    id = shards_id(raw.id, tokenizer, declared.held_out, declared.filters, declared.shard_bytes)
    stats = raw.manifest.stats
    return TokenizeJob(
        corpus=corpus,
        id=id,
        output=lake.shards_dir(corpus, id),
        files=scan.files,
        rules=scan.rules,
        held_out=declared.held_out,
        tokenizer=tokenizer,
        inputs=(raw.ref,),
        declaration={
            "corpora": {corpus: declared.model_dump(mode="json")},
            "tokenizer": tokenizer.model_dump(mode="json", exclude={"path"}),
        },
        expected_documents=stats["documents"] + sum(stats["dropped"].values()),
        filters=declared.filters,
        pair_bytes=declared.shard_bytes,
        benchmarks=declared_benchmarks(catalog),
    )


def model_tokenizer(catalog: Catalog, model: str) -> TokenizerSpec:
    """The pinned tokenizer of a declared model, after checking that it fits the model's embedding.

    Raises:
        InputError: names the model's file.
    """
    declared = catalog.model(model)
    try:
        spec = describe_tokenizer(_tokenizer_path(catalog.project, declared), declared.eod)
        config = read_hf_config(catalog.project, declared)
        vocab_size = config.get("vocab_size")
        if not isinstance(vocab_size, int):
            raise InputError("the model's config has no whole number `vocab_size`")
        require_fit(spec, model, vocab_size)
    except InputError as error:
        raise InputError(f"{catalog.file_of('model', model)}: {error}") from error
    return spec


def plain_tokenize_job(
    inputs: Sequence[str],
    tokenizer: Path,
    output: Path,
    *,
    eod: str | None = None,
    format: CorpusFormat | None = None,
    text_field: str = "text",
    on_error: Literal["stop", "drop"] = "stop",
    held_out: HeldOut = HeldOut(fraction=0.0),  # noqa: B008 (frozen)
    filters: Sequence[Filter] = (),
    encoding: Encoding = "utf-8",
    pair_bytes: int = PAIR_BYTES,
    workers: int | None = None,
) -> TokenizeJob:
    """A job on plain paths, without a project.

    Args:
        inputs: files, folders, globs or URLs; relative to the current folder.
        tokenizer: tokenizer.json, SentencePiece model, or a folder with one.
        output: folder to make.
        format: default: by suffix, which must be the same for all files.

    Raises:
        InputError: inputs absent or of several formats, no usable tokenizer, or ``output`` holds or lies in something
            else.
    """
    locations = expand(inputs, Path.cwd())
    formats = {format} if format else {format_of(location.name) for location in locations}
    if len(formats) > 1:
        raise InputError(
            f"the inputs have several formats: {', '.join(sorted(map(str, formats)))}. Tokenize each alone."
        )
    rules = ReadingRules(format=formats.pop(), text_field=text_field, encoding=encoding, on_error=on_error)
    output = output.absolute()
    require_own_folder(output, KIND)
    spec = describe_tokenizer(tokenizer, eod)
    files = fingerprint(locations)
    return TokenizeJob(
        corpus=output.name,
        id=shards_id(corpus_id(files, rules), spec, held_out, filters, pair_bytes),
        output=output,
        files=files,
        rules=rules,
        held_out=held_out,
        tokenizer=spec,
        declaration={
            "rules": rules.model_dump(),
            "held_out": held_out.model_dump(),
            "filters": [step.model_dump(exclude_none=True) for step in filters],
            "tokenizer": spec.model_dump(mode="json", exclude={"path"}),
        },
        filters=tuple(filters),
        pair_bytes=pair_bytes,
        workers=workers,
    )


def _raw_corpus(scan: CorpusJob) -> Artifact:
    if found := find(scan.output, scan.id):
        return require_intact_artifact(found)
    older = any(scan.output.parent.glob("*/manifest.json"))
    hint = "An older one exists, but the sources or how they are read changed since." if older else ""
    raise MissingInput(RAW_CORPUS, scan.corpus, hint)


def _tokenizer_path(project: Project, model: Model) -> Path:
    if model.from_scratch is not None:
        return project.resolve(model.from_scratch.tokenizer)
    return hf_directory(project, model)
