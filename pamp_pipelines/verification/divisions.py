"""By which parallel sizes Megatron can divide a model among processes. Pure data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pamp_pipelines.conversion.architectures import Op
from pamp_pipelines.conversion.layout import Layout, layout_of
from pamp_pipelines.verification.job import Division

RELOADED = "loads_at_other_sizes"
"""Name of the check that Megatron loads a checkpoint at other parallel sizes (reload.py)."""

_COMPRESSED = ("A", "B+R")
"""Axes of latent attention's down-projections: whole under Transformer Engine, divided by Megatron's local layers."""


def division_problems(config: dict[str, Any], division: Division) -> list[str]:
    """Why Megatron cannot divide the model so, one reason each; empty where it can.

    Args:
        config: content of config.json.
        division: the parallel sizes.
    """
    layout = layout_of(config)
    sizes = layout.dimensions
    problems = [*_tensor_problems(config, layout, division.tensor)]
    if sizes["L"] % division.pipeline:
        problems.append(f"{division.pipeline} stages do not divide {sizes['L']} layers")
    experts = sizes.get("E", 1)
    if experts % division.expert:
        problems.append(f"{division.expert} does not divide {experts} experts")
    return problems


def _tensor_problems(config: dict[str, Any], layout: Layout, tensor: int) -> Iterator[str]:
    heads = int(config["num_attention_heads"])
    if heads % tensor:
        yield f"{tensor} does not divide {heads} attention heads"
    sizes = layout.dimensions
    divided = {axis for axis in _COMPRESSED if sizes.get(axis, 0) % tensor}
    for entry in layout.entries:
        axis = entry.tensor_parallel_axis
        if entry.op is Op.GROUP_QKV:
            groups = sizes["K"] // sizes["D"]
            if groups % tensor and tensor % groups:
                yield f"{tensor} is neither a divisor nor a multiple of {groups} KV heads"
        elif axis is not None and not entry.padded:
            # the halves of a joined tensor are divided each
            names = [s.axes[axis] for s in entry.sources] if entry.op is Op.JOIN else [entry.block_axes[axis]]
            divided |= {name for name in names if sizes[name] % tensor}
    yield from (f"{tensor} does not divide axis {name} of {sizes[name]}" for name in sorted(divided))


def other_division(config: dict[str, Any]) -> Division:
    """Two of each kind, where two divide the model; all ones where it cannot be divided at all."""
    parts = {}
    for name in Division.model_fields:
        if not division_problems(config, Division(**{name: 2})) and (name != "expert" or _experts(config) > 1):
            parts[name] = 2
    return Division(**parts)


def _experts(config: dict[str, Any]) -> int:
    return layout_of(config).dimensions.get("E", 1)
