"""A corpus: where its text is and how it is read."""

from typing import Annotated, Literal

from pydantic import Field

from pamp_pipelines.declarations.base import Declaration, Owner

CorpusFormat = Literal["jsonl", "parquet", "text"]


class HeldOut(Declaration):
    """Documents kept out of training, chosen by a hash of their content, so neither order nor layout moves them."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Share of documents held out for validation and perplexity. 0 holds out none."""
    seed: int = 0
    """Salt of the hash: another seed holds out other documents."""


class Corpus(Declaration):
    """One file in ``assets/corpora``; its stem is the partition key."""

    description: str = ""
    """What the text is and where it comes from. Not part of the data version."""
    licence: Annotated[str, Field(min_length=1)]
    """SPDX identifier or a sentence; flows into every model trained on it."""
    owners: tuple[Owner, ...] = ()
    """Who answers for it: e-mail addresses or ``team:name``. Not part of the data version."""
    sources: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files, globs or fsspec URLs, read in this order; relative paths start at the project's root."""
    format: CorpusFormat
    """``jsonl``: a JSON object a line; ``parquet``: a row; ``text``: a file is one document. Compression goes by
    suffix: .gz, .zst, .bz2, .xz."""
    text_field: str = "text"
    """Field (jsonl) or column (parquet) that holds the text; ``meta.text`` goes into objects. Unused for ``text``."""
    on_error: Literal["stop", "drop"] = "stop"
    """What a malformed line or a missing field does: end the stage, or drop the document and count it by reason."""
    held_out: HeldOut = HeldOut()
    """Which documents training never sees."""
