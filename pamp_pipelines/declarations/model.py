"""A model: an existing Hugging Face model, or an architecture to be trained from scratch."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import Field

from pamp_pipelines.declarations.base import Check, Declaration, Owner, Place

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class HuggingFaceSource(Declaration):
    """A local directory, or a hub id with a pinned revision. Architecture and tokenizer are read from it."""

    path: Place | None = None
    """HF directory with config.json, safetensors and tokenizer; relative paths start at the project's root."""
    id: Place | None = None
    """Hub repository, e.g. ``Qwen/Qwen3-0.6B``. Needs ``revision``."""
    revision: str | None = None
    """Commit hash of the hub repository: a branch name would let the weights change under the same declaration."""

    def checks(self) -> Iterable[Check]:
        return (self._source_problems, self._revision_problems, self._pin_problems)

    def _source_problems(self) -> Iterator[tuple[str, str]]:
        if (self.path is None) == (self.id is None):
            yield "", "give either `path` or `id` with `revision`"

    def _revision_problems(self) -> Iterator[tuple[str, str]]:
        if self.id is not None and not self.revision:
            yield "id", "needs `revision`, a commit hash: the same declaration must give the same weights"
        if self.path is not None and self.revision is not None:
            yield "revision", "belongs to a hub `id`, not to a `path`: remove it"

    def _pin_problems(self) -> Iterator[tuple[str, str]]:
        if self.revision is not None and not _COMMIT.fullmatch(self.revision):
            yield (
                "revision",
                f"{self.revision!r} is not a commit hash (7 to 40 hexadecimal digits): a branch or tag can move, "
                "take the hash from the repository's list of commits",
            )


class FromScratch(Declaration):
    """An architecture without weights."""

    config: Annotated[dict[str, Any], Field(min_length=1)]
    """Contents of an HF ``config.json``: architectures, hidden_size, num_hidden_layers, …"""
    tokenizer: Place
    """``tokenizer.json``, SentencePiece ``tokenizer.model``, a tiktoken vocabulary, or a directory that holds one."""


class Model(Declaration):
    """One file in ``assets/models``; its stem is the partition key."""

    description: str = ""
    """What it is. Not part of the data version."""
    licence: str = "unknown"
    """Licence of the weights; ``unknown`` warns on the export's model card."""
    owners: tuple[Owner, ...] = ()
    """Who answers for it: e-mail addresses or ``team:name``. Not part of the data version."""
    hf: HuggingFaceSource | None = None
    """An existing model. Exactly one of ``hf`` and ``from_scratch``."""
    from_scratch: FromScratch | None = None
    """A new model with random weights. Exactly one of ``hf`` and ``from_scratch``."""
    eod: str | None = None
    """Token that ends a document in the shards; default: the tokenizer's eos token."""

    def checks(self) -> Iterable[Check]:
        return (self._source_problems,)

    def _source_problems(self) -> Iterator[tuple[str, str]]:
        if (self.hf is None) == (self.from_scratch is None):
            yield "", "give exactly one of `hf` and `from_scratch`"
