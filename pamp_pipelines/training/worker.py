"""One process of a training run: ``torchrun … -m pamp_pipelines.training.worker JOB.json``.

Starts from random weights, from the pretrained checkpoint, or from the newest complete checkpoint of the run, whichever
is the furthest. The exit status is 0 exactly when Megatron's tracker names the last iteration of the job.

Nothing heavy may be imported here: an asynchronous save spawns a process that imports this module again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError, PampError, RunDiverged
from pamp_pipelines.training.checkpoints import TRACKER, tracked_iteration
from pamp_pipelines.training.job import TrainJob, read_job
from pamp_pipelines.training.saved import Saved

EXIT_INPUT = 2
"""The job or a file that it names is wrong: a retry cannot help."""
EXIT_DIVERGED = 17
"""Numbers are not finite: a retry cannot help. Megatron's own status, for those on more than one device."""
EXIT_INCOMPLETE = 75
"""Stopped before the last iteration, e.g. by SIGTERM, with a checkpoint: a retry goes on (EX_TEMPFAIL)."""
_REASONS = {
    16: "a result was not finite or could not be reproduced; Megatron asks for a retry on another device",
    EXIT_DIVERGED: "a result was not finite, on more than one device: the run diverged, and a retry cannot help",
}
"""Exit statuses of Megatron's rerun_state_machine."""


def main(job_path: Path) -> int:
    """Run the job in this process; returns the exit status."""
    try:
        job = read_job(job_path)
        _check(job)
        if tracked_iteration(job.checkpoints_dir) == job.iterations:
            return 0
        return _train(job)
    except PampError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_DIVERGED if isinstance(error, RunDiverged) else EXIT_INPUT


def _check(job: TrainJob) -> None:
    from pamp_pipelines.conversion.architectures import unsupported

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != job.world_size:
        raise InputError(f"{job.name}: started with {world_size} processes; the job is for {job.world_size}")
    problems = unsupported(job.hf_config)
    if problems:
        raise InputError(f"{job.template_dir / 'config.json'}: cannot be trained: {'; '.join(problems)}")
    saved = Saved(job.checkpoints_dir)
    _check_resume_point(saved)
    if job.pretrained_checkpoint is not None and saved.tracker() is None:
        _check_weights(job, job.pretrained_checkpoint)


def _check_resume_point(saved: Saved) -> None:
    """What the tracker names must be whole: Megatron ends with status 0 on an empty tracker.

    ``run.train`` repairs the directory before it starts this process.
    """
    iteration = saved.tracker()
    if iteration is None and (saved.root / TRACKER).exists():
        raise InputError(f"{saved.root / TRACKER}: names no iteration; `pamp train` repairs it")
    if iteration is not None and (problem := saved.problem(iteration)) is not None:
        raise InputError(f"{problem}; `pamp train` resumes from the one before")


def _check_weights(job: TrainJob, start: Path) -> None:
    """The weights to start from are exactly those of the model: Megatron ignores what is too much, without a word."""
    from pamp_pipelines.conversion.export_plan import plan_export
    from pamp_pipelines.conversion.layout import layout_of
    from pamp_pipelines.conversion.torch_dist import checkpoint_dir, read_checkpoint

    plan_export(
        layout_of(job.hf_config), read_checkpoint(checkpoint_dir(start)), dtype=None, max_shard_bytes=sys.maxsize
    )


def _train(job: TrainJob) -> int:
    args, reporter = start_megatron(job)
    import torch
    from megatron.core.enums import ModelType
    from megatron.training import training
    from megatron.training.argument_utils import pretrain_cfg_container_from_args

    from pamp_pipelines.training import loop
    from pamp_pipelines.training.data import DatasetProvider
    from pamp_pipelines.training.forward import forward_step
    from pamp_pipelines.training.model import model_config

    loop.install(job, reporter)
    container = pretrain_cfg_container_from_args(args, model_config(args, job))
    stopped: Any = None
    try:
        training.pretrain(container, DatasetProvider(job, reporter), ModelType.encoder_or_decoder, forward_step)
    except SystemExit as exit_:
        # how Megatron ends after SIGTERM, and in several failing ways, often with status 0
        stopped = exit_.code
    except BaseException as error:  # torch's CheckpointException, of a failed save, is no Exception
        if reporter:
            reporter.stopped(f"{type(error).__name__}: {error}", tracked_iteration(job.checkpoints_dir))
        raise
    iteration = tracked_iteration(job.checkpoints_dir)
    complete = iteration == job.iterations
    if reporter:
        reporter.announce_checkpoint()
        if complete:
            reporter.finished(job.iterations)
        else:
            reporter.stopped(_REASONS.get(stopped, "the process was stopped before the last iteration"), iteration)
    torch.distributed.destroy_process_group()
    if complete:
        return 0
    return stopped if isinstance(stopped, int) and stopped else EXIT_INCOMPLETE


def start_megatron(job: TrainJob) -> tuple[Any, Any]:
    """Import Megatron, adapted to this machine, and parse the job's arguments into its global ones.

    Returns:
        Megatron's arguments, and a ``telemetry.Reporter`` on the rank that reports, None on the others.
    """
    # Megatron asks for it with tensor or context parallelism: kernels then start in the order of their launch
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    from pamp_pipelines.training import arithmetic, cpu_adapter, cpu_saver, optimizer_resume, remainders, wheel
    from pamp_pipelines.training.arguments import megatron_argv

    arithmetic.forbid_or_allow_tf32(job.precision)
    cuda = not cpu_adapter.install()
    optimizer_resume.install()
    remainders.install()
    wheel.skip_compilation()
    from megatron.training import global_vars
    from megatron.training.arguments import parse_and_validate_args

    sys.argv = [sys.argv[0], *megatron_argv(job, cuda=cuda)]
    args = parse_and_validate_args()
    if args.async_save and not cuda:
        cpu_saver.install()
    wheel.save_in_process(args)
    if args.rank != args.world_size - 1:
        return args, None
    from pamp_pipelines.training.data import heldout_tokens
    from pamp_pipelines.training.telemetry import Reporter, TeeWriter

    reporter = Reporter(job, heldout_tokens(job), **_device() if cuda else {})
    global_vars._GLOBAL_TENSORBOARD_WRITER = TeeWriter(global_vars.get_tensorboard_writer(), reporter)
    return args, reporter


def _device() -> dict[str, Any]:
    """This rank's GPU, for the reporter."""
    import torch

    from pamp_pipelines.training.energy import energy_meter

    return {
        "device": torch.cuda.get_device_name(),
        "peak_memory": torch.cuda.max_memory_allocated,
        "joules": energy_meter(str(torch.cuda.get_device_properties().uuid)),
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
