"""Hugging Face's half of a comparison: transformers on the CPU. Imported by the worker alone.

Axes: T  positions, V  vocabulary
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pamp_pipelines.errors import InputError
from pamp_pipelines.verification.construction import SCALE_DIGITS, CheckpointNames, Construction, frequencies_digest


def load_model(directory: Path, *, dtype: str = "float32", layers: int | None = None) -> Any:
    """The model of a Hugging Face directory, in evaluation mode.

    Args:
        directory: config.json and safetensors.
        dtype: what it computes in: a torch type, or `auto` for that of the files.
        layers: build and read only this many, counted from the first.

    Raises:
        InputError: transformers cannot load it, or it asks for code or tensors that are not there.
    """
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(directory, **local)
        if layers is not None:
            kinds = getattr(config, "layer_types", None)
            config.num_hidden_layers = layers
            if kinds is not None:
                config.layer_types = kinds[:layers]
        model, loading = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            use_safetensors=True,
            output_loading_info=True,
            **local,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"{directory}: transformers cannot load this model: {error}") from error
    if loading["missing_keys"]:
        raise InputError(f"{directory}: tensors are missing, transformers filled in random ones: {loading}")
    return model.eval()


def empty_model(directory: Path) -> Any:
    """The model of a config.json without memory for its weights: on the meta device.

    Raises:
        InputError: transformers cannot build it.
    """
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"{directory}: transformers cannot build this model: {error}") from error


@torch.inference_mode()
def logits_TV(model: Any, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Logits after each of the tokens (shape (T,)), as one sequence from position 0."""
    output = model(input_ids=torch.from_numpy(tokens)[None], use_cache=False)
    return np.asarray(output.logits[0].float())


def construction(model: Any) -> Construction:
    """What transformers built."""
    names = CheckpointNames(model.config.to_dict())
    parameters = dict(model.named_parameters())  # a tied parameter has one name
    rotary = [module for module in model.modules() if hasattr(module, "inv_freq")]
    # frequencies on the meta device have no values: computed anew, as transformers does
    rotary = [type(module)(config=model.config) if module.inv_freq.is_meta else module for module in rotary]
    (frequencies,) = {_digest(module.inv_freq) for module in rotary}
    (scale,) = {round(float(getattr(module, "attention_scaling", 1.0)), SCALE_DIGITS) for module in rotary}
    return Construction(
        layers=len(model.model.layers),
        parameters=sum(p.numel() for p in parameters.values()),
        vocabulary=model.get_input_embeddings().num_embeddings,
        inverse_frequencies=frequencies,
        rotary_scale=scale,
        norm_epsilons={
            names[f"{name}.weight"]: float(module.variance_epsilon)
            for name, module in model.named_modules()
            if hasattr(module, "variance_epsilon")
        },
        biases=tuple(sorted({names[name] for name in parameters if name.endswith(".bias")})),
        tied=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
    )


def _digest(frequencies: torch.Tensor) -> str:
    values = frequencies.detach().float().cpu().numpy().astype("<f4")
    return frequencies_digest(values.tobytes(), values.size)
