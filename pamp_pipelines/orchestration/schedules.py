"""Scheduled retraining: a schedule for each training config that declares a ``cron``."""

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.files import identifier
from pamp_pipelines.orchestration.assets.pretrained_checkpoint import Mode, Training
from pamp_pipelines.orchestration.jobs import TRAIN
from pamp_pipelines.orchestration.partitions import multi_key
from pamp_pipelines.orchestration.retraining import NAME as RETRAIN_ON_NEW_DATA


def schedules(catalog: Catalog) -> list[dg.ScheduleDefinition]:
    return [
        _schedule(config, declared.cron, [model for model, c in catalog.pairs() if c == config])
        for config, declared in catalog.training_configs.items()
        if declared.cron
    ]


def schedule_name(config: str) -> str:
    """``retrain_`` and the config, in what Dagster takes as a name; no other config has it (``declarations.files``)."""
    name = f"retrain_{identifier(config)}"
    return f"cron_{name}" if name == RETRAIN_ON_NEW_DATA else name


def _schedule(config: str, cron: str, models: list[str]) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=schedule_name(config),
        job_name=TRAIN,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Trains a new version of {', '.join(models)} with {config}.",
    )
    def retrain(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest]:
        at = context.scheduled_execution_time.isoformat()
        return [_request(at, multi_key(model=model, training_config=config)) for model in models]

    return retrain


def _request(at: str, partition: str) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{at}:{partition}",
        partition_key=partition,
        run_config=dg.RunConfig(ops={"pretrained_checkpoint": Training(mode=Mode.fresh)}),
    )
