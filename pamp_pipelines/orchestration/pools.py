"""A slot of a pool for a run that is executed in this process.

Dagster's queue does not start a run whose pool is full. A run that is executed in process has no queue: its executor
claims the slot, and where there is none it turns round at full speed in a loop that says nothing and is deaf to Ctrl-C
(``ActiveExecution.sleep_til_ready``). So the slot is claimed for it before it begins.
"""

import contextlib
import time
from collections.abc import Iterator

import dagster as dg

from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.orchestration.leftovers import end_leftovers

POLL_S = 1.0
"""Seconds between two attempts to claim a slot."""


@contextlib.contextmanager
def holding_slot(
    instance: dg.DagsterInstance, pool: str | None, run_id: str, step: str, on_event: OnEvent = ignore
) -> Iterator[None]:
    """A block in which the step of a run has its slot, from before the run exists; the executor finds it claimed.

    Args:
        instance: whose pools.
        pool: of the asset; None for one without.
        run_id: that the run will have.
        step: key of its step.
        on_event: gets a ``warning`` that names the runs which hold the slots.
    """
    storage = instance.event_log_storage
    if pool is None or not _is_limited(instance, pool):
        yield
        return
    told: set[str] = set()
    while not storage.claim_concurrency_slot(pool, run_id, step).is_claimed:
        # out of the queue again: were this process killed now, nobody would take a run out that does not exist yet
        storage.free_concurrency_slot_for_step(run_id, step)
        if (holders := {slot.run_id for slot in storage.get_concurrency_info(pool).claimed_slots}) != told:
            told = holders
            named = ", ".join(sorted(run[:8] for run in holders)) or "no run: its limit is 0"
            on_event(event("warning", message=f"Waiting for a slot of the pool {pool}, held by {named}."))
        time.sleep(POLL_S)
        end_leftovers(instance)
    try:
        yield
    finally:
        storage.free_concurrency_slot_for_step(run_id, step)


def _is_limited(instance: dg.DagsterInstance, pool: str) -> bool:
    """Whether steps of the pool have to claim. A pool that is met for the first time gets the default limit, and one
    that has it follows an edited dagster.yaml, as with the executor's own claim."""
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return False
    limits = {limit.name: limit for limit in storage.get_pool_limits()}
    if pool in limits and not limits[pool].from_default:
        return True
    storage.initialize_concurrency_limit_to_default(pool)
    return any(limit.name == pool for limit in storage.get_pool_limits())
