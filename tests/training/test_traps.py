"""The tables of traps and of arguments name tests that exist, and the latter every argument that is set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pamp_pipelines.training.arguments import table_destinations
from tests.training.test_arguments import WINDOWED, job

TESTS = Path(__file__).parents[1]


def rows(name: str) -> list[str]:
    """Lines of the tables of a page, without their heads."""
    lines = [line for line in (TESTS / f"training/{name}.md").read_text().splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| trap |", "| event |", "| destinations |"))]


@pytest.mark.parametrize(("page", "at_least"), [("TRAPS", 30), ("TABLE", 50)])
def test_every_row_names_tests_that_exist(page: str, at_least: int) -> None:
    assert len(rows(page)) > at_least
    for row in rows(page):
        named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?", row.rpartition(" | ")[2])
        assert named or (page == "TABLE" and re.search(r"\| `\w+\.\w+`", row)), row
        for file, test in named:
            text = (TESTS / file).read_text()
            assert not test or f"def {test}(" in text, f"{file} has no {test}"


def test_the_effect_of_every_argument_of_the_table_is_seen_somewhere() -> None:
    jobs = [job(), job(precision="fp16"), job(recompute="full"), job(pretrained_checkpoint=Path("/import"))]
    jobs += [job(checkpoint={"interval": 5, "asynchronous": True}), job(hf_config=WINDOWED)]
    cuda = [job(precision="fp8_blockwise"), job(state_precision="bf16")]
    cuda.append(job(offload={"optimizer": 1.0, "activation_layers": 1}))
    table = set().union(
        *(table_destinations(one, cuda=False) for one in jobs),
        *(table_destinations(one, cuda=True) for one in [*jobs, *cuda]),
    )
    told = re.findall(r"`(\w+)`", "\n".join(row.split(" | ")[0] for row in rows("TABLE")))
    assert sorted(told) == sorted(table)
