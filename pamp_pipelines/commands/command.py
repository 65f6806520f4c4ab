"""What all subcommands share: ``--project``, ``--json``, where output goes, and exit statuses.

Results go to stdout, progress and errors to stderr. With ``--json`` the last line on stdout is one JSON object, also
when the command failed: ``{"ok": true, …}`` or ``{"ok": false, "error": {"type", "message", …}}``. The exit status
is 0 when all went well, 1 when something is wrong, 2 when the command line is, 130 after Ctrl-C.
"""

import functools
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pamp_pipelines.errors import DeclarationError, InputError, MissingInput, PampError, WorkerFailed
from pamp_pipelines.project import Project
from pamp_pipelines.text import printable, require_text
from pamp_pipelines.urls import require_no_credentials, without_secrets

if TYPE_CHECKING:
    from pamp_pipelines.declarations.catalog import Catalog
    from pamp_pipelines.lake.store import Lake

FAILED, USAGE, INTERRUPTED = 1, 2, 130


@dataclass
class Outcome:
    """What a command found: ``data`` for ``--json``, ``lines`` for people."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: Iterable[str] = ()
    ok: bool = True


def command(name: str, **attrs: Any) -> Callable[[Callable[..., Outcome]], click.Command]:
    """A click command around a function that returns an Outcome; adds ``--project`` and ``--json``.

    A function with a parameter ``project`` gets the Path given, or None.
    """

    def decorate(function: Callable[..., Outcome]) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, **arguments: Any) -> None:
            def checked() -> Outcome:
                for argument in arguments.values():
                    _require_storable(argument)
                return function(**arguments)

            sys.exit(_run(checked, as_json))

        options = [
            click.option(
                "--project",
                type=click.Path(path_type=Path),
                metavar="DIR",
                help="Project folder. Default: PAMP_PROJECT, else found upward from the current folder.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line of stdout."),
        ]
        for option in reversed(options):
            run = option(run)
        return click.command(name, **attrs)(run)

    return decorate


def discover(project: Path | None) -> Project:
    """The project that ``--project`` names, or the one found."""
    return Project.discover(project)


def open_lake(project: Project) -> "Lake":
    """The project's lake; the catalogue of a remote one is brought up to date, and damage in it is told on stderr."""
    from pamp_pipelines.lake.catalogue import open_lake as open_

    return open_(project, lambda event: click.echo(f"warning: {event.data['message']}", err=True))


def open_catalog(project: Project) -> "Catalog":
    """The project's declarations. One that is broken stops what needs it, by its own problems, and nothing else."""
    from pamp_pipelines.declarations.usable import usable_catalog

    return usable_catalog(project)[0]


def print_json(data: dict[str, Any]) -> None:
    """One line of UTF-8 on stdout; what JSON does not know is written as text, a number that is none (NaN) as null."""
    click.echo(json.dumps(_writable(data), default=lambda value: printable(str(value)), ensure_ascii=False))


def _writable(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key) if isinstance(key, str) else key: _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _require_storable(argument: Any) -> None:
    """What no manifest, job or log may hold: names of files that are not UTF-8, and URLs that let somebody in."""
    for value in argument if isinstance(argument, tuple | list) else (argument,):
        if isinstance(value, str | Path):
            require_no_credentials(require_text(str(value)), "an argument")


def _run(function: Callable[[], Outcome], as_json: bool) -> int:
    try:
        outcome = function()
    except click.UsageError:
        raise
    except KeyboardInterrupt:
        return _fail("Interrupted", "interrupted", {}, as_json, INTERRUPTED)
    except PampError as error:
        return _fail(type(error).__name__, str(error), _details(error), as_json)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}. Nothing was published; make room or access, then run it again."
        return _fail(type(error).__name__, message, {}, as_json)
    except Exception as error:
        traceback.print_exc()
        return _fail(type(error).__name__, f"{error} (a fault of this program, please report it)", {}, as_json)
    if as_json:
        print_json({"ok": outcome.ok, **outcome.data})
    else:
        for line in outcome.lines:
            click.echo(printable(line))
    return 0 if outcome.ok else FAILED


def _fail(kind: str, message: str, details: dict[str, Any], as_json: bool, status: int = FAILED) -> int:
    message = printable(without_secrets(message))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    if as_json:
        print_json({"ok": False, "error": {"type": kind, "message": message, **details}})
    return status


def _details(error: PampError) -> dict[str, Any]:
    """The fields of an error that a program may want to branch on."""
    match error:
        case DeclarationError():
            return {"problems": [problem_data(problem) for problem in error.problems]}
        case MissingInput():
            return {"asset": error.asset, "partition": error.partition}
        case WorkerFailed():
            return {"exit_code": error.exit_code, "last_lines": list(error.last_lines)}
    return {}


def problem_data(problem: Any) -> dict[str, Any]:
    """A Problem as JSON data."""
    return {"file": str(problem.file), "line": problem.line, "field": problem.field, "message": problem.message}


class Number(click.FloatRange):
    """A number within a range; NaN, which no comparison finds outside of one, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


def require(condition: bool, message: str) -> None:
    """Raises UsageError (exit status 2) unless the command line makes sense."""
    if not condition:
        raise click.UsageError(message)


def optional_project(project: Path | None) -> Project | None:
    """The project, or None where there is none and none was asked for: plain paths need none.

    Raises:
        InputError: ``--project`` or PAMP_PROJECT names a folder that is no project.
    """
    try:
        return Project.discover(project)
    except InputError:
        if project is not None or os.environ.get("PAMP_PROJECT"):
            raise
        return None
