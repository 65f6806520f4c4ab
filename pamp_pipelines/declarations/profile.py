"""A compute profile: where and with how many processes the workers run."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pamp_pipelines.declarations.base import Declaration, Inconsistent
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

    @model_validator(mode="after")
    def _names_of_variables(self) -> Self:
        wrong = [name for name in self.env if not _VARIABLE.fullmatch(name)]
        if wrong:
            advice = "is no name of an environment variable: letters, digits and `_`, no digit first"
            raise Inconsistent(*(("env", f"{name!r} {advice}") for name in wrong))
        return self

    @model_validator(mode="after")
    def _no_secrets(self) -> Self:
        secrets = [name for name in self.env if _SECRET.search(name)]
        if secrets:
            advice = (
                "looks like a secret: remove it here and export it where `pamp` or Dagster starts; workers inherit it"
            )
            raise Inconsistent(*((f"env.{name}", advice) for name in secrets))
        return self

    @model_validator(mode="after")
    def _options_of_its_launcher(self) -> Self:
        if self.slurm != SlurmOptions() and self.launcher != "slurm":  # a job carries the defaults, too
            raise Inconsistent(("slurm", f"has no effect with `launcher: {self.launcher}`: remove it, or change that"))
        if self.kubernetes != KubernetesOptions() and self.launcher != "kubernetes":
            raise Inconsistent(("kubernetes", f"has no effect with `launcher: {self.launcher}`: remove it"))
        if self.launcher == "kubernetes" and not self.kubernetes.image:
            raise Inconsistent(("kubernetes.image", "is missing: name an image that has pamp_pipelines installed"))
        return self

    def lay_out(self, config: TrainingConfig) -> TrainingConfig:
        """The config as these machines run it: the same mathematics, so the declared config names what comes out."""
        return config.model_copy(update={name: getattr(self, name) for name in self.layout_fields})

    @property
    def layout_fields(self) -> tuple[str, ...]:
        """Fields of a training config that this profile sets itself."""
        return tuple(name for name in ("parallelism", "micro_batch_size") if getattr(self, name) is not None)

    @property
    def world_size(self) -> int:
        """Training processes in all."""
        return self.nodes * self.processes_per_node
