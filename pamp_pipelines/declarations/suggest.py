"""The name that was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence with a leading space, ``" Did you mean 'optimizer'?"``, or nothing when no known name is near."""
    names = sorted(known)
    by_letters = {_letters(name): name for name in names}
    match = by_letters.get(_letters(given)) or next(
        iter(difflib.get_close_matches(given, names, n=1, cutoff=0.6)), None
    )
    return f" Did you mean {match!r}?" if match else ""


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
