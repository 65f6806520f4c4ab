"""What the pipeline adds to Megatron's training loop at the end of an iteration.

``pretrain`` has no callback, so the function that it calls there is wrapped. Written for megatron-core 0.19.2.
"""

from __future__ import annotations

from typing import Any

from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.telemetry import Reporter


def install(job: TrainJob, reporter: Reporter | None) -> None:
    """Wrap ``checkpoint_and_decide_exit``.

    Args:
        job: what is run.
        reporter: on the reporting rank.
    """
    from megatron.training import get_args, training

    decide = training.checkpoint_and_decide_exit

    def after_iteration(
        model: Any, optimizer: Any, scheduler: Any, iteration: int, operations: float, context: Any, iterator: Any
    ) -> bool:
        args = get_args()
        if reporter:
            reporter.iteration_done(iteration)
        stop = decide(model, optimizer, scheduler, iteration, operations, context, iterator)
        # the last iteration is saved by pretrain itself
        if not stop and iteration in job.cadence and iteration % args.save_interval and iteration < args.train_iters:
            training.save_checkpoint_and_time(
                iteration, model, optimizer, scheduler, operations, context, train_data_iterator=iterator
            )
        if reporter:
            reporter.announce_checkpoint()
        validate_at_the_end(args, iteration)
        return stop

    training.checkpoint_and_decide_exit = after_iteration


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
