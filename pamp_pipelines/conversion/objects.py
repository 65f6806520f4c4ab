"""The pickled objects of a checkpoint that this package writes: Megatron's common state, and `_extra_state`s.

Keys that a model does not ask for are free; one that is missing makes Megatron refuse the checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.payload import EMPTY, write_object
from pamp_pipelines.conversion.torch_dist import StoredObject

_COMMON: dict[str, Any] = {
    "checkpoint_version": 3.0,
    "iteration": 0,
    # what the loader needs to name its keys like this file's (megatron-core 0.19.2, dist_checkpointing/utils.py)
    "content_metadata": {"singleton_local_shards": False, "chained_optim_avoid_prefix": True},
}
"""Megatron's common state: an object of the checkpoint since 0.19. Without `args`: config.json decides the model."""


def write_objects(file: Path, extra_states: Iterable[str]) -> list[StoredObject]:
    """Writes the common state and an empty `_extra_state` for each of the keys into `file`, flushed to storage.

    All of the empty ones share one payload: a model with thousands of experts asks for tens of thousands.
    """
    with file.open("xb+") as stream:
        common = write_object(stream, [_COMMON])
        empty = write_object(stream, [EMPTY])
        stream.flush()
        os.fsync(stream.fileno())
    objects = [StoredObject("common_state/shard_0_1", file.name, 0, common)]
    return objects + [StoredObject(key, file.name, common, empty) for key in extra_states]
