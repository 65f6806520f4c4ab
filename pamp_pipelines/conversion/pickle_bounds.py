"""What a pickle may ask for before it is read: a few bytes of a damaged one can ask for a hundred gigabytes.

A memo index makes the unpickler take 16 bytes for each index below it (CPython `_pickle.c`, `_Unpickler_MemoPut`), and
an index has four bytes. A pickler counts them up, so no honest one exceeds the number of bytes before it. Lengths are
compared with what is there, too. Opcodes are those of CPython's `pickletools.py`, up to protocol 5.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(
    rb"(?:[N\x88\x89\]ael)t\x85-\x87}dsu\x8f-\x9102(1\x93\x94Rbo\x81\x92Q\x97\x98]"  # without an argument
    rb"|[Khq\x80\x82].|[M\x83]..|[Jj\x84]....|[G\x95].{8})++",
    re.DOTALL,
)
"""Opcodes of a fixed length of which nothing can be wrong, as many as follow each other."""

_COUNTED = {
    **dict.fromkeys(b"\x8aUC\x8c", 1),  # LONG1 and short strings
    **dict.fromkeys(b"\x8bTBX", 4),  # LONG4 and strings
    **dict.fromkeys(b"\x8e\x96\x8d", 8),
}
"""Opcodes followed by a length of so many bytes and by as many bytes as it says."""

_LINES = {**dict.fromkeys(b"ILSVFgpP", 1), **dict.fromkeys(b"ci", 2)}
"""Opcodes followed by so many lines of text."""

_STOP, _PUT, _LONG_BINPUT = b".pr"


def require_bounded(data: bytes) -> None:
    """Raises ValueError where a pickle asks for more than it can need, is cut, or has an opcode that is none."""
    at = 0
    while at < len(data):
        if run := _PLAIN.match(data, at):
            at = run.end()
            continue
        code, start = data[at], at + 1
        if code == _STOP:
            return
        if code == _LONG_BINPUT:
            _require_memo(int.from_bytes(data[start : start + 4], "little"), at)
            at = start + 4
        elif width := _COUNTED.get(code):
            at = start + width + int.from_bytes(data[start : start + width], "little")
        elif lines := _LINES.get(code):
            for _ in range(lines):
                end = data.find(b"\n", start)
                if end < 0:
                    raise ValueError(f"cut short at byte {len(data)}")
                if code == _PUT:
                    _require_memo(int(data[start:end]), at)
                start = end + 1
            at = start
        else:
            raise ValueError(f"byte {at} is {code:#04x}, which is no opcode")
    raise ValueError(f"cut short at byte {len(data)}")


def _require_memo(index: int, at: int) -> None:
    if index > at:
        raise ValueError(f"memo index {index} at byte {at}")
