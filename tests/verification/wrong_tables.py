"""Every way in which one entry of an architecture's table can be wrong without changing a shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from pamp_pipelines.conversion import declared
from pamp_pipelines.conversion.architectures import Architecture, Entry, Op, architecture_of
from pamp_pipelines.conversion.import_work import run_import
from pamp_pipelines.conversion.job import plain_import_job
from pamp_pipelines.conversion.layout import Layout
from pamp_pipelines.lake.events import EventLog


def wrong_tables(config: dict[str, Any]) -> Iterator[tuple[str, Architecture]]:
    """Names and tables: sources of equal shape exchanged, within an entry and between two, and rows left ungrouped."""
    table = architecture_of(config)
    layout = Layout(table, config, table.dimensions(config))
    entries = [entry for entry in layout.entries if next(layout.blocks_of(entry), None) is not None]
    for entry in entries:
        for i, j in itertools.combinations(range(len(entry.sources)), 2):
            if entry.sources[i].axes == entry.sources[j].axes:
                names = f"{_short(entry.sources[i].name)} and {_short(entry.sources[j].name)} exchanged in {entry.key}"
                yield names, _with(table, {entry.key: _exchange_within(entry, i, j)})
        if entry.op is Op.GROUP_QKV:
            yield f"{_short(entry.key)} not grouped", _with(table, {entry.key: replace(entry, op=Op.JOIN)})
    for one, other in itertools.combinations(entries, 2):
        if one.axes == other.axes and one.layers == other.layers and len(one.sources) == len(other.sources) == 1:
            swapped = {one.key: replace(one, sources=other.sources), other.key: replace(other, sources=one.sources)}
            yield f"{_short(one.key)} and {_short(other.key)} exchanged", _with(table, swapped)


def _short(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _exchange_within(entry: Entry, i: int, j: int) -> Entry:
    sources = list(entry.sources)
    sources[i], sources[j] = sources[j], sources[i]
    return replace(entry, sources=tuple(sources))


def _with(table: Architecture, changed: dict[str, Entry]) -> Architecture:
    return replace(table, entries=tuple(changed.get(entry.key, entry) for entry in table.entries))


def import_with(table: Architecture, config: dict[str, Any], source: Path, target: Path) -> Path:
    """The checkpoint that the importer writes by a table, in this process."""
    layout = Layout(table, config, table.dimensions(config))
    job = plain_import_job(source, target, workers=1)
    with mock.patch.object(declared, "layout_of", return_value=layout) as asked:
        run_import(job, target, EventLog(target / "events.jsonl"))
    assert asked.called, "the importer took its table from elsewhere: nothing was wrong in this import"
    return target / "checkpoint" / "release"
