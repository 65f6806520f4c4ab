"""Do the files exist that corpora, models and evaluations refer to, and do a model's tokenizer and config agree?"""

import glob
import json
import re
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.hf_config import cached_directory, load_hf_config
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.declarations.report import Report, Subject
from pamp_pipelines.declarations.row_files import HELD_OUT, HUB, held_out_corpus, hub_source, is_held_out, row_file
from pamp_pipelines.declarations.scratch_checks import check_scratch_config
from pamp_pipelines.declarations.suggest import did_you_mean
from pamp_pipelines.errors import InputError
from pamp_pipelines.project import Project

GENERATION_ARGUMENTS = frozenset(
    (
        *("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "num_beams"),
        *("max_new_tokens", "max_length", "min_new_tokens", "min_length", "repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "early_stopping", "num_return_sequences", "use_cache", "penalty_alpha"),
        *("max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty", "think_end_token"),
    )
)
"""What lm-eval, transformers' generation and servers of OpenAI-like completions take."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model")
"""Tokenizers that this project encodes with, the first wins; then ``*.tiktoken``."""


def check_corpus(catalog: Catalog, name: str, report: Report) -> None:
    """Every source matches a file. URLs are left to the stage: a check must not need a network."""
    subject = Subject(catalog, report, "corpus", name)
    sources = catalog.corpus(name).sources
    for index, source in enumerate(sources):
        if source in sources[:index]:
            subject.warn("sources", f"{source!r} is listed twice: its documents count twice", index)
        if "://" in source:
            protocol = source.split("://", 1)[0].split("::")[-1]
            if protocol not in (known := _protocols()):
                hint = did_you_mean(protocol, known)
                subject.error(
                    "sources", f"{protocol!r} is no protocol that fsspec knows: correct the URL.{hint}", index
                )
            continue
        path = catalog.project.resolve(source)
        if path.is_dir():
            subject.error(
                "sources", f"{source!r} is a folder: name its files, e.g. {source.rstrip('/')}/*.jsonl", index
            )
        elif not path.is_file() and not glob.glob(str(path), recursive=True):  # noqa: PTH207 - absolute
            subject.error(
                "sources", f"{source!r} matches no file below {catalog.project.root}: correct the path", index
            )


def _protocols() -> set[str]:
    from fsspec.registry import known_implementations, registry

    return {*known_implementations, *registry}


def check_evaluation(catalog: Catalog, name: str, report: Report) -> None:
    """Task YAML files and local rows exist, and rows are for a task that is listed."""
    subject = Subject(catalog, report, "evaluation", name)
    evaluation = catalog.evaluation(name)
    for index, task in enumerate(evaluation.tasks):
        if task.endswith((".yaml", ".yml")) and not catalog.project.resolve(task).is_file():
            subject.error("tasks", f"{task!r} is not a file below {catalog.project.root}: correct the path", index)
    for argument in evaluation.generation:
        if argument not in GENERATION_ARGUMENTS:
            hint = did_you_mean(argument, GENERATION_ARGUMENTS)
            subject.warn(
                "generation", f"no generation argument that is known here: it may change nothing.{hint}", argument
            )
    for task, source in evaluation.data.items():
        if task not in evaluation.tasks and task not in {Path(t).stem for t in evaluation.tasks}:
            subject.error("data", f"{task!r} is not one of `tasks`.{did_you_mean(task, evaluation.tasks)}", task)
        _check_rows(catalog, subject, task, source)


def _check_rows(catalog: Catalog, subject: Subject, task: str, source: str) -> None:
    """Where the rows of a task are said to be: a file of the project or of a package, the hub, held-out documents."""
    if is_held_out(source):
        corpus = held_out_corpus(source)
        if corpus == "":
            subject.error("data", f"{source!r}: name a corpus after the colon, or write {HELD_OUT} for the run's", task)
        elif corpus is not None and corpus not in catalog.corpora:
            subject.error("data", f"{source!r}: there is no such corpus.{did_you_mean(corpus, catalog.corpora)}", task)
        elif corpus is not None and not catalog.corpora[corpus].held_out.fraction:
            hint = "give it `held_out: {fraction: …}`"
            subject.error("data", f"{source!r}: that corpus holds out nothing: {hint}", task)
        return
    try:
        if source.startswith(HUB):
            hub_source(source)
            return
        file = row_file(source, catalog.project.resolve, catalog.project.data / "packages")
    except InputError as error:
        subject.error("data", str(error), task)
        return
    if not file.is_file():
        hint = _setup_hint(catalog.project, source) or "correct the path, or write held_out"
        subject.error("data", f"{source!r} is not a file below {catalog.project.root}: {hint}", task)


def check_model(catalog: Catalog, name: str, report: Report) -> dict[str, Any] | None:
    """The model's files exist and its tokenizer fits. Returns its HF config, or None when that cannot be read here."""
    subject = Subject(catalog, report, "model", name)
    model = catalog.model(name)
    if model.from_scratch is not None:
        config: dict[str, Any] | None = dict(model.from_scratch.config)
        check_scratch_config(subject, model.from_scratch.config)
        tokenizer = _tokenizer_file(subject, catalog.project, model.from_scratch.tokenizer)
    else:
        directory = _hf_directory(subject, catalog.project, model)
        config = _config(subject, directory) if directory else None
        tokenizer = directory / "tokenizer.json" if directory else None
        if directory and _tokenizer_in(directory) is None:
            subject.warn("hf", f"{directory} has no {' or '.join(TOKENIZER_FILES)}: it converts, but tokenizes nothing")
    if tokenizer is not None and tokenizer.name == "tokenizer.json" and tokenizer.is_file():
        _check_vocabulary(subject, model, config, tokenizer)
    return config


def _hf_directory(subject: Subject, project: Project, model: Model) -> Path | None:
    assert model.hf is not None
    if model.hf.path is None:
        directory = cached_directory(model)
        if directory is None:
            subject.warn(
                "hf.id", f"{model.hf.id} is not in the local cache: its architecture is unchecked until first use"
            )
        return directory
    directory = project.resolve(model.hf.path)
    if directory.is_dir():
        return directory
    hint = _setup_hint(project, model.hf.path) or "give the directory that holds config.json"
    subject.error("hf.path", f"{model.hf.path!r} is not a directory below {project.root}: {hint}")
    return None


def _config(subject: Subject, directory: Path) -> dict[str, Any] | None:
    try:
        return load_hf_config(directory)
    except InputError as error:
        subject.error("hf", str(error))
        return None


def _tokenizer_file(subject: Subject, project: Project, declared: str) -> Path | None:
    path = project.resolve(declared)
    if path.is_dir():
        path = _tokenizer_in(path) or path
    if path.is_file():
        return path
    message = (
        f"{declared!r} is neither a tokenizer file nor a folder with {' or '.join(TOKENIZER_FILES)}: correct the path"
    )
    subject.error("from_scratch.tokenizer", message)
    return None


def _tokenizer_in(directory: Path) -> Path | None:
    named = (directory / file for file in TOKENIZER_FILES)
    return next((file for file in (*named, *sorted(directory.glob("*.tiktoken"))) if file.is_file()), None)


def _check_vocabulary(subject: Subject, model: Model, config: dict[str, Any] | None, tokenizer: Path) -> None:
    where = "hf" if model.hf is not None else "from_scratch.tokenizer"
    try:
        vocabulary = _vocabulary(tokenizer)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        subject.error(where, f"{tokenizer} is not a readable tokenizer.json ({type(error).__name__}: {error})")
        return
    rows = (config or {}).get("vocab_size")
    largest = max(vocabulary.values(), default=-1)
    if isinstance(rows, int) and largest >= rows:
        # in the words of the tokenization stage, which refuses it too
        subject.error(where, vocabulary_problem(tokenizer, largest, subject.name, rows))
    if model.eod is not None and model.eod not in vocabulary:
        known = [token for token in vocabulary if re.fullmatch(r"<.+>|\[.+\]", token)]
        subject.error("eod", f"{model.eod!r} is not a token of {tokenizer}.{did_you_mean(model.eod, known)}")


def tokenizer_problem(directory: Path, model: str, vocab_size: int) -> str | None:
    """Why the ``tokenizer.json`` of a directory does not fit the model; None where it fits or is absent."""
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        return None
    try:
        largest = max(_vocabulary(tokenizer).values(), default=-1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{tokenizer} is not a readable tokenizer.json ({type(error).__name__}: {error})"
    return vocabulary_problem(tokenizer, largest, model, vocab_size) if largest >= vocab_size else None


def vocabulary_problem(tokenizer: Path, largest: int, model: str, vocab_size: int) -> str:
    """The message for a tokenizer with ids that the model has no embedding for."""
    return (
        f"{tokenizer}: the highest token id is {largest}, but model {model!r} has vocab_size {vocab_size}. "
        "The tokenizer does not fit the model: take the model's own, or raise vocab_size."
    )


def _vocabulary(tokenizer: Path) -> dict[str, int]:
    """Token to id of a ``tokenizer.json``: a dictionary (BPE, WordPiece, WordLevel) or scored list (Unigram), and the
    added tokens. Format: https://github.com/huggingface/tokenizers."""
    data = json.loads(tokenizer.read_bytes())
    vocabulary = data["model"]["vocab"]
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {entry[0]: i for i, entry in enumerate(vocabulary)}
    return ids | {token["content"]: token["id"] for token in data.get("added_tokens") or ()}


def _setup_hint(project: Project, declared: str) -> str | None:
    path = project.resolve(declared)
    unpacked = (project.data / "models", project.data / "benchmarks", project.data / "packages")
    return "run `make setup`, which unpacks it" if any(path.is_relative_to(folder) for folder in unpacked) else None
