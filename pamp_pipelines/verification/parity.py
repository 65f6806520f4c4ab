"""Forward parity: Megatron's model, as training builds it, against Hugging Face's, in a worker process."""

from __future__ import annotations

from collections.abc import Sequence

from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.training.requirements import require_megatron
from pamp_pipelines.verification.job import ParityCase, ParityJob, ParityResults
from pamp_pipelines.verification.process import run, scratch

WORKER = "pamp_pipelines.verification.worker"
RESULTS = "results.json"
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


def forward_parity(cases: Sequence[ParityCase], on_event: OnEvent = ignore) -> dict[str, list[CheckResult]]:
    """Verdicts `construction_matches_hf` and `logits_match_hf` on each case, by its name.

    Both models compute in float32 on the CPU. Hugging Face's comes from the source directory alone, Megatron's from the
    template's config.json and the checkpoint alone, so that a fault of either shows.

    Args:
        cases: what to compare; all in one process, one model in memory at a time.
        on_event: gets the worker's events.

    Raises:
        InputError: there is no Megatron on this machine.
        WorkerFailed: a source cannot be read, a config cannot be built, or the process ended badly.
    """
    require_megatron("The comparison with Megatron's model")
    with scratch() as work:
        results = run(WORKER, ParityJob(work=work, cases=tuple(cases)), work, ParityResults, RESULTS, on_event, ON_CPU)
    return {result.name: list(result.checks) for result in results.results}
