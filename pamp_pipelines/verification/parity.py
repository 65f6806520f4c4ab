"""Forward parity: Megatron's model, as training builds it, against Hugging Face's, in a worker process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.verification.job import ParityCase, ParityJob, ParityResults

WORKER = "pamp_pipelines.verification.worker"
_RESULTS = "results.json"
_ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


def forward_parity(
    cases: Sequence[ParityCase],
    *,
    profile: ComputeProfile | None = None,
    on_event: OnEvent = ignore,
    scratch: Path | None = None,
) -> dict[str, list[CheckResult]]:
    """Verdicts `construction_matches_hf` and `logits_match_hf` on each case, by its name.

    Both models compute in float32 on the CPU. Hugging Face's comes from the source directory alone, Megatron's from the
    template's config.json and the checkpoint alone, so that a fault of either shows.

    Args:
        cases: what to compare; all in one process, one model in memory at a time.
        profile: threads and time limits of the process.
        on_event: gets its events.
        scratch: where a temporary folder for logits is made; default: the system's.

    Raises:
        InputError: a source cannot be read.
        WorkerFailed: the process ended badly.
    """
    with tempfile.TemporaryDirectory(prefix="pamp-parity-", dir=scratch) as folder:
        work = Path(folder).resolve()
        job = work / "job.json"
        write_text(job, ParityJob(work=work, cases=tuple(cases)).model_dump_json(indent=2))
        run_worker(WORKER, job, work, profile=profile, on_event=on_event, env=_ON_CPU)
        results = ParityResults.model_validate_json((work / _RESULTS).read_bytes())
    return {result.name: list(result.checks) for result in results.results}
