"""The import stage: a Hugging Face directory becomes a Megatron `torch_dist` checkpoint, streamed from file to file.

No model is built. This module runs in the caller; the work is done by the worker in processes of its own.
"""

from __future__ import annotations

from typing import Any

from pamp_pipelines.conversion.array import write_import_on
from pamp_pipelines.conversion.buckets import bucket_count
from pamp_pipelines.conversion.declared import layout_in
from pamp_pipelines.conversion.hf_source import read_source
from pamp_pipelines.conversion.job import IMPORT_KIND, ImportJob
from pamp_pipelines.conversion.layout import Layout, layout_of
from pamp_pipelines.conversion.plan import ImportPlan, peak_bytes, plan_import, workers_within
from pamp_pipelines.conversion.stage import Verify, end_earlier, run_stage, work_dir
from pamp_pipelines.conversion.template import write_scratch_template
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.source_checks import tokenizer_problem
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.integrity import find_intact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.occupied import require_replaceable
from pamp_pipelines.lake.publish import Draft, lock, publish

TEMPLATE = "hf_template"
CHECKPOINT = "checkpoint"


def import_hf(
    job: ImportJob,
    on_event: OnEvent = ignore,
    verify: Verify | None = None,
    *,
    profile: ComputeProfile | None = None,
) -> Artifact:
    """Converts a model, or records one without weights; a finished artifact with the job's id is returned as it is.

    The artifact (kind `megatron_checkpoint`) holds `hf_template/` and, unless the model is from scratch, `checkpoint/`
    with its tracker file and `release/`. It appears under its name only when it is complete.

    `verify` is asked for further verdicts on the finished directory before it is published. `profile` says where the
    checkpoint's files are written: on a cluster by the tasks of an array, by default by processes of this machine. They
    are the same files.

    Raises:
        InputError: the source is incomplete or of an architecture that is not supported; the output is not an artifact.
        WorkerFailed: the conversion itself failed; its log is named.
    """
    require_replaceable(job.output, IMPORT_KIND, [job.source] if job.source else [])
    with lock(job.output, on_event):
        if (found := find_intact(job.output, job.id, on_event)) is not None:
            return found
        cluster = profile if profile is not None and profile.launcher != "local" else None
        end_earlier(job.output, ["run.partial"] if cluster else ["run.partial", "array"], on_event)
        with publish(job.output, kind=IMPORT_KIND, id=job.id, inputs=job.inputs, declaration=job.declaration) as draft:
            if job.source is None:
                _from_scratch(job, draft, on_event)
            else:
                # from headers only: a wrong source is refused here, before a process is started
                plan = plan_of(job)
                misfit = tokenizer_problem(job.source, job.name, plan.layout.dimensions["V"])
                if misfit is not None:
                    on_event(event("warning", message=misfit))
                if cluster is not None:
                    write_import_on(cluster, job, plan, on_event)
                del plan  # not held while the worker makes its own
                result = run_stage("import", job, draft.dir, work_dir(job.output), on_event)
                draft.stats |= result.stats
                draft.checks += result.checks
                if misfit is not None:
                    draft.checks.append(
                        CheckResult(name="tokenizer_fits", passed=False, severity="WARN", description=misfit)
                    )
            if verify is not None:
                draft.checks += verify(draft.dir)
    return draft.artifact


def plan_of(job: ImportJob) -> ImportPlan:
    """The plan of an import, from config.json and the safetensors headers.

    Raises:
        InputError: the source is incomplete, or of an architecture that is not supported.
    """
    assert job.source is not None
    source = read_source(job.source)
    return plan_import(layout_in(job.source / "config.json", source.config), source, job.chunk_bytes)


def describe_plan(job: ImportJob) -> dict[str, Any]:
    """What an import would do, for `--plan`: sizes in bytes, chunks, files, and the bound of the memory used."""
    plan = plan_of(job)
    layout = plan.layout
    workers = workers_within(job.memory_bytes, job.workers, plan.bytes)
    return {
        "architecture": layout.architecture.name,
        "parameters": layout.parameters(),
        "source_bytes": plan.source.bytes,
        "checkpoint_bytes": plan.bytes,
        "tensors": len(plan.tensors),
        "chunks": len(plan.sizes),
        "files": bucket_count(plan.sizes),
        "workers": workers,
        "peak_memory_bytes": peak_bytes(workers, len(plan.sizes)),
        "cannot_train": layout.architecture.unsupported(layout.config),
    }


def model_checks(layout: Layout) -> list[CheckResult]:
    """Whether Megatron's training loop can represent the model; conversion itself only moves weights."""
    refusals = layout.architecture.unsupported(layout.config)
    return [
        CheckResult(
            name="trainable",
            passed=not refusals,
            severity="WARN",
            description="; ".join(refusals) or "Megatron's training loop can build this model",
        )
    ]


def _from_scratch(job: ImportJob, draft: Draft, on_event: OnEvent) -> None:
    assert job.tokenizer is not None
    layout = layout_of(job.config)
    config = {
        "architectures": [layout.architecture.classes[0]],
        "model_type": layout.architecture.model_types[0],
        **job.config,
    }
    for message in write_scratch_template(config, job.tokenizer, draft.dir / TEMPLATE):
        on_event(event("warning", message=message))
    draft.stats |= {
        "architecture": layout.architecture.name,
        "parameters": layout.parameters(),
        "layers": layout.dimensions["L"],
        "vocab_size": layout.dimensions["V"],
        "bytes": 0,
        "from_scratch": True,
    }
    draft.checks += model_checks(layout)
