"""What the score of a group rests on: the samples of its tasks, and the standard error that follows from theirs.

Imported by the worker alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lm_eval.api.group import Group
from lm_eval.api.metrics import pooled_sample_stderr, unweighted_mean_stderr


def complete_groups(rows: Sequence[dict[str, Any]], tasks: Iterable[Any]) -> None:
    """Give each row of a group its ``n``, ``n_available`` and ``stderr``, in place.

    They are over the tasks that have the metric, which are those that lm-eval takes the group's value from. The
    standard error is lm-eval's: pooled where tasks weigh by their samples, else that of a plain mean. It stays None
    where a task has none.

    Args:
        rows: of one evaluation, those of tasks and those of groups.
        tasks: what was evaluated.
    """
    of_tasks: dict[tuple[str, str], dict[str, Any]] = {(row["task"], row["metric"]): row for row in rows}
    groups = {group.name: group for group in _groups(tasks)}
    for row in rows:
        group = groups.get(row["task"])
        if group is None:
            continue
        names = dict.fromkeys(task.task_name for task in group.get_all_tasks())
        members = [of_tasks[name, row["metric"]] for name in names if (name, row["metric"]) in of_tasks]
        for column in ("n", "n_available"):
            counts = [member[column] for member in members]
            row[column] = sum(counts) if counts and None not in counts else None
        errors, sizes = [member["stderr"] for member in members], [member["n"] for member in members]
        if members and None not in errors and None not in sizes:
            pooled = _weighs_by_size(group, row["metric"])
            row["stderr"] = float(pooled_sample_stderr(errors, sizes) if pooled else unweighted_mean_stderr(errors))


def _groups(tasks: Iterable[Any]) -> Iterator[Group]:
    for task in tasks:
        if isinstance(task, Group):
            yield task
            yield from task.get_all_groups()


def _weighs_by_size(group: Group, metric: str) -> bool:
    name, _, filter = metric.partition(",")
    for aggregate in group.aggregate_metric_list or ():
        if aggregate.metric == name and (not aggregate.filter_list or (filter or "none") in aggregate.filter_list):
            return bool(aggregate.weight_by_size)
    return True
