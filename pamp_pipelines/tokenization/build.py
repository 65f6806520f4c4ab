"""The tokenized_shards stage: documents in, Megatron shards and the held-out text out, in bounded memory."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import orjson

from pamp_pipelines.corpus.fingerprints import unchanged
from pamp_pipelines.corpus.progress import Progress
from pamp_pipelines.corpus.readers import Dropped, read_documents
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact, find
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.publish import Draft, lock, publish
from pamp_pipelines.tokenization.engines import Engine, open_tokenizer
from pamp_pipelines.tokenization.heldout import held_out_rule
from pamp_pipelines.tokenization.indexed import IndexedWriter, Lengths, Tokens, dtype_for
from pamp_pipelines.tokenization.inspect import check_shards
from pamp_pipelines.tokenization.job import KIND, TokenizeJob

_BATCH_DOCUMENTS = 4096


def tokenize(job: TokenizeJob, on_event: OnEvent = ignore) -> Artifact:
    """Encode every document of a corpus, each followed by EOD.

    The artifact holds ``train.bin/.idx``, the tokenizer, and, unless nothing is held out, ``heldout.bin/.idx`` with the
    same documents as text in ``heldout.jsonl`` (``{"text": …}``, same order). Its stats are ``documents_read``,
    ``documents_written``, ``dropped`` by reason, ``train`` and ``heldout`` (``documents``, ``tokens``), ``dtype``,
    ``vocab_size``, ``eod``, ``eod_id``, ``tokenizer_sha256`` and speeds.

    Raises:
        InputError: a source is bad or changed since raw_corpus, or one side of the split is empty.
    """
    with lock(job.output):
        if found := find(job.output, job.id):
            return found
        on_event(event("started", stage=KIND, corpus=job.corpus, files=len(job.files)))
        engine = open_tokenizer(job.tokenizer.path)
        if engine.sha256 != job.tokenizer.sha256:
            raise InputError(f"{job.tokenizer.path}: the tokenizer was changed after the job was made; run again.")
        with publish(job.output, kind=KIND, id=job.id, inputs=job.inputs, declaration=job.declaration) as draft:
            _build(job, engine, draft, on_event)
    on_event(event("finished", stage=KIND, corpus=job.corpus, **draft.stats))
    return draft.artifact


class _Side:
    """One side of the split: gathers documents into batches, encodes and writes them."""

    def __init__(self, prefix: Path, engine: Engine, job: TokenizeJob) -> None:
        self._engine = engine
        self._eod_id = job.tokenizer.eod_id
        self._batch_bytes = job.batch_bytes
        self._texts: list[str] = []
        self._bytes = 0
        self.writer = IndexedWriter(prefix, dtype_for(engine.vocab_size))

    def add(self, text: str, size: int) -> None:
        self._texts.append(text)
        self._bytes += size
        if self._bytes >= self._batch_bytes or len(self._texts) >= _BATCH_DOCUMENTS:
            self.flush()

    def flush(self) -> None:
        if self._texts:
            self.writer.add(*with_eod(*self._engine.encode(self._texts), self._eod_id))
            self._texts, self._bytes = [], 0


def with_eod(tokens: Tokens, lengths: Lengths, eod_id: int) -> tuple[Tokens, Lengths]:
    """Append EOD to each document.

    Args:
        tokens: ids of all documents, [tokens].
        lengths: tokens in each, [documents].

    Returns:
        ids [tokens + documents] and lengths [documents], both with EOD.
    """
    out = np.empty(len(tokens) + len(lengths), tokens.dtype)
    start = 0
    # slice copies: three times as fast as numpy.insert or a boolean mask
    for shift, length in enumerate(lengths.tolist()):
        end = start + length
        out[start + shift : end + shift] = tokens[start:end]
        out[end + shift] = eod_id
        start = end
    return out, lengths + 1


def _build(job: TokenizeJob, engine: Engine, draft: Draft, on_event: OnEvent) -> None:
    is_held_out = held_out_rule(job.held_out.fraction, job.held_out.seed)
    progress = Progress(on_event, KIND, job.expected_documents)
    dropped: Counter[str] = Counter()
    read = size = 0
    with ExitStack() as stack:
        train = _Side(draft.dir / "train", engine, job)
        stack.enter_context(train.writer)
        sides = [train]
        if job.held_out.fraction:
            heldout = _Side(draft.dir / "heldout", engine, job)
            stack.enter_context(heldout.writer)
            heldout_text = stack.enter_context((draft.dir / "heldout.jsonl").open("wb"))
            sides.append(heldout)
        for file in job.files:
            with unchanged(file):
                for row in read_documents(file, job.rules):
                    read += 1
                    if isinstance(row, Dropped):
                        dropped[row.reason] += 1
                        continue
                    text_bytes = len(row.text.encode())
                    size += text_bytes
                    if is_held_out(row.text):
                        heldout_text.write(orjson.dumps({"text": row.text}) + b"\n")
                        heldout.add(row.text, text_bytes)
                    else:
                        train.add(row.text, text_bytes)
                    tokens = sum(side.writer.tokens for side in sides)
                    progress.update(documents=read, megabytes=size / 1e6, tokens=tokens, file=file.name)
        for side in sides:
            side.flush()
    counts = [{"documents": side.writer.documents, "tokens": side.writer.tokens} for side in sides]
    _require_documents(job, counts, dropped)
    seconds = progress.seconds
    tokens = sum(c["tokens"] for c in counts)
    engine.save(draft.dir)
    draft.stats.update(
        documents_read=read,
        documents_written=sum(c["documents"] for c in counts),
        dropped=dict(sorted(dropped.items())),
        train=counts[0],
        heldout=counts[1] if len(counts) > 1 else {"documents": 0, "tokens": 0},
        dtype=np.dtype(dtype_for(engine.vocab_size)).name,
        vocab_size=engine.vocab_size,
        eod=job.tokenizer.eod,
        eod_id=job.tokenizer.eod_id,
        tokenizer_sha256=engine.sha256,
        engine=engine.name,
        text_bytes=size,
        seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1),
        megabytes_per_second=round(size / 1e6 / seconds, 3),
    )
    draft.checks.extend(check_shards(draft.dir, draft.stats, engine, job.expected_documents))


def _require_documents(job: TokenizeJob, counts: list[dict[str, int]], dropped: Counter[str]) -> None:
    total = sum(c["documents"] for c in counts)
    if total == 0:
        raise InputError(
            f"corpus {job.corpus!r}: no document is left (dropped: {dict(dropped) or 'none'}). "
            "Check the sources, the format and the text field."
        )
    split = f"held_out.fraction is {job.held_out.fraction}, its seed {job.held_out.seed}"
    if len(counts) > 1 and counts[1]["documents"] == 0:
        raise InputError(
            f"corpus {job.corpus!r}: none of {total} documents is held out, so nothing can be validated ({split}). "
            "Raise the fraction, take another seed, or declare 0 to hold out nothing."
        )
    if counts[0]["documents"] == 0:
        raise InputError(f"corpus {job.corpus!r}: all {total} documents are held out ({split}). Lower the fraction.")
