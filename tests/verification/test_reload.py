"""Real Megatron ranks load an import at other parallel sizes and save it: the export has every bit of the source."""

import pytest

from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.verification.compare import LOGITS
from pamp_pipelines.verification.divisions import RELOADED, division_problems, other_division
from pamp_pipelines.verification.job import Division
from tests.verification.conftest import DIVIDED, FAMILIES

Verdicts = dict[str, dict[str, CheckResult]]


@pytest.mark.slow
@pytest.mark.parametrize("family", DIVIDED)
def test_what_ranks_save_is_what_was_imported(verdicts: Verdicts, family: str) -> None:
    checks = verdicts[f"{family} divided"]
    assert checks[LOGITS].passed, checks[LOGITS].description
    assert checks[RELOADED].passed, checks[RELOADED].description
    assert all(str(division) in checks[RELOADED].description for division in DIVIDED[family][1])


@pytest.mark.slow
def test_a_rank_that_fails_is_quoted(verdicts: Verdicts) -> None:
    check = verdicts["five ranks"][RELOADED]
    assert not check.passed
    assert check.description.startswith("Megatron at TP 5 PP 1 EP 1: AssertionError")
    assert "5" in check.description


@pytest.mark.slow
def test_weights_that_do_not_fit_are_not_loaded_elsewhere(verdicts: Verdicts) -> None:
    assert RELOADED not in verdicts["missing bias"], "the case asks for no other sizes"


@pytest.mark.parametrize("family", DIVIDED)
def test_the_sizes_that_are_tried_divide_the_model(family: str) -> None:
    config, divisions = DIVIDED[family]
    assert {d for d in divisions if division_problems(config, d)} == set()
    assert division_problems(config, other_division(config)) == []
    assert other_division(config).processes == (8 if "num_experts_per_tok" in config else 4)


@pytest.mark.parametrize(
    ("family", "division", "words"),
    [
        ("llama", Division(tensor=4), ["4 does not divide 6 attention heads"]),
        ("llama", Division(tensor=3), ["3 is neither a divisor nor a multiple of 2 KV heads", "axis F of 88"]),
        ("llama", Division(pipeline=2), ["2 stages do not divide 3 layers"]),
        ("qwen3_moe", Division(expert=2), ["2 does not divide 7 experts"]),
        ("deepseek_v3", Division(tensor=4), ["attention heads", "axis A of 30", "axis B+R of 34"]),
        ("llama", Division(expert=2), ["2 does not divide 1 experts"]),
    ],
)
def test_sizes_that_do_not_divide_are_named(family: str, division: Division, words: list[str]) -> None:
    problems = division_problems(FAMILIES[family], division)
    assert len(problems) == len(words), problems
    assert all(word in problem for word, problem in zip(words, problems, strict=True)), problems
