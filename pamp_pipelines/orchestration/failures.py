"""Stage errors as Dagster failures: what is worth a retry and what is not."""

import contextlib
from collections.abc import Iterator
from typing import Any

import dagster as dg

from pamp_pipelines.errors import MissingInput, PampError, WorkerCanceled, WorkerFailed


@contextlib.contextmanager
def as_failures() -> Iterator[None]:
    """Turn errors that another attempt cannot cure into failures without retries.

    A canceled run needs this as much as a wrong input: with the in-process executor Dagster takes the interrupt for one
    more step error and, under a retry policy, trains again to the end (dagster-io/dagster#15026). Only a failed worker
    keeps its retries.
    """
    try:
        yield
    except (dg.DagsterExecutionInterruptedError, WorkerCanceled) as error:
        raise dg.Failure("canceled", allow_retries=False) from error
    except WorkerFailed:
        raise
    except PampError as error:
        raise dg.Failure(str(error), metadata=_metadata(error), allow_retries=False) from error


def _metadata(error: PampError) -> dict[str, Any]:
    if not isinstance(error, MissingInput):
        return {}
    return {"missing_asset": error.asset, **({"missing_partition": error.partition} if error.partition else {})}
