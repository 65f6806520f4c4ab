"""What a lake holds that cannot be shown: it is named and left out, so that one bad file hides nothing else."""

import contextlib
from collections.abc import Iterator

from pamp_pipelines.lake.store import LeftOut
from pamp_pipelines.orchestration.outage import is_outage


@contextlib.contextmanager
def leaving_out(left_out: LeftOut, what: object) -> Iterator[None]:
    """Note why the block failed, and go on after it; only what is read of the lake belongs inside.

    Files may be cut off, foreign or edited in any way, so any error counts, but the database's.

    Args:
        left_out: gets ``what`` and the reason.
        what: the path, or the checkpoint's key.
    """
    try:
        yield
    except Exception as error:
        if is_outage(error):
            raise
        left_out[str(what)] = str(error) or type(error).__name__


def sentences(left_out: LeftOut) -> list[str]:
    """One for each, naming it once."""
    return [reason if what in reason else f"{what}: {reason}" for what, reason in left_out.items()]
