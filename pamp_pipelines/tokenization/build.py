"""The tokenized_shards stage: documents in, Megatron shards and the held-out text out, in bounded memory."""

import os
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pamp_pipelines.corpus.fingerprints import require_unchanged
from pamp_pipelines.corpus.progress import Progress
from pamp_pipelines.corpus.spans import plan_tasks
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import DiskFull, InputError, PampError, WorkerFailed
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.integrity import find_intact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.publish import lock, publish
from pamp_pipelines.launchers.disk import is_no_space
from pamp_pipelines.tokenization.array import end_other_array, make_pieces_on
from pamp_pipelines.tokenization.duplicates import Kept, first_occurrences, first_of_similar
from pamp_pipelines.tokenization.encoders import REFERENCE, choose_encoder, versioned
from pamp_pipelines.tokenization.engines import Engine, open_tokenizer
from pamp_pipelines.tokenization.filters import DUPLICATE, NEAR_DUPLICATE, minhash_of
from pamp_pipelines.tokenization.indexed import dtype_for
from pamp_pipelines.tokenization.inspect import check_shards
from pamp_pipelines.tokenization.job import KIND, TokenizeJob
from pamp_pipelines.tokenization.join import Part, join
from pamp_pipelines.tokenization.overlap import count_overlap
from pamp_pipelines.tokenization.pieces import FINGERPRINTS, HASHES, HELDOUT, TRAIN, Piece, Plan, Staging
from pamp_pipelines.tokenization.pool import Counters, make_pieces
from pamp_pipelines.tokenization.sample import compare_sample


def tokenize(job: TokenizeJob, on_event: OnEvent = ignore, *, profile: ComputeProfile | None = None) -> Artifact:
    """Encode every document of a corpus, each followed by EOD.

    The corpus is cut into tasks; worker processes leave a piece for each, beside the output. A build that was killed or
    cancelled goes on with the pieces that are complete. Pieces are joined in the order of the corpus, so the files are
    the same bytes for any number of workers.

    The artifact holds ``train.bin/.idx`` (several pairs above ``job.pair_bytes``), the tokenizer, and, unless nothing
    is held out, ``heldout.bin/.idx`` with the same documents as text in ``heldout.jsonl`` (``{"text": …}``, in order).
    Its stats are ``documents_read``, ``documents_written``, ``dropped`` by reason, ``train`` and ``heldout``
    (``documents``, ``tokens``, ``pairs``), ``dtype``, ``vocab_size``, ``eod``, ``eod_id``, ``tokenizer_sha256``,
    ``engine``, speeds and, where evaluations declare rows, ``overlap``: rows of each and how many are ``seen``.

    Args:
        job: what to make and where.
        on_event: called in this thread.
        profile: of a cluster: the pieces are made there, by ``world_size`` tasks of an array, and joined here.

    Raises:
        InputError: a source is bad or changed since raw_corpus, or one side of the split is empty.
        WorkerFailed: a worker process ended by itself; what it finished is kept.
        DiskFull: no space is left; finished pieces are kept.
    """
    with lock(job.output):
        if found := find_intact(job.output, job.id, on_event):
            return found
        on_event(event("started", stage=KIND, corpus=job.corpus, files=len(job.files)))
        reference = open_tokenizer(job.tokenizer.path)
        if reference.sha256 != job.tokenizer.sha256:
            raise InputError(f"{job.tokenizer.path}: the tokenizer was changed after the job was made; run again.")
        staging = Staging.of(job.output)
        try:
            artifact = _build(job, staging, reference, on_event, profile)
        except (WorkerFailed, DiskFull):
            raise  # from an array, whose other tasks may still write; the next build goes on with the pieces
        except (OSError, PampError) as error:
            if is_no_space(error):
                kept = staging.keep_finished()
                raise DiskFull(job.output.parent, _kept(kept, staging)) from error
            # after a kill or a cancel the next build goes on with the pieces; these are of no use
            if isinstance(error, PampError):
                staging.remove()
            raise
        staging.remove()
    on_event(event("finished", stage=KIND, corpus=job.corpus, **artifact.manifest.stats))
    return artifact


def _kept(pieces: int, staging: Staging) -> str:
    return f"That goes on with {pieces} finished pieces in {staging.folder}, which may be deleted." if pieces else ""


def _build(
    job: TokenizeJob, staging: Staging, reference: Engine, on_event: OnEvent, profile: ComputeProfile | None
) -> Artifact:
    tokens = tuple(require_unchanged(file) for file in job.files)
    tasks = tuple(plan_tasks(job.files, job.rules, job.task_bytes))
    # another number of workers goes on with the same pieces
    plan = Plan(
        job=job.model_copy(update={"workers": None, "benchmarks": ()}),
        encoder=choose_encoder(reference, on_event),
        tokens=tokens,
        tasks=tasks,
    )
    pieces, exact, seconds = _make_pieces(plan, staging, reference, worker_count(job), on_event, profile)
    if not exact.passed:
        on_event(
            event("warning", message=f"{exact.description}: not so for {exact.metadata}; {reference.name} is used")
        )
        plan = plan.model_copy(update={"encoder": REFERENCE})
        pieces, exact, seconds = _make_pieces(plan, staging, reference, worker_count(job), on_event, profile)
    with publish(job.output, kind=KIND, id=job.id, inputs=job.inputs, declaration=job.declaration) as draft:
        sides, dropped = _join(plan, staging, pieces, draft.dir)
        _require_documents(job, sides, dropped)
        reference.save(draft.dir)
        text_bytes = sum(piece.text_bytes for piece in pieces)
        draft.stats.update(
            documents_read=sum(piece.read for piece in pieces),
            documents_written=sum(side["documents"] for side in sides.values()),
            dropped=dict(sorted(dropped.items())),
            **sides,
            dtype=np.dtype(dtype_for(reference.vocab_size)).name,
            vocab_size=reference.vocab_size,
            eod=job.tokenizer.eod,
            eod_id=job.tokenizer.eod_id,
            tokenizer_sha256=reference.sha256,
            engine=exact.metadata["encoder"],
            text_bytes=text_bytes,
            seconds=round(seconds, 3),
            tokens_per_second=round(sum(side["tokens"] for side in sides.values()) / seconds, 1),
            megabytes_per_second=round(text_bytes / 1e6 / seconds, 3),
        )
        if job.benchmarks:
            train = [draft.dir / pair["name"] for pair in sides[TRAIN]["pairs"]]
            dtype = dtype_for(reference.vocab_size)
            overlap = count_overlap(job.benchmarks, train, dtype, reference, worker_count(job), on_event)
            draft.stats["overlap"] = overlap
        draft.checks.extend([*check_shards(draft.dir, draft.stats, reference, job.expected_documents), exact])
    return draft.artifact


def _make_pieces(
    plan: Plan, staging: Staging, reference: Engine, workers: int, on_event: OnEvent, profile: ComputeProfile | None
) -> tuple[list[Piece], CheckResult, float]:
    """All pieces, whether they are what the reference would have made, and the seconds that this took."""
    cluster = profile if profile and profile.launcher != "local" else None
    end_other_array(plan, staging, cluster)
    with staging.opened(plan):
        progress = Progress(on_event, KIND, plan.job.expected_documents)
        found = {task: piece for task in range(len(plan.tasks)) if (piece := staging.finished(task))}
        missing = [task for task in range(len(plan.tasks)) if task not in found]
        if found:
            message = f"{len(found)} of {len(plan.tasks)} pieces of an earlier build are complete and used"
            on_event(event("started", stage=KIND, resumed=len(found), message=message))
        counters = Counters(
            progress,
            rows=sum(piece.read for piece in found.values()),
            text_bytes=sum(piece.text_bytes for piece in found.values()),
            tokens=sum(piece.train[1] + piece.heldout[1] for piece in found.values()),
        )
        if plan.encoder != REFERENCE and (workers > 1 or cluster):
            staging.offer_tokenizer(reference.fast_json)
        if cluster:
            make_pieces_on(cluster, plan, staging, len(missing), counters, on_event)
        else:
            make_pieces(plan, staging, missing, workers, counters)
        pieces = [staging.finished(task) for task in range(len(plan.tasks))]
        compared, different = compare_sample(plan, staging, reference)
        name = reference.name if plan.encoder == REFERENCE else versioned(plan.encoder)
        exact = CheckResult(
            name="ids_are_the_references",
            passed=different is None,
            description=f"a sample of the documents has the ids that {reference.name} gives",
            metadata={"encoder": name, "compared": compared, "different": (different or "")[:200]},
        )
        return [piece for piece in pieces if piece], exact, progress.seconds


def worker_count(job: TokenizeJob) -> int:
    """Processes that the job asks for; else as many as this process may use cores."""
    return job.workers or len(os.sched_getaffinity(0))


def _join(
    plan: Plan, staging: Staging, pieces: list[Piece], folder: Path
) -> tuple[dict[str, dict[str, Any]], Counter[str]]:
    """Write the files; gives what each side holds, and the drops by reason."""
    dropped: Counter[str] = Counter()
    for piece in pieces:
        dropped.update(piece.dropped)
    sides: dict[str, dict[str, Any]] = {}
    tasks = range(len(plan.tasks))
    found: dict[str, list[Kept | None]] = {side: [None] * len(tasks) for side in (TRAIN, HELDOUT)}
    if any(step.compares for step in plan.job.filters):
        # held-out documents first: what is similar to them, or has a field that decided otherwise, may be in training
        order = [(side, task) for side in (HELDOUT, TRAIN) for task in tasks]
        different = first_occurrences([staging.file(task, f"{side}.{HASHES}") for side, task in order])
        masks = different
        if minhash := minhash_of(plan.job.filters):
            fingerprints = [staging.file(task, f"{side}.{FINGERPRINTS}") for side, task in order]
            masks = [a & b for a, b in zip(different, first_of_similar(fingerprints, minhash.num_buckets), strict=True)]
        for (side, task), unequal, mask in zip(order, different, masks, strict=True):
            found[side][task] = mask
            dropped[DUPLICATE] += int(np.count_nonzero(~unequal))
            dropped[NEAR_DUPLICATE] += int(np.count_nonzero(unequal & ~mask))
    for side in (TRAIN, HELDOUT):
        kept = found[side]
        if side == HELDOUT and not plan.job.held_out.fraction:
            sides[side] = {"documents": 0, "tokens": 0, "pairs": []}
            continue
        parts = [
            Part(staging.file(task, f"{side}.bin"), staging.file(task, f"{side}.lengths"), kept[task]) for task in tasks
        ]
        pairs = join(
            parts,
            folder,
            side,
            dtype_for(plan.job.tokenizer.vocab_size),
            plan.job.pair_bytes if side == TRAIN else None,
            worker_count(plan.job),
        )
        sides[side] = {
            "documents": sum(pair.documents for pair in pairs),
            "tokens": sum(pair.tokens for pair in pairs),
            "pairs": [asdict(pair) for pair in pairs],
        }
        if side == HELDOUT:
            _join_text([staging.file(task, "heldout.jsonl") for task in tasks], kept, folder / "heldout.jsonl")
    return sides, +dropped


def _join_text(files: list[Path], kept: list[Kept | None], target: Path) -> None:
    with target.open("wb") as out:
        for path, mask in zip(files, kept, strict=True):
            with path.open("rb") as stream:
                if mask is None:
                    shutil.copyfileobj(stream, out, 1 << 20)
                else:
                    out.writelines(line for line, stays in zip(stream, mask.tolist(), strict=True) if stays)


def _require_documents(job: TokenizeJob, sides: dict[str, dict[str, Any]], dropped: Counter[str]) -> None:
    total = sum(side["documents"] for side in sides.values())
    if total == 0:
        raise InputError(
            f"corpus {job.corpus!r}: no document is left (dropped: {dict(dropped) or 'none'}). "
            "Check the sources, the format, the text field and the filters."
        )
    left = f"{total} documents"
    if dropped:
        left += f" that are left (dropped: {dict(dropped)})"
    split = f"held_out.fraction is {job.held_out.fraction}, its seed {job.held_out.seed}"
    if job.held_out.fraction and sides[HELDOUT]["documents"] == 0:
        raise InputError(
            f"corpus {job.corpus!r}: none of {left} is held out, so nothing can be validated ({split}). "
            f"Raise the fraction, take another seed, {'check the filters, ' if dropped else ''}"
            "or declare 0 to hold out nothing."
        )
    if sides[TRAIN]["documents"] == 0:
        advice = "Lower the fraction" + (", or check the filters and the sources." if dropped else ".")
        raise InputError(f"corpus {job.corpus!r}: all {left} are held out ({split}). {advice}")
