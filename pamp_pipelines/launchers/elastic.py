"""``torchrun`` with a short wait for the ranks that survive another rank's death.

When a rank fails, torch sends SIGTERM to the others and gives them 30 s, a default that no option reaches. They wait in
a collective for the dead rank and cannot run a signal handler, so those 30 s of a GPU are lost. A cancel is not
concerned: it passes TORCH_ELASTIC_SHUTDOWN_TIMEOUT, set by the launcher.

An agent that was asked to stop ends with 128 + the signal, and not with the status 1 of a rank that failed.
"""

import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import PContext, SignalException

SURVIVORS_S = 5


def main() -> None:
    PContext.close.__defaults__ = (None, SURVIVORS_S)  # (death_sig, timeout)
    try:
        run.main()
    except SignalException as stopped:
        sys.exit(128 + stopped.sigval)


if __name__ == "__main__":
    main()
