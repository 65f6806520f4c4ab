"""Counts over a corpus in bounded memory, and their picture."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from pamp_pipelines.corpus.batches import Batch
from pamp_pipelines.corpus.scripts import ScriptCounter
from pamp_pipelines.corpus.sources import SourceFile

_LANGUAGES = 50
"""Values of the language field that are counted by name in the manifest."""


class CorpusStatistics:
    """Fed batch by batch. Lengths are in characters (code points), gathered in bins of powers of two."""

    def __init__(self) -> None:
        self._files: list[dict[str, Any]] = []
        self._bins: Counter[int] = Counter()
        self.documents = 0
        self.characters = 0
        self.dropped: Counter[str] = Counter()
        self._scripts = ScriptCounter()
        self._languages: Counter[str] = Counter()

    def start_file(self, file: SourceFile) -> None:
        """Rows that follow belong to ``file``."""
        self._files.append(
            {
                "path": file.name,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "documents": 0,
                "characters": 0,
                "dropped": {},
            }
        )

    def add(self, batch: Batch) -> None:
        """Rows of the file that was started last; a batch with fields has the language of each document first."""
        entry = self._files[-1]
        for row in batch.dropped:
            self.dropped[row.reason] += 1
            entry["dropped"][row.reason] = entry["dropped"].get(row.reason, 0) + 1
        lengths = np.fromiter(map(len, batch.texts), np.int64, len(batch.texts))
        characters = int(lengths.sum())
        self.documents += len(lengths)
        self.characters += characters
        entry["documents"] += len(lengths)
        entry["characters"] += characters
        # the exponent of a number is its bit length, exact below 2^53
        exponents, counts = np.unique(np.frexp(lengths)[1], return_counts=True)
        for exponent, count in zip(exponents.tolist(), counts.tolist(), strict=True):
            self._bins[exponent - 1] += count
        self._scripts.add(batch.texts)
        self._languages.update(_language(values[0]) for values in batch.fields)

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
            "scripts": self._scripts.shares(),
        }
        if self._languages:
            shown = self._languages.most_common(_LANGUAGES)
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
