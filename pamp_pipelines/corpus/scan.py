"""The raw_corpus stage: read every document of new files once, count, and publish the corpus's manifest."""

import itertools
from typing import BinaryIO

import orjson

from pamp_pipelines.corpus.batches import read_batches
from pamp_pipelines.corpus.counted import CountedFiles
from pamp_pipelines.corpus.fingerprints import unchanged
from pamp_pipelines.corpus.job import KIND, STAGE_VERSION, CorpusJob
from pamp_pipelines.corpus.progress import Progress
from pamp_pipelines.corpus.readers import Document, read_documents
from pamp_pipelines.corpus.spans import Span
from pamp_pipelines.corpus.statistics import CorpusStatistics, FileCounter
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.hashing import sha256_json
from pamp_pipelines.lake.integrity import find_intact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.publish import lock, publish

_SAMPLE_CHARACTERS = 2000
_BATCH_BYTES = 4 << 20


def scan_corpus(job: CorpusJob, on_event: OnEvent = ignore) -> Artifact:
    """Describe a corpus; its text stays where it is.

    What was counted in a file is remembered by its content beside the artifact: of a corpus that grew, or of a scan
    that was killed, only the other files are read.

    The artifact holds ``statistics.json`` (totals and an entry with bytes, SHA-256, documents, characters and drops for
    each file), ``sample.jsonl`` (its first documents, cut at 2,000 characters) and ``lengths.png``. Its stats are
    ``files, bytes, documents, characters, dropped, scripts`` and, where a field is declared for them, ``languages``.

    Raises:
        InputError: a file is bad, changed since the job was made, or no document is left.
    """
    with lock(job.output, on_event):
        if found := find_intact(job.output, job.id, on_event):
            return found
        on_event(event("started", stage=KIND, corpus=job.corpus, files=len(job.files)))
        with publish(job.output, kind=KIND, id=job.id, declaration=job.declaration) as draft:
            statistics = _read(job, on_event)
            if not statistics.documents:
                raise InputError(
                    f"corpus {job.corpus!r}: no document in {len(job.files)} files "
                    f"(dropped: {dict(statistics.dropped) or 'none'}). Check `sources`, `format` and `text_field`."
                )
            with (draft.dir / "sample.jsonl").open("wb") as sample:
                _write_sample(job, sample)
            write_json(draft.dir / "statistics.json", statistics.as_json())
            statistics.draw(draft.dir / "lengths.png", f"{job.corpus}: {statistics.documents:,} documents")
            draft.stats.update(statistics.totals)
            draft.checks.append(_nothing_dropped(statistics))
    on_event(event("finished", stage=KIND, corpus=job.corpus, **draft.stats))
    return draft.artifact


def _read(job: CorpusJob, on_event: OnEvent) -> CorpusStatistics:
    statistics = CorpusStatistics()
    progress = Progress(on_event, KIND)
    fields = [job.language_field] if job.language_field else []
    key = sha256_json([STAGE_VERSION, job.rules.model_dump(), fields])
    with CountedFiles(job.output.parent / ".counts.json", key) as counted:
        for index, file in enumerate(job.files):
            with unchanged(file):
                counts = counted.find(file)
                if counts is None:
                    counter = FileCounter()
                    for batch in read_batches(file, job.rules, Span(file=index), _BATCH_BYTES, fields):
                        counter.add(batch)
                        progress.update(
                            documents=statistics.documents + counter.counts.documents,
                            megabytes=(statistics.characters + counter.counts.characters) / 1e6,
                            file=file.name,
                        )
                    counts = counter.counts
            counted.add(file, counts)
            statistics.add(file, counts)
    return statistics


def _write_sample(job: CorpusJob, stream: BinaryIO) -> None:
    """The first documents; their files were read whole before, so that nothing can be wrong with them now."""
    left = job.sample_rows
    for file in job.files:
        with unchanged(file):
            documents = (row for row in read_documents(file, job.rules) if isinstance(row, Document))
            for row in itertools.islice(documents, left):
                stream.write(orjson.dumps(_sample(row)) + b"\n")
                left -= 1
        if not left:
            return


def _nothing_dropped(statistics: CorpusStatistics) -> CheckResult:
    return CheckResult(
        name="nothing_dropped",
        passed=not statistics.dropped,
        severity="WARN",
        description="every row of the sources is a document",
        metadata={"dropped": dict(statistics.dropped), "documents": statistics.documents},
    )


def _sample(row: Document) -> dict[str, str | int]:
    text = row.text[:_SAMPLE_CHARACTERS]
    return {"file": row.file, "index": row.index, "characters": len(row.text), "text": text}
