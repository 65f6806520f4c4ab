"""A corpus: where its text is, how it is read and what of it is kept."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from pamp_pipelines.declarations.base import Check, Count, Declaration, Name, Owner, Place

CorpusFormat = Literal["jsonl", "parquet", "text"]
Encoding = Literal["utf-8", "gb18030", "utf-16", "utf-16-le", "utf-16-be"]
PAIR_BYTES = 10_000_000_000
"""Megatron pays about a second for each pair of files when a training starts, and asks for at least this size."""


class HeldOut(Declaration):
    """Documents kept out of training, chosen by a hash of their content, so neither order nor layout moves them."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Share of documents held out for validation and perplexity. 0 holds out none."""
    seed: int = 0
    """Salt of the hash: another seed holds out other documents."""
    by: Annotated[str | None, Field(min_length=1)] = None
    """Field whose text is hashed in place of the document's own, so that corpora made of one source hold out the same
    rows. A row without it goes by its own text."""


class Language(Declaration):
    """Keep documents by what the source itself says about their language."""

    field: Annotated[str, Field(min_length=1)]
    """Field or column with the language; ``meta.lang`` goes into objects."""
    keep: Annotated[tuple[str, ...], Field(min_length=1)]
    """Values of it that are kept. A document without the field is dropped."""


class Datatrove(Declaration):
    """A filter or formatter of datatrove (https://github.com/huggingface/datatrove), installed with the extra
    ``datatrove``. Its version is part of the shards' identity."""

    block: Annotated[str, Field(min_length=1)]
    """Class in ``datatrove.pipeline.filters`` or ``datatrove.pipeline.formatters``, e.g. ``GopherQualityFilter``."""
    arguments: dict[str, Any] = {}
    """Arguments of the class, e.g. ``{min_doc_words: 20, language: eng}``."""
    metadata: dict[str, str] = {}
    """What the block finds in ``doc.metadata``: name to field of the source, e.g. ``{url: meta.url}``."""


_MOST_HASHES = 10_000
"""RefinedWeb, which has the most of the published ones, takes 20 x 450 (Penedo et al. 2023)."""


class MinHash(Declaration):
    """Similar texts, found by the MinHash of datatrove (extra ``datatrove``, whose version is part of the shards'
    identity). Two texts are similar when all hashes of one bucket are equal: of pairs that share a part s of their runs
    of words, 1 - (1 - s ** hashes_per_bucket) ** num_buckets are found. Names and defaults are datatrove's."""

    n_grams: Annotated[int, Field(ge=1, le=100)] = 5
    """Words of a run. A shorter text is similar to none."""
    num_buckets: Annotated[int, Field(ge=1, le=1000)] = 14
    """Bands that a signature is cut into; each costs 16 bytes a document on the disk while shards are made."""
    hashes_per_bucket: Annotated[int, Field(ge=1, le=1000)] = 8
    """Hashes of a band."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Draws the hash functions."""
    language: Annotated[str | None, Field(min_length=1)] = None
    """Whose words, as datatrove names it (``eng``, ``zho``); mostly needs spaCy. None: words are what stands between
    blanks, which Chinese, Japanese and Thai do not write."""

    def checks(self) -> Iterable[Check]:
        return (self._size_problems,)

    def _size_problems(self) -> Iterator[tuple[str, str]]:
        hashes = self.num_buckets * self.hashes_per_bucket
        if hashes > _MOST_HASHES:
            yield (
                "num_buckets",
                f"num_buckets x hashes_per_bucket is {self.num_buckets} x {self.hashes_per_bucket} = {hashes:,} hashes "
                f"of each run of words; at most {_MOST_HASHES:,}. Lower one of them; usual are 14 x 8.",
            )


class Filter(Declaration):
    """One step: exactly one of the fields. Dropped documents are counted by the reason that is named with each."""

    normalize: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None
    """Bring the text into a Unicode normal form. Drops nothing."""
    min_characters: PositiveInt | None = None
    """Drop shorter texts (``too_short``), in code points."""
    max_characters: Count | None = None
    """Drop longer texts (``too_long``), in code points."""
    drop_matching: str | None = None
    """Drop texts in which this Python regular expression is found (``matches_pattern``)."""
    language: Language | None = None
    """Drop documents of other languages (``other_language``)."""
    datatrove: Datatrove | None = None
    """Let a block of datatrove drop or change documents (``datatrove_`` and the block's own reason, or its name)."""
    deduplicate: Literal["exact"] | None = None
    """Keep the first of equal texts of the whole corpus, in the order of the sources (``duplicate``); the last step."""
    minhash: MinHash | None = None
    """Keep the first of similar texts of the whole corpus, held-out ones before others, in the order of the sources
    (``near_duplicate``; of equal texts ``duplicate``); the last step, in place of ``deduplicate``."""

    @property
    def compares(self) -> bool:
        """Whether it compares documents with each other, which is done when all are read."""
        return self.deduplicate is not None or self.minhash is not None

    def checks(self) -> Iterable[Check]:
        return (self._step_problems,)

    def _step_problems(self) -> Iterator[tuple[str, str]]:
        steps = list(type(self).model_fields)
        declared = [name for name in steps if getattr(self, name) is not None]
        if len(declared) != 1:
            yield "", f"a filter has exactly one of {', '.join(steps)}; here: {', '.join(declared) or 'none'}"

    @field_validator("drop_matching")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
        return pattern


class Corpus(Declaration):
    """One file in ``assets/corpora``; its stem is the partition key."""

    description: str = ""
    """What the text is and where it comes from. Not part of the data version."""
    licence: Annotated[str, Field(min_length=1)]
    """SPDX identifier or a sentence; flows into every model trained on it."""
    owners: tuple[Owner, ...] = ()
    """Who answers for it: e-mail addresses or ``team:name``. Not part of the data version."""
    sources: Annotated[tuple[Place, ...], Field(min_length=1)]
    """Files, globs or fsspec URLs, read in this order; relative paths start at the project's root."""
    format: CorpusFormat
    """``jsonl``: a JSON object a line; ``parquet``: a row; ``text``: a file is one document. Compression goes by
    suffix: .gz, .zst, .bz2, .xz."""
    text_field: Annotated[str, Field(min_length=1)] = "text"
    """Field (jsonl) or column (parquet) that holds the text; ``meta.text`` goes into objects. Unused for ``text``."""
    shard_sets: Annotated[dict[Name, Annotated[str, Field(min_length=1)]], Field(max_length=20)] = {}
    """Further text fields, each tokenized into shards of its own: ``{summary: meta.summary}`` in ``news.yaml`` makes a
    corpus ``news.summary`` that training configs can blend. It differs from ``news`` in the text only; rows that are
    held out in one are held out in all."""
    language_field: Annotated[str | None, Field(min_length=1)] = None
    """Field or column with the language of a document, whose values raw_corpus counts."""
    encoding: Encoding = "utf-8"
    """Encoding of jsonl and text files. Others than this are refused by name, never guessed."""
    on_error: Literal["stop", "drop"] = "stop"
    """What a malformed line or a missing field does: end the stage, or drop the document and count it by reason."""
    filters: tuple[Filter, ...] = ()
    """What of the documents is tokenized: steps in this order. The raw corpus is described as it is."""
    held_out: HeldOut = HeldOut()
    """Which documents training never sees."""
    shard_bytes: Count = PAIR_BYTES
    """Size of a ``.bin`` of training tokens after which the next one begins."""

    def checks(self) -> Iterable[Check]:
        return (self._order_problems, *(partial(self._text_problems, field) for field in _FIELDS_OF_ROWS))

    def _order_problems(self) -> Iterator[tuple[str, str]]:
        for step in self.filters[:-1]:
            for name, value in step if step.compares else ():
                if value is not None:
                    yield "filters", f"`{name}` must be the last step: it compares what the others leave"

    def _text_problems(self, field: str) -> Iterator[tuple[str, str]]:
        if self.format == "text" and _FIELDS_OF_ROWS[field](self):
            yield field, "a text file has no fields, so this has no use with `format: text`"

    def split(self) -> dict[str, "Corpus"]:
        """A corpus for each entry of ``shard_sets``, by its suffix."""
        held_out = self.held_out.model_copy(update={"by": self.held_out.by or self.text_field})
        shared = {"shard_sets": {}, "held_out": held_out}
        return {
            suffix: self.model_copy(update={**shared, "text_field": field})
            for suffix, field in sorted(self.shard_sets.items())
        }


_FIELDS_OF_ROWS: dict[str, Callable[[Corpus], bool]] = {
    "filters": lambda corpus: any(
        step.language or (step.datatrove and step.datatrove.metadata) for step in corpus.filters
    ),
    "shard_sets": lambda corpus: bool(corpus.shard_sets),
    "language_field": lambda corpus: corpus.language_field is not None,
    "held_out.by": lambda corpus: corpus.held_out.by is not None,
}
"""What names fields of rows, and whether a corpus declares it."""
