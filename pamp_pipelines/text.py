"""Text that comes from outside: sizes, and names of files that are no text."""

import re
from decimal import Decimal

from pamp_pipelines.errors import InputError

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Python has these in place of the bytes of a file name that are not UTF-8 (PEP 383)."""


def size_of(text: str) -> int | None:
    """Bytes that ``500GB``, ``1.5t`` or ``1000`` stand for, in powers of 1000; None where it is no size."""
    match = re.fullmatch(r"([0-9]{1,18}|[0-9]{1,18}\.[0-9]*)([kmgt]?)b?", text.strip().lower().replace(" ", ""))
    return int(Decimal(match[1]) * 1000 ** ("", "k", "m", "g", "t").index(match[2])) if match else None


def printable(text: str) -> str:
    """The text with ``\\xff`` for each byte of a file name that is not UTF-8, so that it can be written anywhere."""
    return _SURROGATE.sub(_escaped, text)


def require_text(name: str) -> str:
    """The name of a file, unless it is not UTF-8: no manifest and no job can hold it.

    Raises:
        InputError: shows the name escaped.
    """
    if _SURROGATE.search(name):
        raise InputError(f"{printable(name)}: the name is not UTF-8; rename the file or folder.")
    return name


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
