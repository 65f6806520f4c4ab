"""Megatron's forward pass against Hugging Face's: right models agree closely, each kind of damage is seen."""

import pickle
import zipfile
from pathlib import Path

import pytest

from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.verification.compare import LOGITS
from pamp_pipelines.verification.construction import CONSTRUCTION
from tests.verification.conftest import FAMILIES, RANDOM, WINDOWED, WITH_WRONG_TABLES
from tests.verification.wrong_tables import wrong_tables

Verdicts = dict[str, dict[str, CheckResult]]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_is_the_same_model(verdicts: Verdicts, family: str) -> None:
    logits = verdicts[family][LOGITS]
    assert logits.passed, logits.description
    assert logits.metadata["max_abs_diff"] < 2e-5
    assert logits.metadata["max_abs_logit"] > 1.0, "a difference is small beside logits of some size only"
    assert logits.metadata["positions"] >= 64
    assert verdicts[family][CONSTRUCTION].passed, verdicts[family][CONSTRUCTION].description


@pytest.mark.parametrize("name", RANDOM)
def test_random_epsilons_and_rotary_settings(verdicts: Verdicts, name: str) -> None:
    """Inverse frequencies are equal bit for bit, and so are the models beyond the original context."""
    construction, logits = verdicts[name][CONSTRUCTION], verdicts[name][LOGITS]
    assert construction.passed, construction.description
    assert logits.passed, logits.description
    assert logits.metadata["max_abs_diff"] < 4e-5
    original = RANDOM[name]["rope_parameters"].get("original_max_position_embeddings", 0)
    assert logits.metadata["positions"] == original + 64


def test_random_settings_hold_each_kind_of_scaling() -> None:
    kinds = [(c["rope_parameters"]["rope_type"], c["rope_parameters"].get("factor")) for c in RANDOM.values()]
    assert {("llama3", 8.0), ("llama3", 32.0)} <= set(kinds)
    assert {"default", "linear", "llama3", "yarn"} == {kind for kind, _ in kinds}
    assert len({c["rms_norm_eps"] for c in RANDOM.values()}) == len(RANDOM)


def test_positions_beyond_the_original_context_are_compared(verdicts: Verdicts) -> None:
    assert verdicts["llama-scaled"][LOGITS].metadata["positions"] == 32 + 64


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_of_one_token_more_or_less_is_seen(verdicts: Verdicts, family: str) -> None:
    """So the window is that of transformers to the token, in the layers that have it there."""
    others = {name: checks[LOGITS] for name, checks in verdicts.items() if name.startswith(f"{family}, ")}
    assert len(others) == 2
    for name, logits in others.items():
        assert logits.metadata["positions"] >= 64, name
        assert not logits.passed, name
        assert logits.metadata["max_abs_diff"] > 1e-2, name


def test_the_first_layers_alone_can_be_compared(verdicts: Verdicts) -> None:
    logits = verdicts["first 2 layers"][LOGITS]
    assert logits.passed, logits.description
    assert logits.metadata["layers"] == 2
    assert verdicts["first 2 layers"][CONSTRUCTION].passed


@pytest.mark.parametrize(
    ("damage", "fact"),
    [("rotary base", "inverse frequencies"), ("rotary scaling", "inverse frequencies"), ("epsilon", "norm epsilons")],
)
def test_another_config_in_the_artifact_is_seen_in_the_construction_and_in_the_logits(
    verdicts: Verdicts, damage: str, fact: str
) -> None:
    construction, logits = verdicts[damage][CONSTRUCTION], verdicts[damage][LOGITS]
    assert not construction.passed
    assert fact in construction.description
    assert not logits.passed


def test_another_depth_is_seen_although_only_the_first_layers_are_compared(verdicts: Verdicts) -> None:
    assert verdicts["depth"][LOGITS].passed
    assert verdicts["depth"][CONSTRUCTION].description == "layers: Megatron 4, HF 3"


def test_swapped_projections_are_seen_in_the_logits_alone(verdicts: Verdicts) -> None:
    assert verdicts["swapped gate and up"][CONSTRUCTION].passed
    assert not verdicts["swapped gate and up"][LOGITS].passed
    assert verdicts["swapped gate and up"][LOGITS].metadata["top1_agreement"] < 0.9


@pytest.mark.parametrize("family", WITH_WRONG_TABLES)
def test_each_wrong_table_is_found(verdicts: Verdicts, family: str) -> None:
    """Import and export by the same wrong table are inverse to each other: no comparison of bytes can see it."""
    wrong = {name: checks for name, checks in verdicts.items() if name.startswith(f"{family}: ")}
    assert len(wrong) == len(list(wrong_tables(FAMILIES[family]))) >= 4
    assert [name for name, checks in wrong.items() if checks[LOGITS].passed] == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing bias", "linear_qkv.bias is missing"),
        ("unknown bias", "linear_qkv.bias is not in Megatron's model"),
        ("too few layers", "holds 2 layers; 3 were asked for"),
    ],
)
def test_weights_that_do_not_fit_are_named(verdicts: Verdicts, damage: str, words: str) -> None:
    logits = verdicts[damage][LOGITS]
    assert not logits.passed
    assert words in logits.description


def test_code_in_the_objects_of_a_checkpoint_is_not_run(verdicts: Verdicts, evil: Path) -> None:
    assert verdicts["code in the objects"][LOGITS].passed
    assert not (evil / "was-run").exists()
    pickled = zipfile.ZipFile(evil / "evil.distcp").read("archive/data.pkl")
    pickle.loads(pickled)
    assert (evil / "was-run").exists(), "the objects are harmless, so the test proves nothing"
