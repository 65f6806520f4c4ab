"""A training job for tests that train nothing."""

from pathlib import Path
from typing import Any

from pamp_pipelines.training.job import TrainJob


def plain_train_job(folder: Path, **changes: Any) -> TrainJob:
    """The job of a two-layer Llama whose files would lie in ``folder``; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "name": "m/c/v0001",
        "run_dir": folder,
        "hf_config": {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "vocab_size": 128,
        },
        "template_dir": folder,
        "pretrained_checkpoint": None,
        "vocab_size": 128,
        "eod_id": 0,
        "train": [{"prefix": folder / "a", "weight": 1.0}],
        "sequence_length": 16,
        "iterations": 10,
        "global_batch_size": 4,
        "micro_batch_size": 1,
        "optimizer": {"lr": 1.0},
        "dropout": {},
        "precision": "fp32",
        "parallelism": {},
        "recompute": "none",
        "checkpoint": {"interval": 5},
        "validation": {"interval": 5},
        "seed": 1,
        "data_seed": 1,
        "determinism": "exact",
        "log_interval": 1,
        "world_size": 1,
    }
    return TrainJob.model_validate(fields | changes)
