"""Optional: is each scheduled retraining done before the next one is due? Off unless PAMP_FRESHNESS is set."""

import itertools
import os
import time
from datetime import timedelta

import dagster as dg
from dagster._utils.schedules import cron_string_iterator  # the ticks of Dagster's own scheduler

from pamp_pipelines.declarations.catalog import Catalog

VARIABLE = "PAMP_FRESHNESS"
"""Set to anything where Dagster starts: `pretrained_checkpoint` then has a freshness policy."""

_TICKS = 500
"""Enough to see every gap of a schedule: more than a year of daily ticks."""


def training_freshness(catalog: Catalog) -> dg.FreshnessPolicy | None:
    """The policy of ``pretrained_checkpoint``; None when it is switched off or nothing is scheduled.

    A retraining has the time until the next tick, so the newest materialisation is never older than two gaps between
    ticks, of the longest gap where they differ. Dagster knows the freshness of an asset and not of its partitions: with
    several schedules the most frequent one counts.
    """
    crons = [config.cron for config in catalog.training_configs.values() if config.cron]
    if not os.environ.get(VARIABLE) or not crons:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=2 * min(map(longest_gap, crons)))


def longest_gap(cron: str) -> timedelta:
    """Between two ticks of a cron expression, in UTC as the schedules."""
    ticks = itertools.islice(cron_string_iterator(time.time(), cron, "UTC"), _TICKS)
    return max(later - earlier for earlier, later in itertools.pairwise(ticks))
