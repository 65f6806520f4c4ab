"""A run of its own process that reports many observations: ``observing_run.py PROJECT PARTITION COUNT``."""

import sys
from pathlib import Path

import dagster as dg

from pamp_pipelines.lake.events import event
from pamp_pipelines.orchestration.events import Reporter
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.project import Project

ASSET = dg.AssetKey("observed")
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def main(root: str, partition: str, count: int) -> None:
    @dg.asset(key=ASSET, partitions_def=dg.StaticPartitionsDefinition([partition]))
    def observed(context: dg.AssetExecutionContext) -> None:
        report = Reporter(context, ASSET, interval_s=0)
        for step in range(count):
            report(event("metric", step=step, loss=1.0 / (step + 1)))
        report.close()

    with open_instance(Project(Path(root))) as instance:
        dg.materialize([observed], partition_key=partition, instance=instance, run_config=QUIET)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
