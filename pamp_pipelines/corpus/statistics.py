"""Counts over a corpus in bounded memory, and their picture."""

from collections import Counter
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, NonNegativeInt, model_validator

from pamp_pipelines.corpus.batches import Batch
from pamp_pipelines.corpus.scripts import ScriptCounter, shares
from pamp_pipelines.corpus.sources import SourceFile

_LANGUAGES = 50
"""Values of the language field that are counted by name in the manifest."""


class FileCounts(BaseModel):
    """What was counted in one file.

    Attributes:
        characters: code points.
        dropped: rows that are no documents, by reason.
        lengths: documents by the exponent of the power of two that their length in characters reaches.
        letters: of a sample, by script.
        languages: documents by the value of the language field; empty where none is declared.
    """

    documents: NonNegativeInt = 0
    characters: NonNegativeInt = 0
    dropped: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    letters: Counter[str] = Counter()
    languages: Counter[str] = Counter()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        counters = (self.dropped, self.lengths, self.letters, self.languages)
        if any(count < 0 for counter in counters for count in counter.values()):
            raise ValueError("a count is below 0")
        if self.lengths.total() != self.documents or self.languages.total() not in (0, self.documents):
            raise ValueError(f"lengths and languages are not those of {self.documents} documents")
        return self


class FileCounter:
    """Counts one file, fed batch by batch."""

    def __init__(self) -> None:
        self.counts = FileCounts()
        self._scripts = ScriptCounter()
        self.counts.letters = self._scripts.letters

    def add(self, batch: Batch) -> None:
        """Rows in their order; a batch with fields has the language of each document first."""
        counts = self.counts
        counts.dropped.update(row.reason for row in batch.dropped)
        lengths = np.fromiter(map(len, batch.texts), np.int64, len(batch.texts))
        counts.documents += len(lengths)
        counts.characters += int(lengths.sum())
        # the exponent of a number is its bit length, exact below 2^53
        exponents, found = np.unique(np.frexp(lengths)[1], return_counts=True)
        for exponent, count in zip(exponents.tolist(), found.tolist(), strict=True):
            counts.lengths[exponent - 1] += count
        self._scripts.add(batch.texts)
        counts.languages.update(_language(values[0]) for values in batch.fields)


class CorpusStatistics:
    """The counts of all files together, in the order of the corpus."""

    def __init__(self) -> None:
        self._files: list[dict[str, Any]] = []
        self._bins: Counter[int] = Counter()
        self.documents = 0
        self.characters = 0
        self.dropped: Counter[str] = Counter()
        self._letters: Counter[str] = Counter()
        self._languages: Counter[str] = Counter()

    def add(self, file: SourceFile, counts: FileCounts) -> None:
        """The counts of the next file."""
        self._files.append(
            {
                "path": file.name,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "documents": counts.documents,
                "characters": counts.characters,
                "dropped": dict(sorted(counts.dropped.items())),
            }
        )
        self.documents += counts.documents
        self.characters += counts.characters
        self.dropped.update(counts.dropped)
        self._bins.update(counts.lengths)
        self._letters.update(counts.letters)
        self._languages.update(counts.languages)

    @property
    def totals(self) -> dict[str, Any]:
        """``files``, ``bytes`` (as stored), ``documents``, ``characters``, ``dropped`` by reason, ``scripts`` (share of
        the letters of a sample, by script) and, where a field was declared, ``languages`` (documents by its value)."""
        totals: dict[str, Any] = {
            "files": len(self._files),
            "bytes": sum(f["bytes"] for f in self._files),
            "documents": self.documents,
            "characters": self.characters,
            "dropped": dict(sorted(self.dropped.items())),
            "scripts": shares(self._letters),
        }
        if self._languages:
            # equal counts in the order of names: that of the files must not show
            shown = sorted(self._languages.items(), key=lambda item: (-item[1], item[0]))[:_LANGUAGES]
            others = self._languages.total() - sum(count for _, count in shown)
            totals["languages"] = dict(shown) | ({"(others)": others} if others else {})
        return totals

    def as_json(self) -> dict[str, Any]:
        """Contents of ``statistics.json``: totals, one entry a file, and documents by length."""
        histogram = [
            {"characters_from": 2**b, "characters_below": 2 ** (b + 1), "documents": n}
            for b, n in sorted(self._bins.items())
        ]
        return {**self.totals, "per_file": self._files, "documents_by_length": histogram}

    def draw(self, path: Path, title: str) -> None:
        """Documents by length as a PNG of about 15 kB."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.2), dpi=100, layout="constrained")
        axes = figure.subplots()
        low, high = min(self._bins), max(self._bins)
        bins = range(low, high + 1)
        axes.bar([b + 0.5 for b in bins], [self._bins[b] for b in bins], width=0.92)
        ticks = range(low, high + 2, max(1, (high - low) // 8))
        axes.set_xticks(list(ticks), [f"{2**t:,}" for t in ticks])
        axes.set_xlabel("characters in a document")
        axes.set_ylabel("documents")
        axes.set_title(title)
        # without the version of the library, which would change the file's hash
        figure.savefig(path, metadata={"Software": None})


def _language(value: Any) -> str:
    return value[:40] if isinstance(value, str) and value else "(none)"
