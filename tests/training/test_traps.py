"""The table of traps names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_trap_has_a_test() -> None:
    rows = [line for line in (TESTS / "training/TRAPS.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| trap |")]
    assert len(rows) > 25
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?", row.rpartition(" | ")[2])
        assert named, row
        for file, test in named:
            text = (TESTS / file).read_text()
            assert not test or f"def {test}(" in text, f"{file} has no {test}"
