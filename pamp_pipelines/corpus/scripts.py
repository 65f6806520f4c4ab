"""Which writing systems a corpus is in, counted on a sample of its letters."""

import functools
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_HEAD = 1000
"""Characters of a document that are looked at."""
_ALL = 10_000
"""Documents of a file that are looked at one and all; of those after them, one in ``_STRIDE``."""
_STRIDE = 16
_PREFIXES = ("FULLWIDTH ", "HALFWIDTH ", "MODIFIER LETTER ", "MATHEMATICAL ", "SUPERSCRIPT ", "SUBSCRIPT ")
_NAMES = {"CJK": "Han", "HANGUL": "Hangul", "IDEOGRAPHIC": "Han", "KANGXI": "Han"}


class ScriptCounter:
    """Counts letters by script over the first 1,000 characters of the first 10,000 documents and every 16th after."""

    def __init__(self) -> None:
        self._documents = 0
        self.letters: Counter[str] = Counter()

    def add(self, texts: Sequence[str]) -> None:
        """Documents in the order of a file."""
        first = self._documents
        self._documents += len(texts)
        every = range(min(len(texts), max(0, _ALL - first)))
        after = range(-(first + len(every)) % _STRIDE + len(every), len(texts), _STRIDE)
        chosen = "".join(texts[index][:_HEAD] for index in (*every, *after))
        if not chosen:
            return
        script, names = _table()
        counts = np.bincount(script[np.frombuffer(chosen.encode("utf-32-le"), "<u4")], minlength=len(names))
        for index in np.flatnonzero(counts):
            if index:  # 0 stands for what is no letter
                self.letters[names[index]] += int(counts[index])


def shares(letters: Counter[str]) -> dict[str, float]:
    """Script to its share of the letters, the largest first, from one in ten thousand on."""
    total = letters.total()
    # equal counts in the order of names: that of the files must not show
    ordered = sorted(letters.items(), key=lambda item: (-item[1], item[0]))
    rounded = ((name, round(count / total, 4)) for name, count in ordered)
    return {name: share for name, share in rounded if share}


@functools.cache
def _table() -> tuple[npt.NDArray[np.uint8], list[str]]:
    """Number of the script of each code point, uint8 [0x110000], and the names of the numbers.

    A letter's script is the word that its Unicode name begins with: ``LATIN SMALL LETTER A``, ``CJK UNIFIED
    IDEOGRAPH-4E00``. Scripts beyond the 254 first met count as ``Other``.
    """
    table = np.zeros(0x110000, np.uint8)
    numbers = {"": 0, "Other": 1}
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character)[0] == "L":
            name = unicodedata.name(character, "OTHER")
            for prefix in _PREFIXES:
                name = name.removeprefix(prefix)
            word = name.split(" ", 1)[0]
            script = _NAMES.get(word, word.split("-", 1)[0].title())
            table[code] = numbers.setdefault(script, len(numbers)) if len(numbers) < 256 else numbers.get(script, 1)
    return table, list(numbers)
