"""What is wrong with a Dagster home, said of its files: settings that cannot be used, and a damaged database."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._check import CheckError
from dagster._core.errors import DagsterInvalidConfigError
from sqlalchemy.exc import DatabaseError

from pamp_pipelines.errors import InputError
from pamp_pipelines.orchestration.outage import is_outage, origins

_HEADER = b"SQLite format 3\0"
"""Of every SQLite file that holds anything (sqlite.org/fileformat.html)."""
_DAMAGED = ("not a database", "malformed")
"""In SQLite's words for SQLITE_NOTADB and SQLITE_CORRUPT."""


def read_settings(file: Path) -> dict[str, Any]:
    """The contents of dagster.yaml.

    Raises:
        InputError: it cannot be read, or is no mapping, or its ``storage`` is none.
    """
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    settings = {} if loaded is None else loaded
    if not isinstance(settings, dict):
        raise InputError(f"{file}: holds {_shown(settings)}; write settings of Dagster, one `name: value` each.")
    storage = settings.get("storage")
    if storage is not None and not isinstance(storage, dict):
        raise InputError(
            f"{file}: `storage` is {_shown(storage)}; write `storage: {{KIND: {{…}}}}`, or leave it out for SQLite."
        )
    return settings


@contextlib.contextmanager
def opening(home: Path) -> Iterator[None]:
    """A block in which Dagster reads the settings and opens its databases.

    Raises:
        InputError: Dagster refuses the settings; or a database is damaged or does not answer.
    """
    settings = home / "dagster.yaml"
    try:
        with telling_damage(home):
            yield
    except DagsterInvalidConfigError as error:
        said = [str(one.message).partition(" Expected: ")[0] for one in error.errors] or [error.message]
        raise InputError(f"{settings}: " + "\n".join(said)) from None
    except (dg.DagsterError, CheckError, ImportError) as error:
        raise InputError(f"{settings}: Dagster cannot use it: {error}") from None
    except Exception as error:
        if isinstance(error, InputError) or not is_outage(error):
            raise
        raise InputError(f"{settings}: the database does not answer: {_said(error)}") from error


@contextlib.contextmanager
def telling_damage(home: Path) -> Iterator[None]:
    """A block that uses the databases.

    Raises:
        InputError: one of them is damaged.
    """
    try:
        yield
    except Exception as error:
        if (damage := _damage(error)) is None:
            raise
        files = [file for file in sorted(home.rglob("*.db")) if not _is_sqlite(file)]
        named = ", ".join(str(file) for file in files) or f"{home}: a database in it"
        raise InputError(
            f"{named}: is damaged ({damage}). Move {home} away, put its dagster.yaml back if it was edited, and run "
            "`pamp reindex`: it reports again all that is in the lake; what is lost are runs, their logs and times."
        ) from error


def _damage(error: BaseException) -> str | None:
    """SQLite's words, where an error comes from a damaged file."""
    for one in origins(error):
        if isinstance(one, DatabaseError) and isinstance(one.orig, sqlite3.DatabaseError):
            said = str(one.orig)
            return said if any(words in said for words in _DAMAGED) else None
    return None


def _is_sqlite(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_HEADER)) in (_HEADER, b"")


def _shown(value: object) -> str:
    return f"{value!r}"[:80]


def _said(error: BaseException) -> str:
    """The first line of the driver's words, which name host, port and user, and never the password."""
    cause = error.__cause__ if error.__cause__ is not None else error
    return str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0]
