"""Which tokens are compared, and how many."""

from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.verification.sample import sample_positions, sample_tokens
from tests.conftest import DATA

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 300,
    "max_position_embeddings": 131072,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


MISTRAL = {"model_type": "mistral", "num_key_value_heads": 2}


def test_real_text_where_there_is_a_tokenizer() -> None:
    from tokenizers import Tokenizer

    directory = DATA / "tokenizers/shakespeare-bpe-2k"
    ids, origin = sample_tokens(directory, 2048, 64)
    assert origin == "text"
    assert ids.shape == (64,)
    assert "quick brown fox" in Tokenizer.from_file(str(directory / "tokenizer.json")).decode(ids.tolist())


def test_random_ids_without_a_tokenizer_or_with_one_that_does_not_fit(tmp_path: Path) -> None:
    ids, origin = sample_tokens(tmp_path, 251, 64)
    assert origin == "random"
    assert len(set(ids.tolist())) > 30
    assert 0 <= ids.min() <= ids.max() < 251
    assert (ids == sample_tokens(tmp_path, 251, 64)[0]).all(), "a comparison can be repeated"
    assert sample_tokens(DATA / "tokenizers/shakespeare-bpe-2k", 100, 64)[1] == "random"


def test_more_positions_than_the_text_has_are_filled_up() -> None:
    ids, origin = sample_tokens(DATA / "tokenizers/shakespeare-bpe-2k", 2048, 5000)
    assert origin == "text"
    assert ids.shape == (5000,)


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({}, 64),
        ({"max_position_embeddings": 48}, 48),
        ({"rope_parameters": LLAMA3}, 8192 + 64),
        # Llama 3.1 8B: beyond the context, a forward pass costs minutes
        ({"rope_parameters": LLAMA3, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336}, 64),
        ({"rope_parameters": LLAMA3, "vocab_size": 128256}, 64),
        ({"rope_parameters": LLAMA3, "max_position_embeddings": 8192}, 64),
        ({**MISTRAL, "sliding_window": 100}, 100 + 64),
        ({**MISTRAL, "sliding_window": None}, 64),
        ({**MISTRAL, "sliding_window": 100, "max_position_embeddings": 150}, 64),
    ],
)
def test_positions_pass_window_and_original_context_where_that_is_cheap(
    changes: dict[str, Any], positions: int
) -> None:
    assert sample_positions({**CONFIG, **changes}) == positions
