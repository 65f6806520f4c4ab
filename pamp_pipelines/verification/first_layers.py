"""A checkpoint seen through an index of our own: all of it, or its first layers. No weight is copied.

Megatron and torch open the `.metadata` of a checkpoint and its objects with plain pickle. Here the original's index is
read by the restricted reader, its objects are not read at all, and what they open is an index and empty objects written
by this package, beside links to the original's payload files. That also is how a model of N layers loads the first N
rows of tensors that are stacked over all layers.

Axes: L  layers of the checkpoint; the leading axis of every stacked tensor
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.objects import write_objects
from pamp_pipelines.conversion.torch_dist import (
    StoredCheckpoint,
    StoredChunk,
    StoredTensor,
    read_checkpoint,
    write_index,
)
from pamp_pipelines.errors import InputError

STACKED = "decoder.layers."
_OWN = re.compile(r"decoder\.layers\.(?P<layer>\d+)\.")
"""Begin of a key that belongs to one layer: where layers differ, Megatron does not stack them."""
_OBJECT = re.compile(r"(?P<key>.+)/shard_(?P<layer>\d+)(?P<expert>\.\d+)?_(?P<layers>\d+)(?P<experts>\.\d+)?")
_EXTRA_STATE = "._extra_state/"
_OBJECTS = "objects.distcp"
"""The only payload file that is no link. Megatron's own are called `__<rank>_<number>.distcp`."""
_LEFT_OUT = ("optimizer.", "rng_state", "rerun_state", "mtp.")
"""No weights, or weights that neither training nor transformers loads: multi-token prediction."""


def link_weights(checkpoint: Path, target: Path, *, layers: int | None = None) -> StoredCheckpoint:
    """Makes `target` a checkpoint that holds the model weights of `checkpoint`, up to layer `layers`.

    Args:
        checkpoint: directory with `.metadata`.
        target: a directory to be made.
        layers: how many layers to keep, counted from the first; None keeps all.

    Raises:
        InputError: the checkpoint is damaged, or it has fewer layers.
    """
    stored = read_checkpoint(checkpoint)
    tensors = [t for t in stored.tensors.values() if t.dtype is not None and not t.key.startswith(_LEFT_OUT)]
    states = [key for key in stored.objects if _EXTRA_STATE in key and not key.startswith(_LEFT_OUT)]
    if layers is not None:
        tensors = [_first_rows(t, layers, checkpoint) for t in tensors if _layer_of(t.key) < layers]
        states = list(_first_states(states, layers))
    target.mkdir(parents=True)
    for file in sorted({c.file for t in tensors for c in t.chunks}):
        (target / file).symlink_to((checkpoint / file).resolve())
    objects = write_objects(target / _OBJECTS, states)
    write_index(target, tensors, objects)
    return StoredCheckpoint(target, {t.key: t for t in tensors}, {o.key: o for o in objects})


def _layer_of(key: str) -> int:
    """The layer that a key names; -1 for a key that stands for all layers or for none."""
    match = _OWN.match(key)
    return int(match["layer"]) if match else -1


def _first_rows(tensor: StoredTensor, layers: int, checkpoint: Path) -> StoredTensor:
    if not tensor.key.startswith(STACKED) or _OWN.match(tensor.key):
        return tensor
    if tensor.shape[0] < layers:
        raise InputError(f"{checkpoint}: {tensor.key} holds {tensor.shape[0]} layers; {layers} were asked for")
    chunks = tuple(chunk for chunk in tensor.chunks if _within(chunk, layers, tensor, checkpoint))
    return replace(tensor, shape=(layers, *tensor.shape[1:]), chunks=chunks)


def _within(chunk: StoredChunk, layers: int, tensor: StoredTensor, checkpoint: Path) -> bool:
    first, end = chunk.offset[0], chunk.offset[0] + chunk.size[0]
    if first < layers < end:
        raise InputError(
            f"{checkpoint}: {tensor.key} is stored in one piece for layers {first} to {end - 1}; compare {end} or all"
        )
    return end <= layers


def _first_states(keys: list[str], layers: int) -> Iterator[str]:
    for key in keys:
        match = _OBJECT.fullmatch(key)
        if not key.startswith(STACKED) or match is None or _OWN.match(key):
            if _layer_of(key) < layers:
                yield key
        elif int(match["layer"]) < layers:
            expert, experts = match["expert"] or "", match["experts"] or ""
            yield f"{match['key']}/shard_{match['layer']}{expert}_{layers}{experts}"


def first_layers_config(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The config.json of a model that has only the first `layers` layers."""
    if layers is None:
        return config
    shortened = {**config, "num_hidden_layers": layers}
    if isinstance(kinds := config.get("layer_types"), list):
        shortened["layer_types"] = kinds[:layers]
    return shortened
