"""Turn a GGUF file of a language model into a Hugging Face directory (bfloat16 safetensors, config, tokenizer).

GGUF is llama.cpp's single-file format. transformers reads it and dequantises the weights; what it holds afterwards
still carries a quantizer that refuses to be saved, so the weights move into a fresh module of the same config first.
"""

from __future__ import annotations

from pathlib import Path

from pamp_pipelines.errors import InputError


def gguf_to_hf(source: Path, destination: Path) -> None:
    """Write `destination` (an existing, empty directory) from the GGUF file `source`; about 1 GB for 135 M parameters.

    Raises:
        InputError: transformers cannot read the file.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # it recommends float32 for speed; the weights are only copied here
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        quantised = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise InputError(f"{source}: transformers cannot read this GGUF file ({error}); install it again") from error
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(quantised.state_dict(), strict=True)
    plain.save_pretrained(destination)
    tokenizer.save_pretrained(destination)
    for path in destination.iterdir():
        path.chmod(0o644)  # safetensors writes 0600, which another user of the same machine could not read
