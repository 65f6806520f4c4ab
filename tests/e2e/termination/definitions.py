"""The real frame of a training run (lease, launcher, failures, pool) around a worker that behaves badly."""

import dataclasses
import json
import os
from pathlib import Path

import dagster as dg

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InfrastructureFailed
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.orchestration import retries
from pamp_pipelines.orchestration.executor import waiting_executor
from pamp_pipelines.orchestration.sensors import end_dead_runs
from pamp_pipelines.orchestration.stage import stage
from pamp_pipelines.training.lease import lease

WAIT_S = 600
BEHAVIOURS = ["obedient", "stubborn", "dies", "orphaned", "slow", "forced", "waits", "quick"]


# the kinds and numbers of retries are the real ones, the time between them is not
retries.RETRIES = tuple(
    dataclasses.replace(line, delay_s=WAIT_S if line.failure is InfrastructureFailed else 1) for line in retries.RETRIES
)


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(BEHAVIOURS), pool="train")
def pretrained_checkpoint(context: dg.AssetExecutionContext) -> None:
    run_dir = Path(os.environ["STUB_RUNS"]) / context.partition_key
    with stage(context, "pretrained_checkpoint", resumes=True) as on_event, lease(run_dir) as lock:
        if context.partition_key == "waits":
            raise InfrastructureFailed("a node is gone", None)
        job = run_dir / "job.json"
        job.write_text(json.dumps(context.partition_key))
        run_worker("stub_worker", job, run_dir, profile=ComputeProfile(grace_s=2), on_event=on_event, hold=[lock])


defs = dg.Definitions([pretrained_checkpoint], sensors=[end_dead_runs(minimum_interval_s=5)], executor=waiting_executor)
