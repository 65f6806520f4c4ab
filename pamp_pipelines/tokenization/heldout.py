"""Which documents training never sees: chosen by their content alone.

Neither the order nor the layout of the files moves a document between the two sides, and equal texts are always on the
same side, so validation never sees a copy of a training document.
"""

import hashlib
from collections.abc import Callable


def held_out_rule(fraction: float, seed: int) -> Callable[[str], bool]:
    """A function that says whether a text is held out.

    SHA-256 over ``seed`` (decimal), a line feed and the UTF-8 text; its first 8 bytes, big-endian, below
    ``fraction`` * 2^64.
    """
    limit = int(fraction * 2**64)
    salted = hashlib.sha256(f"{seed}\n".encode())

    def is_held_out(text: str) -> bool:
        digest = salted.copy()
        digest.update(text.encode())
        return int.from_bytes(digest.digest()[:8]) < limit

    return is_held_out if limit else lambda _: False
