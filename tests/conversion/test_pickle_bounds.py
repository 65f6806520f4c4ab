"""A damaged pickle is refused before it takes memory; every honest one passes."""

import io
import pickle
import struct
from typing import Any

import pytest

from pamp_pipelines.conversion import restricted_pickle
from pamp_pipelines.conversion.pickle_bounds import require_bounded
from pamp_pipelines.errors import InputError

_TEXT = ["a", "ä\n", "b" * 300, "c" * 70_000, b"x", b"y" * 300, b"z" * 70_000, bytearray(b"q" * 9)]
_NUMBERS = [1, -5, 300, 70_000, 2**40, 2**3000, 1.5, None, True, False]
_GROUPS = [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [1], [1, 2], {}, {1: 2}, {1: 2, 3: 4}, set(), {1, 2}]
_MANY: list[Any] = [[(i,) for i in range(300)], frozenset({1}), range(3), 1j]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_honest_pickle_passes(protocol: int) -> None:
    for value in [*_TEXT, *_NUMBERS, *_GROUPS, *_MANY, [_TEXT, _NUMBERS, _GROUPS, _MANY]]:
        require_bounded(pickle.dumps(value, protocol) + b"after")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"]r\xff\xff\xff\x0f.", "memo index 268435455 at byte 3"),
        (b"]p268435455\n.", "memo index 268435455 at byte 3"),
        (b"X" + struct.pack("<I", 2**31) + b"abc.", "cut short"),
        (b"\x8d" + struct.pack("<Q", 2**62) + b"abc.", "cut short"),
        (b"cbuiltins", "cut short"),
        (b"]", "cut short"),
        (b"]\xff.", "byte 3 is 0xff, which is no opcode"),
    ],
)
def test_what_asks_for_more_than_is_there_is_refused_before_it_is_read(content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=rf"\.metadata: damaged pickle \(ValueError: {words}"):
        restricted_pickle.load(io.BytesIO(b"\x80\x02" + content), ".metadata")
