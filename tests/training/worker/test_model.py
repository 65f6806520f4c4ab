"""The model that training builds has the rotary frequencies that Hugging Face reads from the same config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.verification.dry_run import dry_run


@pytest.mark.slow
def test_rope_scaling_and_base_that_megatrons_arguments_cannot_say(trainer: Any, tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 400000.5,
        "factor": 32.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 5.0,
        "original_max_position_embeddings": 4096,
    }
    config = trainer.job(tmp_path).hf_config | {"rope_parameters": rope, "head_dim": 16}
    del config["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, checks = dry_run(trainer.job(tmp_path, hf_config=config))
    assert [(check.passed, check.description) for check in checks if not check.passed] == []
    assert "construction_matches_hf" in {check.name for check in checks}
