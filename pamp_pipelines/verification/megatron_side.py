"""Megatron's half of a comparison: the model as training builds it, on one CPU process. Imported by the worker alone.

Axes: T  positions, V  vocabulary
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pamp_pipelines.conversion.torch_dist import StoredCheckpoint
from pamp_pipelines.declarations.training_config import Checkpointing, Dropout, Optimizer, Parallelism, Validation
from pamp_pipelines.errors import PampError
from pamp_pipelines.training.job import TrainJob, WeightedShards
from pamp_pipelines.verification.construction import (
    SCALE_DIGITS,
    Built,
    CheckpointNames,
    Construction,
    frequencies_digest,
)


def key_metadata() -> dict[str, Any]:
    """What the checkpoints' `content_metadata` says about their keys; a new one, since Megatron adds groups to it."""
    return {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}


def prepare() -> None:
    """Import Megatron, adapted to a CPU.

    Raises:
        PampError: the process sees a CUDA device; comparisons are made in fp32 on a CPU.
    """
    from pamp_pipelines.training import cpu_adapter

    if not cpu_adapter.install():
        raise PampError("verification runs on the CPU; start it with CUDA_VISIBLE_DEVICES empty")
    # Megatron wants it of tensor-parallel ranks, whatever they run on
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    for module in ("megatron.core.dist_checkpointing", "megatron.training.arguments", "pamp_pipelines.training.model"):
        importlib.import_module(module)
    from megatron.training.argument_utils import ArgumentGroupFactory

    # parses source code for the texts of --help, each time that arguments are parsed: half a second
    ArgumentGroupFactory._get_field_docstrings = lambda self, config: {}


def start(work: Path) -> None:
    """Make this process, in which Megatron was prepared, the only rank."""
    from megatron.core import parallel_state, tensor_parallel

    rendezvous = f"file://{work / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def build_model(job: TrainJob, *, empty: bool = False) -> Any:
    """The `GPTModel` of a training job on one process, in evaluation mode.

    Args:
        job: whose arguments decide on the model.
        empty: leave the weights as they are allocated, instead of giving them random values.
    """
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.training.arguments import parse_args, validate_args

    from pamp_pipelines.training.arguments import megatron_argv
    from pamp_pipelines.training.model import model_config

    program, *_ = sys.argv
    sys.argv = [program, *megatron_argv(job, cuda=False)]
    args = parse_args()
    validate_args(args)
    built = model_config(args, job)
    built.transformer.perform_initialization = not empty
    built.finalize()
    builder = built.get_builder_cls()(built)
    return builder.build_model(ProcessGroupCollection.use_mpu_process_groups()).eval()


def padded_vocabulary(job: TrainJob) -> int:
    """Rows of the embedding over all tensor-parallel ranks of a job."""
    from megatron.training import arguments
    from megatron.training.vocab_utils import calculate_padded_vocab_size

    defaults = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    divisor = defaults.get_default("make_vocab_size_divisible_by")
    return int(calculate_padded_vocab_size(job.vocab_size, divisor, job.parallelism.tensor))


def fp32_job(config: dict[str, Any], positions: int, work: Path) -> TrainJob:
    """A training job in fp32 with the model of a config.json; what concerns data and the optimizer is never used.

    Args:
        config: content of config.json.
        positions: sequence length.
        work: any directory; nothing is written there.
    """
    return TrainJob(
        name="verification",
        run_dir=work,
        hf_config=config,
        template_dir=work,
        pretrained_checkpoint=None,
        vocab_size=config["vocab_size"],
        eod_id=0,
        train=(WeightedShards(prefix=work / "none", weight=1.0),),
        sequence_length=positions,
        iterations=1,
        global_batch_size=1,
        micro_batch_size=1,
        optimizer=Optimizer(lr=1e-3),
        dropout=Dropout(),
        precision="fp32",
        parallelism=Parallelism(distributed_optimizer=False),
        recompute="none",
        checkpoint=Checkpointing(interval=1),
        validation=Validation(interval=1),
        seed=1,
        data_seed=1,
        determinism="exact",
        log_interval=1,
        world_size=1,
    )


def weight_problems(model: Any, stored: StoredCheckpoint, vocabulary: int) -> list[str]:
    """How the tensors of a checkpoint differ from those that the model has: Megatron itself ignores what is too much.

    Args:
        model: a built model.
        stored: the checkpoint's index.
        vocabulary: rows without padding; a checkpoint may hold any number from there up to the padded one.
    """
    wanted = _shapes(model)
    found = {key: tuple(tensor.shape) for key, tensor in stored.tensors.items()}
    problems = [f"{key} is missing" for key in sorted(wanted.keys() - found.keys())]
    problems += [f"{key} is not in Megatron's model" for key in sorted(found.keys() - wanted.keys())]
    for key in sorted(wanted.keys() & found.keys()):
        padded = key in ("embedding.word_embeddings.weight", "output_layer.weight")
        rows_fit = padded and vocabulary <= found[key][0] <= wanted[key][0] and found[key][1:] == wanted[key][1:]
        if found[key] != wanted[key] and not rows_fit:
            problems.append(f"{key} has shape {list(found[key])}, Megatron's model {list(wanted[key])}")
    return problems


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    sharded = model.sharded_state_dict(metadata=key_metadata())
    apply_factories(sharded)
    return {t.key: tuple(t.global_shape) for t in nested_values(sharded) if isinstance(t, ShardedTensor)}


def load_weights(model: Any, checkpoint: Path) -> None:
    """Load a checkpoint as training does, by ``dist_checkpointing.load``.

    Args:
        model: a built model, of as many layers as the checkpoint.
        checkpoint: directory with `.metadata` that this package wrote.
    """
    from megatron.core import dist_checkpointing

    state = dist_checkpointing.load(model.sharded_state_dict(metadata=key_metadata()), str(checkpoint))
    model.load_state_dict({key: value for key, value in state.items() if key in model.state_dict()})


@torch.inference_mode()
def logits_TV(model: Any, tokens: npt.NDArray[np.int64], vocabulary: int) -> npt.NDArray[np.float32]:
    """Logits after each of the tokens (shape (T,)), without vocabulary padding."""
    tokens_BT = torch.from_numpy(tokens)[None]
    positions_BT = torch.arange(len(tokens))[None]
    return np.asarray(model(tokens_BT, positions_BT, None)[0, :, :vocabulary].float())


def construction(model: Any, config: Mapping[str, Any]) -> Built:
    """What Megatron built on this one rank, from its modules; their parameters may be on the meta device."""
    names = CheckpointNames(config)
    vocabulary = int(config["vocab_size"])
    parameters = dict(model.named_parameters())
    padded = model.embedding.word_embeddings.weight.shape[0]
    padding = sum(
        (p.shape[0] - vocabulary) * p.shape[1]
        for name, p in parameters.items()
        if name in ("embedding.word_embeddings.weight", "output_layer.weight")
    )
    epsilons = {
        names[f"{name}.weight"]: float(module.eps)
        for name, module in model.named_modules()
        if hasattr(module, "eps") and hasattr(module, "weight")
    }
    values, scale = _rotary(model)
    frequencies = values.detach().float().numpy().astype("<f4")
    facts = Construction(
        layers=len(model.decoder.layers),
        parameters=sum(p.numel() for p in parameters.values()) - padding,
        vocabulary=vocabulary,
        inverse_frequencies=frequencies_digest(frequencies.tobytes(), frequencies.size),
        rotary_scale=round(scale, SCALE_DIGITS),
        norm_epsilons=epsilons,
        biases=tuple(sorted({names[name] for name in parameters if name.endswith(".bias")})),
        tied=bool(model.share_embeddings_and_output_weights),
    )
    dropout = Dropout(hidden=model.config.hidden_dropout, attention=model.config.attention_dropout)
    return Built(facts=facts, padded_vocabulary=padded, dropout=dropout)


def _rotary(model: Any) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and factor on sine and cosine; latent attention has an embedding in each layer."""
    attention = model.decoder.layers[0].self_attention
    if not model.config.multi_latent_attention:
        return model.rotary_pos_emb.inv_freq, attention._yarn_concentration_factor
    embedding = attention.rotary_pos_emb
    if model.config.rope_type == "rope":
        return embedding.inv_freq, 1.0
    angles, scale = embedding.get_emb(2)
    return angles[1, 0, 0, : angles.shape[-1] // 2], scale  # the angles of position 1 are the frequencies
