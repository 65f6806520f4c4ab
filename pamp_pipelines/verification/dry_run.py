"""What a training job's model would be: built by Megatron as training builds it, compared with Hugging Face's."""

from __future__ import annotations

from typing import Any

from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.requirements import require_megatron
from pamp_pipelines.verification.construction import Built, Construction, construction_verdict
from pamp_pipelines.verification.job import DryRunFacts, DryRunJob
from pamp_pipelines.verification.parity import ON_CPU
from pamp_pipelines.verification.process import run, scratch

WORKER = "pamp_pipelines.verification.dry_run_worker"
FACTS = "facts.json"


def dry_run(job: TrainJob, on_event: OnEvent = ignore) -> tuple[dict[str, Any], list[CheckResult]]:
    """Build the model of a job and train nothing. Takes no memory for weights, and no GPU.

    Args:
        job: the training job; its `template_dir` holds the config.json that Hugging Face's model is built from.
        on_event: gets the worker's events.

    Returns:
        What Megatron's model HAS (hash of the inverse frequencies, norm epsilons, padded vocabulary, dropout, biases,
        number of parameters), and the check `construction_matches_hf`.

    Raises:
        InputError: there is no Megatron on this machine.
        WorkerFailed: one of the two cannot build the model.
    """
    require_megatron("Building Megatron's model")
    with scratch() as work:
        facts = run(WORKER, DryRunJob(work=work, train=job), work, DryRunFacts, FACTS, on_event, ON_CPU)
    built = Built.model_validate(facts.megatron)
    verdict = construction_verdict(Construction.model_validate(facts.hf), built, job.dropout)
    return built.shown(), [verdict]
