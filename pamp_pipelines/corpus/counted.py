"""What was counted in the files of a corpus before, so that one more file does not mean reading all of them again."""

import contextlib
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel

from pamp_pipelines.corpus.compression import compression_of
from pamp_pipelines.corpus.sources import SourceFile
from pamp_pipelines.corpus.statistics import FileCounts
from pamp_pipelines.lake.remembered import recall, remember

_EVERY_S = 10.0


class _Content(BaseModel):
    key: str
    files: dict[str, FileCounts]


class CountedFiles:
    """Counts by the content of a file, in a JSON file that costs time only when it is lost or damaged.

    Args:
        path: where they are kept.
        key: says how files are read and what is counted; counts under another key are forgotten.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._known = self._read()
        self._used: dict[str, FileCounts] = {}
        self._written = time.monotonic()

    def find(self, file: SourceFile) -> FileCounts | None:
        """The counts of a file with this content, if it was read before."""
        if found := self._known.get(_name(file)):
            self._used[_name(file)] = found
        return found

    def add(self, file: SourceFile, counts: FileCounts) -> None:
        """Remember; written now if the last time is ten seconds ago."""
        self._known[_name(file)] = self._used[_name(file)] = counts
        if time.monotonic() - self._written > _EVERY_S:
            self._write(self._known)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write; after an end without an error, only the counts of the files that were asked for or added."""
        files = self._used if kind is None else self._known
        if files.keys() != self._read().keys():
            self._write(files)

    def _write(self, files: dict[str, FileCounts]) -> None:
        # a lake that may only be read is still good for looking things up
        with contextlib.suppress(OSError):
            remember(self._path, _Content(key=self._key, files=files).model_dump(mode="json"))
        self._written = time.monotonic()

    def _read(self) -> dict[str, FileCounts]:
        try:
            content = _Content.model_validate(recall(self._path))
        except ValueError:  # absent, damaged, or with counts that cannot be
            return {}
        return content.files if content.key == self._key else {}


def _name(file: SourceFile) -> str:
    return f"{file.sha256}{compression_of(file.name) or ''}"
