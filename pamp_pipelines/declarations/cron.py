"""Cron expressions: five fields, or one of the named schedules. Dagster takes whatever passes here."""

import re

_NAMED = {"@hourly", "@daily", "@weekly", "@monthly", "@yearly"}
_FIELDS = {"minute": (0, 59), "hour": (0, 23), "day of month": (1, 31), "month": (1, 12), "day of week": (0, 7)}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_LONGEST = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]

# ASCII only, and few digits: `²` is a digit to Python, but no number, and neither are 5,000 nines.
_ITEM = re.compile(r"(?:\*|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?")


def cron_problem(expression: str) -> str | None:
    """What is wrong with a cron expression, or None when it is valid."""
    if expression in _NAMED:
        return None
    parts = expression.lower().split()
    if expression.startswith("@") or len(parts) != len(_FIELDS):
        return f"{expression!r} is not a cron expression: five fields, e.g. `0 3 * * 1`, or {', '.join(sorted(_NAMED))}"
    values: dict[str, set[int]] = {}
    for part, (field, (low, high)) in zip(parts, _FIELDS.items(), strict=True):
        ranges = [_range(item, field, low, high) for item in part.split(",")]
        if not all(ranges):
            return f"{part!r} is no {field} of a cron expression: {low}-{high}, `*`, `a-b`, `*/n`, `a,b`"
        values[field] = {value for found in ranges if found for value in found}
    _, _, day, month, weekday = parts
    if min(values["day of month"]) > max(_LONGEST[number - 1] for number in values["month"]):
        # Beside a day of the week, cron would come on that one; Dagster refuses it all the same.
        instead = "" if weekday == "*" else ", or write `*` for the day of month to go by the day of week"
        return f"never comes: month {month!r} has no day {day!r}. Change one of them{instead}"
    return None


def _range(item: str, field: str, low: int, high: int) -> range | None:
    """The values that an item of a field stands for; None when it is none."""
    match = _ITEM.fullmatch(item)
    if match is None:
        return None
    step = int(match[3] or 1)
    first = low if match[1] is None else _number(match[1], field)
    # `5/15` goes on to the end, as `5-59/15` does
    last = _number(match[2], field) if match[2] else high if match[1] is None or match[3] else first
    if first is None or last is None or step < 1 or not low <= first <= last <= high:
        return None
    return range(first, last + 1, step)


def _number(text: str, field: str) -> int | None:
    names = {"month": _MONTHS, "day of week": _DAYS}.get(field, [])
    if text in names:
        return names.index(text) + (field == "month")
    return int(text) if text.isdecimal() else None
