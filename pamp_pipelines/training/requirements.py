"""Whether a training could run where it is to: said before anything is claimed or started."""

import sys
from importlib.util import find_spec
from pathlib import Path

from pamp_pipelines.declarations.cuda_needs import cuda_needs
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.errors import InputError
from pamp_pipelines.launchers.devices import may_have_gpus


def require_megatron(purpose: str) -> None:
    """Say so before a worker is started that could only fail.

    Args:
        purpose: what needs it, at the start of a sentence.

    Raises:
        InputError: megatron-core is not installed.
    """
    if find_spec("megatron") is not None:
        return
    where = (
        "install the project's locked dependencies with `make setup`"
        if sys.platform.startswith("linux")
        else f"it has no build for {sys.platform}: use a Linux machine or a Linux container; declarations, the UI, "
        "tokenization, conversion, export and evaluation work here"
    )
    raise InputError(f"{purpose} needs megatron-core, which is not installed; {where}")


def require_devices(config: TrainingConfig, profile: ComputeProfile, file: Path) -> None:
    """Raises InputError where the config needs CUDA devices and the profile's machines have none.

    Args:
        config: as the profile lays it out.
        profile: where the run is to be.
        file: of the config, for the message.
    """
    needs = cuda_needs(config.precision, config.state_precision, config.parallelism, config.offload)
    if needs and profile.has_gpus(here=may_have_gpus()) is False:
        raise InputError(f"{file}: " + "; ".join(f"{field}: {message}" for field, message in needs.items()))
