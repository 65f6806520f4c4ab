"""``pamp schema``: JSON schemas of the declarations."""

from pathlib import Path

import click

from pamp_pipelines.commands.command import Outcome, command, discover


@command("schema", short_help="JSON schemas of the declarations, for editors.")
@click.argument("kind", required=False)
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Write one file per kind there.")
def schema(project: Path | None, kind: str | None, output: Path | None) -> Outcome:
    """Print the schema of one KIND of declaration, or write all into a folder.

    KIND is corpus, model, training_config, evaluation or profile. Without KIND and --output the project's
    docs/schemas is written.
    """
    from pamp_pipelines.declarations import schema as schemas
    from pamp_pipelines.lake.occupied import require_outside_artifacts

    if kind is not None and output is None:
        return Outcome({"schema": schemas.schema(kind)}, [schemas.schema_text(kind).rstrip()])
    if output is not None:
        require_outside_artifacts(output / "any")
    files = schemas.write_schemas(output or discover(project).root / schemas.SCHEMAS)
    return Outcome({"files": [str(file) for file in files]}, map(str, files))
