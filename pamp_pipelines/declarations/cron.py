"""Cron expressions: five fields, or one of the named schedules."""

import re

_NAMED = {"@hourly", "@daily", "@weekly", "@monthly", "@yearly"}
_FIELDS = {"minute": (0, 59), "hour": (0, 23), "day of month": (1, 31), "month": (1, 12), "day of week": (0, 7)}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def cron_problem(expression: str) -> str | None:
    """What is wrong with a cron expression, or None when it is valid."""
    if expression in _NAMED:
        return None
    parts = expression.lower().split()
    if expression.startswith("@") or len(parts) != len(_FIELDS):
        return f"{expression!r} is not a cron expression: five fields, e.g. `0 3 * * 1`, or {', '.join(sorted(_NAMED))}"
    for part, (field, (low, high)) in zip(parts, _FIELDS.items(), strict=True):
        if not all(_valid(item, field, low, high) for item in part.split(",")):
            return f"{part!r} is no {field} of a cron expression: {low}-{high}, `*`, `a-b`, `*/n`, `a,b`"
    return None


def _valid(item: str, field: str, low: int, high: int) -> bool:
    match = re.fullmatch(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", item)
    if not match or (match[4] is not None and int(match[4]) < 1):
        return False
    ends = [_number(text, field) for text in (match[2], match[3]) if text is not None]
    return all(end is not None and low <= end <= high for end in ends) and ends == sorted(ends, key=lambda e: e or 0)


def _number(text: str, field: str) -> int | None:
    names = {"month": _MONTHS, "day of week": _DAYS}.get(field, [])
    if text in names:
        return names.index(text) + (field == "month")
    return int(text) if text.isdigit() else None
