"""``pamp new``: a commented YAML file to start a declaration from."""

import re
from importlib.resources import files
from pathlib import Path

import click

from pamp_pipelines.commands.command import Outcome, command, discover
from pamp_pipelines.errors import InputError

KINDS = ("corpus", "model", "training_config", "evaluation")


@command("new", short_help="Write a commented YAML file for a new declaration.")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
def new(project: Path | None, kind: str, name: str) -> Outcome:
    """Write assets/…/NAME.yaml for a KIND of declaration; NAME is its partition key.

    The first line names the JSON schema, so that editors complete and check the fields; the project's docs/schemas gets
    it where it is not there yet. What has to be filled in is marked with CHANGE; `pamp check` says what is still wrong.
    """
    from pamp_pipelines.declarations.base import MAX_NAME, NAME_PATTERN, NAME_RULE
    from pamp_pipelines.declarations.catalog import KINDS as DECLARATIONS
    from pamp_pipelines.declarations.catalog import folder_of
    from pamp_pipelines.declarations.files import TASKS, identifier
    from pamp_pipelines.declarations.name_clashes import name_clashes
    from pamp_pipelines.declarations.schema import SCHEMAS, schema_text
    from pamp_pipelines.declarations.usable import usable_catalog
    from pamp_pipelines.lake.atomic import write_text

    if not re.fullmatch(NAME_PATTERN, name) or len(name) > MAX_NAME:
        raise InputError(f"{name!r} cannot be a partition key: {NAME_RULE}, at most {MAX_NAME} characters.")
    found = discover(project)
    folder = folder_of(found, kind)
    file = folder / f"{name}.yaml"
    there = [entry for entry in sorted(folder.glob("[!.]*")) if not (entry.name == TASKS and kind == "evaluation")]
    twins = [entry for entry in there if name in (entry.name, entry.stem) or identifier(entry.stem) == identifier(name)]
    if twins:
        raise InputError(
            f"{twins[0]}: there is one of this name already (`-`, `_` and `.` count as the same); choose another."
        )
    catalog, _ = usable_catalog(found)
    if name in catalog.names(kind):
        raise InputError(f"{catalog.file_of(kind, name)}: declares {name!r} already; choose another name.")
    names = {of_kind: catalog.names(of_kind) for of_kind in DECLARATIONS}
    before = name_clashes(names, catalog.file_of)
    names[kind] = [*names[kind], name]
    if clashes := [one.message for one in name_clashes(names, catalog.file_of) if one not in before]:
        raise InputError(f"{file}: is not written: with it, {clashes[0]}")
    schema = found.root / SCHEMAS / f"{kind}.json"
    if not schema.exists():
        write_text(schema, schema_text(kind))
    write_text(file, (files("pamp_pipelines.commands") / "templates" / f"{kind}.yaml").read_text())
    lines = [f"{file}", "Fill in what says CHANGE, then run `pamp check` and press Reload definitions in the UI."]
    return Outcome({"file": str(file), "kind": kind, "name": name}, lines)
