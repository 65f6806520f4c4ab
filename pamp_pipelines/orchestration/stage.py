"""The frame around a stage function inside an asset."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg

from pamp_pipelines.lake.events import OnEvent
from pamp_pipelines.lake.leases import leasing
from pamp_pipelines.lake.staging import listening
from pamp_pipelines.orchestration.ended import stopping_when_ended
from pamp_pipelines.orchestration.events import Reporter
from pamp_pipelines.orchestration.failures import as_failures
from pamp_pipelines.orchestration.retries import refuse_after_max_runtime
from pamp_pipelines.orchestration.tags import partition_tags, tag_run
from pamp_pipelines.orchestration.versions import asset_key


@contextlib.contextmanager
def stage(
    context: dg.AssetExecutionContext,
    asset: str,
    on_checkpoint: Callable[[Mapping[str, Any]], None] | None = None,
    *,
    resumes: bool = False,
) -> Iterator[OnEvent]:
    """Yields the ``on_event`` for the stage; its errors leave as Dagster failures.

    Args:
        context: of the running step.
        asset: key, with slashes, that observations are reported under.
        on_checkpoint: gets the data of each ``checkpoint`` event.
        resumes: another attempt goes on where this one stopped, so that a crash is worth one.
    """
    refuse_after_max_runtime(context)
    reporter = Reporter(context, asset_key(asset), on_checkpoint=on_checkpoint)
    with as_failures(context, resumes=resumes), leasing(), listening(reporter):
        partition = str(context.partition_key) if context.has_partition_key else None
        tag_run(context, partition_tags(asset, partition))
        yield stopping_when_ended(context, reporter)
    reporter.finish()
