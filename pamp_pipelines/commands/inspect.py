"""``pamp inspect``: what token shards hold, and whether all their files agree."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import check_lines
from pamp_pipelines.commands.command import Outcome, command, open_lake, optional_project


@command("inspect", short_help="Documents of token shards decoded back, and every check made again.")
@click.argument("shards", type=click.Path(path_type=Path))
@click.option("--documents", type=click.IntRange(min=0), default=3, show_default=True, help="To decode on each side.")
@click.option("--verify", is_flag=True, help="Read every byte and compare it with the manifest.")
def inspect(project: Path | None, shards: Path, documents: int, verify: bool) -> Outcome:
    """Look into SHARDS, the folder of a tokenized_shards artifact: counts, first documents, agreement of all files."""
    from pamp_pipelines.lake.staging import here
    from pamp_pipelines.tokenization.inspect import inspect_shards

    if (its := optional_project(project)) is not None and its.lake_url is not None:
        open_lake(its)
        here(shards)
    found = inspect_shards(shards, documents, "hash" if verify else "size")
    lines = [f"tokenized_shards  {found.path}"]
    lines += [f"    {key}: {value}" for key, value in found.stats.items() if len(str(value)) <= 200]
    for document in found.documents:
        lines.append(f"    {document.side} {document.index} ({document.tokens} tokens): {document.text!r}")
    lines += check_lines(found.checks)
    if not verify:
        lines.append("    bytes were not compared with the manifest's SHA-256, only sizes; --verify reads them all")
    return Outcome({**found.model_dump(mode="json"), "bytes_compared": verify}, lines, ok=found.passed)
