"""``pamp evict``: keep exports within a budget."""

from pathlib import Path

import click

from pamp_pipelines.commands.command import Outcome, command, discover, open_lake
from pamp_pipelines.text import size_of


@command("evict", short_help="Remove exports, the least recently used first, down to a budget.")
@click.option("--budget", required=True, metavar="SIZE", help="What exports may take in all, e.g. 500GB.")
def evict(project: Path | None, budget: str) -> Outcome:
    """Remove exports until all together fit into the budget.

    An export is a cache: it is made again, bit for bit, from its checkpoint when it is scored again. One that is being
    scored, or was made and waits to be, is never removed. `export_budget_gb` in a profile does this by itself.
    """
    from pamp_pipelines.declarations.catalog import read_catalog
    from pamp_pipelines.evaluation.export_cache import evict as run
    from pamp_pipelines.evaluation.export_cache import pending_exports

    size = _bytes(budget)
    found = discover(project)
    lake = open_lake(found)
    catalog, _ = read_catalog(found)  # what is wrong with a declaration is no reason to let a disk run full
    done = run(lake, size, pending_exports(catalog, lake))
    data = {
        "evicted": [{"path": str(path), "bytes": size} for path, size in done.evicted],
        "leased": [str(path) for path in done.leased],
        "pending": [str(path) for path in done.pending],
        "bytes_left": done.bytes_left,
    }
    lines = [f"evicted  {size:>16,}  {path}" for path, size in done.evicted]
    lines += [f"in use   {path}" for path in done.leased]
    lines += [f"pending  {path}" for path in done.pending]
    return Outcome(data, [*lines, f"exports take {done.bytes_left:,} bytes"])


def _bytes(text: str) -> int:
    if (size := size_of(text)) is None:
        raise click.UsageError(f"--budget {text!r}: expected a size, e.g. 500GB")
    return size
