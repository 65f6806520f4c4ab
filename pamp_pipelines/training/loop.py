"""What the pipeline adds to Megatron's training loop: before its first iteration, and at the end of each.

``pretrain`` has no callback, so the functions that it calls there are wrapped. Written for megatron-core 0.19.2.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from pamp_pipelines.errors import RunDiverged, VerificationFailed
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.telemetry import Reporter


def install(job: TrainJob, reporter: Reporter | None) -> None:
    """Wrap what ``pretrain`` calls when all is built, before the first iteration, and after each.

    Args:
        job: what is run.
        reporter: on the reporting rank.
    """
    _schedule_to_the_horizon(job)
    _report_construction(job, reporter)
    _validate_first(job, reporter)
    _end_where_not_finite(job)
    _end_of_iteration(job, reporter)


def _schedule_to_the_horizon(job: TrainJob) -> None:
    """Let the weight decay's schedule end with the horizon or the first data phase: Megatron lets it end with the run.

    It is constant, so that nothing else depends on its length, but one of another length is not loaded.
    """
    from megatron.training import training

    make = training.get_optimizer_param_scheduler

    @functools.wraps(make)
    def make_scheduler(*args: Any, **kwargs: Any) -> Any:
        scheduler = make(*args, **kwargs)
        scheduler.wd_incr_steps = job.scheduled_samples
        return scheduler

    training.get_optimizer_param_scheduler = make_scheduler


def _report_construction(job: TrainJob, reporter: Reporter | None) -> None:
    """Report what was built, and refuse to train what is not as declared: no step of it would be worth its price."""
    from megatron.training import training

    from pamp_pipelines.training.constructed import constructed
    from pamp_pipelines.training.departures import departures

    set_up = training.setup_model_and_optimizer

    @functools.wraps(set_up)
    def set_up_and_look(*args: Any, **kwargs: Any) -> Any:
        model, optimizer, scheduler = built = set_up(*args, **kwargs)
        facts = constructed(model, optimizer, scheduler)
        if reporter:
            reporter.construction(facts)
        # every rank looks at its own part
        if wrong := departures(job, facts):
            raise VerificationFailed(f"{job.name}: Megatron built something else than declared: {'; '.join(wrong)}")
        return built

    training.setup_model_and_optimizer = set_up_and_look


def _validate_first(job: TrainJob, reporter: Reporter | None) -> None:
    """Validate a run that starts from an imported model before its first step, as iteration 0.

    Megatron never validates at step 0. The weights are then exactly the imported ones: this loss can be compared with
    Hugging Face's on the same windows, and every later loss with the one that the run began with.
    """
    from megatron.training import get_args, training

    train = training.train

    @functools.wraps(train)
    def validate_and_train(
        forward_step: Any,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        train_iterator: Any,
        valid_iterator: Any,
        process_non_loss: Any,
        config: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        arguments = get_args()
        if arguments.iteration == 0 and job.pretrained_checkpoint is not None and job.heldout:
            # gathering parameters during the forward pass has nothing to wait for before the first step
            overlapped = training.should_disable_forward_pre_hook(arguments)
            if overlapped:
                training.disable_forward_pre_hook(model, param_sync=False)
            training.evaluate_and_print_results(
                "iteration 0", forward_step, valid_iterator, model, 0, process_non_loss, config
            )
            if overlapped:
                training.enable_forward_pre_hook(model)
            losses = reporter.validation_losses() if reporter else {}
            if reporter:
                reporter.iteration_done(0)
            _require_imported(job, losses)
        return train(
            forward_step,
            model,
            optimizer,
            scheduler,
            train_iterator,
            valid_iterator,
            process_non_loss,
            config,
            *args,
            **kwargs,
        )

    training.train = validate_and_train


def _require_imported(job: TrainJob, losses: Mapping[str, float]) -> None:
    """End the run on every rank, before its first step, where the weights are not those of the imported model.

    Args:
        job: says what the losses have to be.
        losses: by corpus; what the last rank gives counts, which alone has them.
    """
    if job.reference is None:
        return
    verdict = [job.reference.problem(losses)]
    torch.distributed.broadcast_object_list(verdict, src=torch.distributed.get_world_size() - 1)
    if verdict[0] is not None:
        raise VerificationFailed(
            f"{job.name}: before its first step the model is not the imported one: {verdict[0]}. No step was made. "
            f"Compare the two with `pamp train … --dry-run`, and materialise the checkpoint of {job.reference.source} "
            "again; `validation.step_0: report` trains all the same."
        )


def _end_where_not_finite(job: TrainJob) -> None:
    """End the run after a step whose gradients are not finite, before anything of it is reported or saved.

    Their norm is the sum over all ranks, so all of them end, and Megatron has brought it to the host in any case. A
    step that fp16's loss scaling has skipped is none.
    """
    from megatron.training import training

    step = training.train_step

    @functools.wraps(step)
    def step_and_look(*args: Any, **kwargs: Any) -> Any:
        _, skipped, _, _, _, grad_norm, *_ = result = step(*args, **kwargs)
        if not skipped and grad_norm is not None and not math.isfinite(grad_norm):
            raise RunDiverged(f"{job.name}: the norm of the gradients is {grad_norm}")
        return result

    training.train_step = step_and_look


def _end_of_iteration(job: TrainJob, reporter: Reporter | None) -> None:
    from megatron.training import get_args, training

    decide = training.checkpoint_and_decide_exit
    clock = _SaveClock(job)

    def after_iteration(
        model: Any, optimizer: Any, scheduler: Any, iteration: int, operations: float, context: Any, iterator: Any
    ) -> bool:
        args = get_args()
        if reporter:
            reporter.iteration_done(iteration)
        stop = decide(model, optimizer, scheduler, iteration, operations, context, iterator)
        saved = iteration % args.save_interval == 0
        # the last iteration is saved by pretrain itself
        if (
            not stop
            and not saved
            and iteration < args.train_iters
            and (iteration in job.cadence or clock.due(iteration))
        ):
            training.save_checkpoint_and_time(
                iteration, model, optimizer, scheduler, operations, context, train_data_iterator=iterator
            )
            saved = True
        if saved:
            clock.restart()
        if reporter:
            reporter.announce_checkpoint()
        validate_at_the_end(args, iteration)
        return stop

    training.checkpoint_and_decide_exit = after_iteration


class _SaveClock:
    """Whether the declared minutes have passed since the last save: rank 0 decides, for clocks differ.

    It is asked when metrics are logged, since ranks wait for each other then in any case.
    """

    def __init__(self, job: TrainJob) -> None:
        self._seconds = None if job.checkpoint.minutes is None else 60.0 * job.checkpoint.minutes
        self._interval = job.log_interval
        self._last = time.monotonic()

    def due(self, iteration: int) -> bool:
        """To be asked on all ranks for the same iteration."""
        if self._seconds is None or iteration % self._interval:
            return False
        passed = time.monotonic() - self._last >= self._seconds
        decision = torch.tensor([passed], dtype=torch.uint8, device=torch.cuda.current_device())
        torch.distributed.broadcast(decision, 0)
        return bool(decision.item())

    def restart(self) -> None:
        """A save has just been made."""
        self._last = time.monotonic()


def validate_at_the_end(args: Any, iteration: int) -> None:
    """Let the last iteration be validated inside the loop, once, before its checkpoint is written.

    Megatron validates after its loop too: a second time where the interval has just come round, and after the last save
    in any case, so that a process killed then would leave a complete run without its final validation loss.

    Args:
        args: Megatron's global arguments, changed in place.
        iteration: the last one that is done.
    """
    if iteration + 1 == args.train_iters:
        args.eval_interval = args.train_iters
    elif iteration == args.train_iters:
        args.do_valid = 0
