"""What runs by itself once the automation sensor is switched on in the UI."""

import dagster as dg

AFTER_PASSED_CHECKS = dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
"""As soon as the input is there or new, and has passed its checks; or in one run with it, which a failed check ends.

Checks are of a partition (``checks.check_specs``), so that a failed one keeps back nothing else."""

WHEN_ANY_SCORE_IS_NEW = dg.AutomationCondition.eager().without(~dg.AutomationCondition.any_deps_missing())
"""Plain ``eager`` waits until every checkpoint has every score, which may never come."""


def automation_sensor(minimum_interval_s: int = 30) -> dg.AutomationConditionSensorDefinition:
    """Ships stopped: with it, each kept checkpoint starts an evaluation run."""
    return dg.AutomationConditionSensorDefinition(
        "evaluate_checkpoints_as_they_appear",
        target=dg.AssetSelection.all(),
        default_status=dg.DefaultSensorStatus.STOPPED,
        minimum_interval_seconds=minimum_interval_s,
        description="Exports and scores each kept checkpoint while training runs, then refreshes the leaderboard.",
    )
