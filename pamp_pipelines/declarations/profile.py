"""A compute profile: where and with how many processes the workers run."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from pamp_pipelines.declarations.base import Declaration


class ComputeProfile(Declaration):
    """One file in ``resources/``. Never part of a data version: where a run ran does not change what it is."""

    description: str = ""
    """What the machines are."""
    launcher: Literal["local"] = "local"
    """``local``: processes on this machine, under a supervisor."""
    nodes: PositiveInt = 1
    """Machines of one run."""
    processes_per_node: PositiveInt = 1
    """Training processes on a machine: one for each GPU."""
    threads_per_process: PositiveInt | None = None
    """OMP_NUM_THREADS of a worker; default: the machine's cores divided by its processes."""
    env: dict[str, str] = {}
    """Environment variables of the workers. Secrets are refused: they come from the environment of the caller."""
    stall_timeout_s: PositiveFloat = 1800.0
    """Seconds without an event after which a worker counts as hung and is ended."""
    timeout_s: PositiveFloat | None = None
    """Seconds after which a worker is ended whatever it does."""
    grace_s: Annotated[float, Field(ge=0)] = 60.0
    """Seconds between SIGTERM (training saves a checkpoint) and SIGKILL."""

    @property
    def world_size(self) -> int:
        """Training processes in all."""
        return self.nodes * self.processes_per_node
