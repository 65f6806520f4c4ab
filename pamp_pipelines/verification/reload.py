"""Megatron loads a checkpoint at other parallel sizes and saves it again: every weight must come back, bit for bit.

What is read again is read by the exporter, so this also proves that an export takes what such ranks save.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pamp_pipelines.conversion.compare import differences
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.conversion.torch_dist import read_checkpoint
from pamp_pipelines.declarations.training_config import Parallelism
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.verification import megatron_side
from pamp_pipelines.verification.divisions import RELOADED
from pamp_pipelines.verification.job import Division
from pamp_pipelines.verification.ranks import RankServer

_POSITIONS = 64
_LISTED = 5


@dataclass(frozen=True)
class Reload:
    """What a group of ranks is told.

    checkpoint: directory with `.metadata`. target: a directory to be made, for what they save. config: config.json of
    as many layers as the checkpoint holds.
    """

    checkpoint: Path
    target: Path
    config: dict[str, Any]
    division: Division


def reload(server: RankServer, task: Reload) -> list[str]:
    """What is wrong with the checkpoint that comes back; empty where nothing is.

    Args:
        server: made with ``rank_main``.
        task: what to load, and how.
    """
    task.target.mkdir(parents=True)
    failure = server.run(task, task.division.processes, task.target)
    if failure is not None:
        return [f"Megatron at {task.division}: {failure}"]
    try:
        found = differences(layout_of(task.config), read_checkpoint(task.checkpoint), read_checkpoint(_saved(task)))
    except InputError as error:
        return [f"saved by Megatron at {task.division}: {line}" for line in str(error).splitlines()]
    return [f"saved by Megatron at {task.division}: {difference}" for difference in found]


def reloaded_verdict(divisions: tuple[Division, ...], problems: list[str]) -> CheckResult:
    """The check `loads_at_other_sizes`."""
    names = ", ".join(map(str, divisions))
    more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    return CheckResult(
        name=RELOADED,
        passed=not problems,
        description="; ".join(problems[:_LISTED]) + more
        or f"Megatron loads it at {names} and saves every weight again, bit for bit",
        metadata={"divisions": [division.model_dump() for division in divisions]},
    )


def rank_main(task: Reload, rank: int) -> None:
    """One rank: builds its part of the model, loads it, saves it."""
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    division = task.division
    torch.set_num_threads(1)
    rendezvous = f"file://{task.target / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=division.processes)
    parallel_state.initialize_model_parallel(
        division.tensor, division.pipeline, expert_model_parallel_size=division.expert
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    model = megatron_side.build_model(_job(task), empty=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))  # what is not loaded must not look right by chance
    megatron_side.load_weights(model, task.checkpoint)
    if rank == 0:
        _saved(task).mkdir()
    torch.distributed.barrier()
    filesystem_async._results_queue = queue.Queue()  # Megatron's own lives in a process started for it
    dist_checkpointing.save(model.sharded_state_dict(metadata=megatron_side.key_metadata()), str(_saved(task)))
    torch.distributed.destroy_process_group()


def _saved(task: Reload) -> Path:
    return task.target / "saved"


def _job(task: Reload) -> TrainJob:
    division = task.division
    parallelism = Parallelism(
        tensor=division.tensor,
        pipeline=division.pipeline,
        expert=division.expert,
        sequence_parallel=division.tensor > 1,  # which Megatron demands of models with experts
        distributed_optimizer=False,
    )
    job = megatron_side.fp32_job(task.config, _POSITIONS * division.tensor, task.target)
    world = division.processes
    return job.model_copy(update={"parallelism": parallelism, "world_size": world, "global_batch_size": world})
