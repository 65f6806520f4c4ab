"""What of a training config only CUDA devices can do."""

from pamp_pipelines.declarations.training_config import Offload, Parallelism, StatePrecision


def cuda_needs(
    precision: str, state_precision: StatePrecision, parallelism: Parallelism, offload: Offload
) -> dict[str, str]:
    """What training refuses on a CPU: dotted field to why, and what to do; empty for a config that a CPU can train."""
    needs = {}
    if precision.startswith("fp8"):
        needs["precision"] = f"precision {precision} needs a CUDA device; without one use bf16 or fp32"
    if precision == "tf32":
        needs["precision"] = "precision tf32 needs a CUDA device; without one use fp32"
    if state_precision != "fp32":
        needs["state_precision"] = (
            f"state_precision {state_precision} needs CUDA and Transformer Engine; without use fp32"
        )
    if parallelism.context > 1:
        needs["parallelism.context"] = f"parallelism.context {parallelism.context} needs CUDA devices; without take 1"
    if offload != Offload():
        needs["offload"] = (
            "offload needs a CUDA device: without one the optimizer's state and the activations lie in the host's "
            "memory anyway; leave `offload` out"
        )
    return needs
