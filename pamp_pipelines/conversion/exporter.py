"""The export stage: a Megatron `torch_dist` checkpoint becomes a Hugging Face directory, streamed from file to file.

The checkpoint may have been saved at any parallel layout. No model is built. This module runs in the caller; the work
is done by the worker in processes of its own.
"""

from __future__ import annotations

from typing import Any

from pamp_pipelines.conversion.array import write_export_on
from pamp_pipelines.conversion.declared import layout_in
from pamp_pipelines.conversion.dtypes import by_name
from pamp_pipelines.conversion.export_plan import ExportPlan, plan_export
from pamp_pipelines.conversion.job import EXPORT_KIND, ExportJob
from pamp_pipelines.conversion.layout import Layout
from pamp_pipelines.conversion.plan import peak_bytes, workers_within
from pamp_pipelines.conversion.stage import Verify, end_earlier, run_stage, work_dir
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, read_checkpoint
from pamp_pipelines.declarations.hf_config import load_hf_config
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.integrity import find_intact
from pamp_pipelines.lake.occupied import require_replaceable
from pamp_pipelines.lake.publish import lock, publish


def export_hf(
    job: ExportJob,
    on_event: OnEvent = ignore,
    verify: Verify | None = None,
    *,
    profile: ComputeProfile | None = None,
) -> Artifact:
    """Exports a checkpoint; a finished artifact with the job's id is returned as it is.

    The artifact (kind `hf_export`) is a directory that `transformers.AutoModelForCausalLM.from_pretrained` opens:
    config.json, generation_config.json, tokenizer files, safetensors. Vocabulary padding is cut off, optimizer state
    left out.

    `verify` is asked for further verdicts on the finished directory before it is published. `profile` says where the
    weights are written: on a cluster by the tasks of an array, by default by processes of this machine. They are the
    same files.

    Raises:
        InputError: the checkpoint is damaged or does not fit the template; the output is not an artifact.
        WorkerFailed: the export itself failed; its log is named.
    """
    require_replaceable(job.output, EXPORT_KIND, [job.checkpoint, job.template])
    with lock(job.output, on_event):
        if (found := find_intact(job.output, job.id, on_event)) is not None:
            return found
        cluster = profile if profile is not None and profile.launcher != "local" else None
        end_earlier(job.output, ["run.partial"] if cluster else ["run.partial", "array"], on_event)
        _, _, plan = plan_of(job)  # a checkpoint that does not fit is refused here, before a process is started
        if cluster is not None:
            write_export_on(cluster, job, plan, on_event)
        del plan  # not held while the worker makes its own
        with publish(job.output, kind=EXPORT_KIND, id=job.id, inputs=job.inputs, declaration=job.declaration) as draft:
            result = run_stage("export", job, draft.dir, work_dir(job.output), on_event)
            draft.stats |= result.stats
            draft.checks += result.checks
            if verify is not None:
                draft.checks += verify(draft.dir)
    return draft.artifact


def plan_of(job: ExportJob) -> tuple[Layout, StoredCheckpoint, ExportPlan]:
    """The plan of an export, from the template's config.json and the checkpoint's index.

    Raises:
        InputError: no template, a damaged checkpoint, or one that does not fit the template.
    """
    layout = layout_in(job.template / "config.json", load_hf_config(job.template))
    checkpoint = read_checkpoint(job.checkpoint)
    dtype = by_name(job.dtype) if job.dtype else None
    return layout, checkpoint, plan_export(layout, checkpoint, dtype, job.max_shard_bytes)


def describe_plan(job: ExportJob) -> dict[str, Any]:
    """What an export would do, for `--plan`: sizes in bytes, files, and the bound of the memory used."""
    layout, checkpoint, plan = plan_of(job)
    workers = workers_within(job.memory_bytes, job.workers, plan.weight_bytes)
    chunks = sum(len(tensor.chunks) for tensor in checkpoint.tensors.values())
    return {
        "architecture": layout.architecture.name,
        "parameters": layout.parameters(),
        "export_bytes": plan.weight_bytes,
        "dtypes": [dtype.name for dtype in plan.dtypes],
        "tensors": len(plan.items),
        "files": len(plan.files),
        "chunks": chunks,
        "padding_rows": plan.padding_rows,
        "skipped_tensors": plan.skipped,
        "workers": workers,
        "peak_memory_bytes": peak_bytes(workers, chunks),
    }
