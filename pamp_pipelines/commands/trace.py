"""``pamp trace``: from an artifact back to everything it was made of."""

from pathlib import Path

import click

from pamp_pipelines.commands.command import Outcome, command, discover, open_lake


@command("trace", short_help="From an artifact back to everything it was made of.")
@click.argument("artifact")
@click.option("--files", is_flag=True, help="List the files of each with their bytes and SHA-256, down to the sources.")
@click.option("--verify", is_flag=True, help="Read every file and compare it with its manifest.")
def trace(project: Path | None, artifact: str, files: bool, verify: bool) -> Outcome:
    """Walk from ARTIFACT (a folder, a checkpoint key, or the start of an id) back to corpus, tokenizer and source.

    Only manifests are read, so that this works on a copied lake and without Dagster. The walk fails if an ancestor was
    changed since.
    """
    from pamp_pipelines.evaluation.trace import describe, file_lines
    from pamp_pipelines.evaluation.trace import trace as walk

    found = discover(project)
    ancestors = walk(artifact, open_lake(found))
    data = [
        {
            "depth": ancestor.depth,
            **ancestor.ref.model_dump(),
            "manifest": str(ancestor.path) if ancestor.path else None,
            "changed": ancestor.changed,
            "producer": ancestor.manifest.producer if ancestor.manifest else None,
            "declaration": ancestor.manifest.declaration if ancestor.manifest else None,
        }
        for ancestor in ancestors
    ]
    lines: list[str] = []
    for ancestor, entry, line in zip(ancestors, data, describe(ancestors, found.root), strict=True):
        lines.append(line)
        if files or verify:
            listed = list(file_lines(ancestor, found.root, "hash" if verify else "none"))
            entry["files"] = listed
            lines += [f"{'  ' * ancestor.depth}    {text}" for text in listed]
    changed = any(ancestor.changed for ancestor in ancestors)
    return Outcome({"ancestors": data}, lines, ok=not changed)
