"""Counts over a corpus in bounded memory, and their picture."""

from collections import Counter
from pathlib import Path
from typing import Any

from pamp_pipelines.corpus.readers import Document, Dropped
from pamp_pipelines.corpus.sources import SourceFile


class CorpusStatistics:
    """Fed row by row. Lengths are in characters (code points), gathered in bins of powers of two."""

    def __init__(self) -> None:
        self._files: list[dict[str, Any]] = []
        self._bins: Counter[int] = Counter()
        self.documents = 0
        self.characters = 0
        self.dropped: Counter[str] = Counter()

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

    def add(self, row: Document | Dropped) -> None:
        entry = self._files[-1]
        if isinstance(row, Dropped):
            self.dropped[row.reason] += 1
            entry["dropped"][row.reason] = entry["dropped"].get(row.reason, 0) + 1
            return
        length = len(row.text)
        self.documents += 1
        self.characters += length
        entry["documents"] += 1
        entry["characters"] += length
        self._bins[length.bit_length() - 1] += 1

    @property
    def totals(self) -> dict[str, Any]:
        """``files``, ``bytes`` (as stored), ``documents``, ``characters`` and ``dropped`` by reason."""
        return {
            "files": len(self._files),
            "bytes": sum(f["bytes"] for f in self._files),
            "documents": self.documents,
            "characters": self.characters,
            "dropped": dict(sorted(self.dropped.items())),
        }

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
