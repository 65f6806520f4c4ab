"""Answers of a model kept on disk, so that an evaluation that was stopped goes on where it was.

One SQLite file beside the job's work folder; it goes when all scores are published. Keys cover the request and all that
decides its answer. Sampled generations are not kept: they are meant to differ.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Answers:
    """Known answers of one model under one configuration; a hook for lm-eval, which hands over each answer it gets.

    Args:
        path: the file; None for none.
        setting: what decides answers besides the request: model, backend, arithmetic, context, first
            token.
    """

    def __init__(self, path: Path | None, setting: Sequence[Any]) -> None:
        self._setting = list(setting)
        self._file: sqlite3.Connection | None = None
        if path is not None:
            # Several processes write, one row at a time; nothing is lost that the next start cannot make again.
            self._file = sqlite3.connect(path, timeout=60, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=OFF")
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT)")

    def add_partial(self, kind: str, request: Sequence[Any] | None, answer: Any) -> None:
        """Keep an answer; called by lm-eval after each forward pass, with no request for a window of a document."""
        if self._file is not None and request is not None and not _sampled(request):
            row = self._key(kind, request), json.dumps(answer, default=float)
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", row)

    def known(self, kind: str, request: Sequence[Any]) -> Any:
        """The answer kept for a request, or None."""
        if self._file is None or _sampled(request):
            return None
        row = self._file.execute("SELECT answer FROM answers WHERE key = ?", (self._key(kind, request),)).fetchone()
        if row is None:
            return None
        answer = json.loads(row[0])
        return tuple(answer) if isinstance(answer, list) else answer

    def _key(self, kind: str, request: Sequence[Any]) -> str:
        text = json.dumps([self._setting, kind, list(request)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def _sampled(request: Sequence[Any]) -> bool:
    """lm-eval samples also where a temperature is given alone; a server, whatever ``do_sample`` says beside it."""
    options = [part for part in request if isinstance(part, dict)]
    return any(of.get("do_sample") or float(of.get("temperature") or 0) > 0 for of in options)


def delete_answers(path: Path) -> None:
    """Remove the file and what SQLite puts beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
