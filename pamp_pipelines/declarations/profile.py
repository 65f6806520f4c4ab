"""A compute profile: where and with how many processes the workers run."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from pamp_pipelines.declarations.base import Check, Declaration, Inconsistent
from pamp_pipelines.declarations.kubernetes import KubernetesOptions
from pamp_pipelines.declarations.slurm import SlurmOptions
from pamp_pipelines.declarations.training_config import Parallelism, TrainingConfig

_SECRET = re.compile(r"(?<![A-Z])(?!P_?KEY)[A-Z]*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(_|$)", re.IGNORECASE)
"""Names of secrets. ``TOKENIZERS_PARALLELISM`` is none, nor is InfiniBand's partition key (``NCCL_IB_PKEY``)."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ComputeProfile(Declaration):
    """One file in ``resources/``. Never part of a data version: where a run ran does not change what it is."""

    description: str = ""
    """What the machines are."""
    launcher: Literal["local", "slurm", "kubernetes"] = "local"
    """``local``: processes on this machine, under a supervisor; ``slurm``: a batch job; ``kubernetes``:
    an Indexed Job."""
    nodes: PositiveInt = 1
    """Machines of one run."""
    processes_per_node: PositiveInt = 1
    """Training processes on a machine: one for each GPU."""
    parallelism: Parallelism | None = None
    """Sizes of the parallel groups here, in place of the whole block of the training config."""
    micro_batch_size: PositiveInt | None = None
    """Samples in one forward pass of one process here, in place of the training config's."""
    threads_per_process: PositiveInt | None = None
    """OMP_NUM_THREADS of a worker; default: the machine's cores divided by its processes, on Slurm one."""
    env: dict[str, str] = {}
    """Environment variables of the workers. Secrets are refused: they come from the environment of the caller."""
    price_per_gpu_hour: PositiveFloat | None = None
    """Price of one GPU for an hour, in any currency; `pamp plan` forecasts the cost of a run with it."""
    export_budget_gb: PositiveFloat | None = None
    """Gigabytes (10^9 bytes) that all exports of the lake may take together; beyond, the least recently scored ones are
    evicted, and made again when they are needed. Default: no limit."""
    stall_timeout_s: PositiveFloat = 1800.0
    """Seconds without an event after which a worker counts as hung and is ended."""
    timeout_s: PositiveFloat | None = None
    """Seconds after which a worker is ended whatever it does."""
    grace_s: Annotated[float, Field(ge=0)] = 60.0
    """Seconds between SIGTERM (training saves a checkpoint) and SIGKILL: more than a save takes."""
    slurm: SlurmOptions = SlurmOptions()
    """With ``launcher: slurm``: partition, limits, environment and container of the job."""
    kubernetes: KubernetesOptions = KubernetesOptions()
    """With ``launcher: kubernetes``: image, volumes and resources of the pods."""

    @field_validator("env")
    @classmethod
    def _variables_without_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        wrong = "is no name of an environment variable: letters, digits and `_`, no digit first"
        secret = "looks like a secret: remove it here and export it where `pamp` or Dagster starts; workers inherit it"
        problems = [("", f"{name!r} {wrong}") for name in env if not _VARIABLE.fullmatch(name)]
        problems += [(name, secret) for name in env if _SECRET.search(name)]
        if problems:
            raise Inconsistent(*problems)
        return env

    def checks(self) -> Iterable[Check]:
        return (self._slurm_problems, self._kubernetes_problems)

    def _slurm_problems(self) -> Iterator[tuple[str, str]]:
        if self.slurm != SlurmOptions() and self.launcher != "slurm":  # a job carries the defaults, too
            yield "slurm", f"has no effect with `launcher: {self.launcher}`: remove it, or change that"

    def _kubernetes_problems(self) -> Iterator[tuple[str, str]]:
        if self.kubernetes != KubernetesOptions() and self.launcher != "kubernetes":
            yield "kubernetes", f"has no effect with `launcher: {self.launcher}`: remove it"
        if self.launcher == "kubernetes" and not self.kubernetes.image:
            yield "kubernetes.image", "is missing: name an image that has pamp_pipelines installed"

    def lay_out(self, config: TrainingConfig) -> TrainingConfig:
        """The config as these machines run it: the same mathematics, so the declared config names what comes out."""
        return config.model_copy(update={name: getattr(self, name) for name in self.layout_fields})

    def has_gpus(self, *, here: bool | None) -> bool | None:
        """Whether the workers find GPUs; None when that is unknown.

        Args:
            here: whether this machine has any; None when that is unknown.
        """
        match self.launcher:
            case "local":
                return here
            case "kubernetes":
                return self.kubernetes.gpus > 0
            case "slurm":
                return None

    @property
    def layout_fields(self) -> tuple[str, ...]:
        """Fields of a training config that this profile sets itself."""
        return tuple(name for name in ("parallelism", "micro_batch_size") if getattr(self, name) is not None)

    @property
    def world_size(self) -> int:
        """Training processes in all."""
        return self.nodes * self.processes_per_node
