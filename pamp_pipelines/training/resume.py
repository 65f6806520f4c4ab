"""What a run may not change between two starts: its name stays, and so must everything that its checkpoints mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.training.job import TrainJob, read_job
from pamp_pipelines.training.saved import Saved


class ResumeRefused(InputError):
    """The checkpoints of a version belong to another run."""


# what would go on with other data, another order of it, or weights that mean something else
_FIXED: tuple[tuple[str, Callable[[TrainJob], Any]], ...] = (
    ("data (content of the shards)", lambda job: [ref.content for ref in job.inputs if ref.kind == "tokenized_shards"]),
    ("number of corpora", lambda job: len(job.train)),
    ("weights of the corpora", lambda job: [shards.weight for shards in job.train]),
    ("sequence_length", lambda job: job.sequence_length),
    ("global_batch_size", lambda job: job.global_batch_size),
    ("iterations", lambda job: job.iterations),
    ("horizon", lambda job: job.horizon),
    ("data phases", lambda job: [(phase.first_sample, phase.samples, phase.seed) for phase in job.phases]),
    ("tokenizer (vocabulary size)", lambda job: job.vocab_size),
    ("tokenizer (end-of-document token)", lambda job: job.eod_id),
    ("architecture (config.json)", lambda job: job.hf_config),
    ("document_attention", lambda job: job.document_attention),
    ("data_seed", lambda job: job.data_seed),
    ("parallelism.expert", lambda job: job.parallelism.expert),
    ("precision", lambda job: job.precision),
    # the optimizer's state is saved in another form
    ("state_precision", lambda job: job.state_precision),
    ("offload.optimizer", lambda job: job.offload.optimizer),
)


def changes(before: TrainJob, after: TrainJob) -> list[str]:
    """What differs of that which must not, each with both values.

    Tensor, pipeline and data parallel sizes, micro batch, recomputation and cadences may change.
    """
    found = []
    for name, value in _FIXED:
        old, new = value(before), value(after)
        if old != new:
            short = f"{name}: {_short(old)} -> {_short(new)}"
            found.append(_keys(name, old, new) if isinstance(old, dict) else short)
    return found


def _short(value: Any) -> Any:
    """Hashes are told apart by their first digits."""
    if isinstance(value, list):
        return [_short(item) for item in value]
    return value[:12] if isinstance(value, str) and len(value) == 64 else value


def _keys(name: str, old: Any, new: Any) -> str:
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return f"{name}: " + ", ".join(f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in keys)


def require_same_run(job: TrainJob) -> None:
    """Refuse to go on from checkpoints of another run; a directory without checkpoints takes any job.

    Raises:
        ResumeRefused: names what changed.
    """
    file = job.run_dir / "job.json"
    if not file.is_file() or not Saved(job.checkpoints_dir).steps():
        return
    try:
        before = read_job(file)
    except InputError as error:
        raise ResumeRefused(
            f"{error}\nIt says which run the checkpoints of {job.run_dir} are of. Put it back from a copy, or begin a "
            "new version (`pamp train … --fresh`)."
        ) from None
    if found := changes(before, job):
        raise ResumeRefused(
            f"{job.run_dir}: its checkpoints are of another run: {'; '.join(found)}. Take the change back to resume, "
            "or begin a new version (`pamp train … --fresh`)."
        )
