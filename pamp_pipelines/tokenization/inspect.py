"""Looking into shards: documents decoded back, and whether .bin, .idx and manifest agree."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Verify, read_artifact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.tokenization.engines import Engine, open_tokenizer
from pamp_pipelines.tokenization.indexed import IndexedReader, bin_path
from pamp_pipelines.tokenization.job import KIND

_SAMPLE = 8
_SHOWN_CHARACTERS = 300
_THREADS = 4
_BLOCK = 1 << 20
"""Tokens or documents looked at in one go: some 16 MB of memory."""


class DecodedDocument(BaseModel):
    """A document of the shards. ``text`` is decoded from its ids, EOD included, and cut for display."""

    model_config = ConfigDict(frozen=True)

    side: str
    index: int
    tokens: int
    text: str


class Inspection(BaseModel):
    """What shards hold, and every check made again."""

    model_config = ConfigDict(frozen=True)

    path: Path
    id: str
    stats: dict[str, Any]
    documents: tuple[DecodedDocument, ...]
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.checks if c.severity == "ERROR")


def inspect_shards(path: Path, documents: int = 5, verify: Verify = "size") -> Inspection:
    """Open shards, decode their first documents and check that all files agree.

    Args:
        path: folder of a tokenized_shards artifact.
        documents: documents to decode on each side of the split.
        verify: ``hash`` reads every byte.

    Raises:
        InputError: not tokenized shards, or a file is not of its format.
        VerificationFailed: files do not match the manifest.
    """
    artifact = read_artifact(path, verify)
    if artifact.kind != KIND:
        raise InputError(f"{path}: holds {artifact.kind}, not {KIND}.")
    engine = open_tokenizer(path)
    stats = artifact.manifest.stats
    return Inspection(
        path=path,
        id=artifact.id,
        stats=stats,
        documents=tuple(
            d
            for side in _sides(stats)
            for d in decode_documents(path, side, prefixes(stats, side)[0], engine, documents)
        ),
        checks=tuple(check_shards(path, stats, engine)),
    )


def decode_documents(path: Path, side: str, prefix: str, engine: Engine, count: int) -> list[DecodedDocument]:
    """The first ``count`` documents of a pair of files."""
    reader = IndexedReader(path / prefix)
    shown = []
    for index in range(min(count, len(reader))):
        ids = reader[index]
        # a character is rarely more than four tokens
        text = engine.decode(ids[: 4 * _SHOWN_CHARACTERS].tolist())[:_SHOWN_CHARACTERS]
        shown.append(DecodedDocument(side=side, index=index, tokens=len(ids), text=text))
    return shown


def check_shards(
    path: Path, stats: dict[str, Any], engine: Engine, expected_documents: int | None = None
) -> list[CheckResult]:
    """Verdicts on finished shards; reads every token once.

    Args:
        path: folder with the files.
        stats: as the manifest records them.
        engine: the tokenizer that made them.
        expected_documents: rows that raw_corpus counted.
    """
    readers = {side: [IndexedReader(path / name) for name in prefixes(stats, side)] for side in _sides(stats)}
    every = [reader for of_side in readers.values() for reader in of_side]
    scans = [_scan(reader, stats["eod_id"]) for reader in every]
    dropped = sum(stats["dropped"].values())
    in_files = sum(len(reader) for reader in every)
    agree = (
        stats["documents_read"] == stats["documents_written"] + dropped
        and stats["documents_written"] == in_files
        and all(sum(map(len, of)) == stats[side]["documents"] for side, of in readers.items())
        and all(sum(len(r.tokens) for r in of) == stats[side]["tokens"] for side, of in readers.items())
        and expected_documents in (None, stats["documents_read"])
    )
    highest = max(scan["highest"] for scan in scans)
    unended = sum(scan["unended"] for scan in scans)
    inside = sum(scan["inside"] for scan in scans)
    return [
        CheckResult(
            name="counts_agree",
            passed=agree,
            description="documents read = written + dropped; manifest, index and raw_corpus count alike",
            metadata={
                "read": stats["documents_read"],
                "written": stats["documents_written"],
                "in_files": in_files,
                "dropped": stats["dropped"],
                "raw_corpus": expected_documents,
            },
        ),
        CheckResult(
            name="index_agrees",
            passed=all(_index_agrees(reader) for reader in every),
            description="offsets are the running sum of lengths and fill .bin; every document is one sequence",
        ),
        CheckResult(
            name="documents_end_with_eod",
            passed=unended == 0,
            description="the last token of each document is EOD",
            metadata={"eod": stats["eod"], "eod_id": stats["eod_id"], "without": unended},
        ),
        CheckResult(
            name="ids_within_vocabulary",
            passed=highest < stats["vocab_size"],
            description="no id is above the tokenizer's highest",
            metadata={"highest_id": highest, "vocab_size": stats["vocab_size"]},
        ),
        CheckResult(
            name="eod_only_at_the_end",
            passed=inside == 0,
            severity="WARN",
            description="EOD inside a document: its text spells the token, and the tokenizer turns it into the id",
            metadata={"inside": inside},
        ),
        *_held_out_checks(path, stats, engine, readers),
    ]


def _sides(stats: dict[str, Any]) -> list[str]:
    return ["train", "heldout"] if stats["heldout"]["documents"] else ["train"]


def prefixes(stats: dict[str, Any], side: str) -> list[str]:
    """Names of the pairs of files of ``train`` or ``heldout``, without ``.bin`` and ``.idx``, in order."""
    return [pair["name"] for pair in stats[side].get("pairs", [])] or [side]


def _scan(reader: IndexedReader, eod_id: int) -> dict[str, int]:
    """Highest id, documents that do not end with EOD, and EODs elsewhere."""
    # numpy lets go of the interpreter, so threads share the work
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda span: _scan_span(reader, eod_id, *span), _document_spans(reader)))
    highest, eods, ended = (list(column) for column in zip((-1, 0, 0), *found, strict=True))
    return {"highest": max(highest), "unended": len(reader) - sum(ended), "inside": sum(eods) - sum(ended)}


def _document_spans(reader: IndexedReader) -> Iterator[tuple[int, int, int]]:
    """First and last + 1 of documents that hold some ``_BLOCK`` tokens together, and the offset of their first token.

    Offsets are summed here, so that wrong ones in the index are no wrong tokens.
    """
    count = min(_BLOCK, max(1, _BLOCK * len(reader) // max(1, len(reader.tokens))))
    offset = 0
    for first in range(0, len(reader), count):
        last = min(first + count, len(reader))
        yield first, last, offset
        offset += int(reader.lengths[first:last].sum(dtype=np.int64))


def _scan_span(reader: IndexedReader, eod_id: int, first: int, last: int, offset: int) -> tuple[int, int, int]:
    """Highest id, EODs, and documents that end with EOD.

    Reads .bin block by block, since the pages of a memory map would count as memory of this process.
    """
    lengths = reader.lengths[first:last]
    highest, eods, ended, position = -1, 0, 0, 0
    last_tokens = np.cumsum(lengths, dtype=np.int64) - 1
    total = int(last_tokens[-1]) + 1
    with bin_path(reader.prefix).open("rb") as stream:
        stream.seek(offset * reader.dtype.itemsize)
        while position < total:
            block = np.fromfile(stream, reader.tokens.dtype, min(_BLOCK, total - position))
            if not len(block):
                break
            highest = max(highest, int(block.max()))
            is_eod = block == eod_id
            eods += int(np.count_nonzero(is_eod))
            a, b = np.searchsorted(last_tokens, [position, position + len(block)])
            ended += int(np.count_nonzero(is_eod[last_tokens[a:b] - position]))
            position += len(block)
    return highest, eods, ended


def _index_agrees(reader: IndexedReader) -> bool:
    offset = 0
    for first in range(0, len(reader), _BLOCK):
        block = slice(first, min(first + _BLOCK, len(reader)))
        lengths = reader.lengths[block]
        ends = offset + np.cumsum(lengths, dtype=np.int64) * reader.dtype.itemsize
        starts = ends - lengths.astype(np.int64) * reader.dtype.itemsize
        numbers = np.arange(first, first + len(lengths))
        if (
            int(lengths.min()) < 1
            or not np.array_equal(reader.pointers[block], starts)
            or not np.array_equal(reader.document_indices[block], numbers)
        ):
            return False
        offset = int(ends[-1])
    return len(reader.document_indices) == len(reader) + 1 and int(reader.document_indices[-1]) == len(reader)


def _held_out_checks(
    path: Path, stats: dict[str, Any], engine: Engine, readers: dict[str, list[IndexedReader]]
) -> list[CheckResult]:
    if "heldout" not in readers:
        return []
    (reader,) = readers["heldout"]
    texts = 0
    different = []
    with (path / "heldout.jsonl").open("rb") as stream:
        for index, line in enumerate(stream):
            texts += 1
            if index < _SAMPLE:
                # one document alone, so that an error of batching or order shows
                ids, _ = engine.encode([orjson.loads(line)["text"]])
                if index >= len(reader) or not np.array_equal(reader[index], [*ids, stats["eod_id"]]):
                    different.append(index)
    return [
        CheckResult(
            name="held_out_not_empty",
            passed=len(reader) > 0 and texts == len(reader),
            description="held-out documents exist, and heldout.jsonl has the text of each",
            metadata={"documents": len(reader), "texts": texts},
        ),
        CheckResult(
            name="held_out_text_matches",
            passed=not different,
            description=f"encoding the first {_SAMPLE} held-out texts again gives the stored ids",
            metadata={"different": different},
        ),
    ]
