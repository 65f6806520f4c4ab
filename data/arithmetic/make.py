"""How add1.jsonl was made: every sum of two digits, in the form of a MATH row, in a fixed random order.

    python data/arithmetic/make.py

The four sums that the evaluation shows as examples are left out.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

SHOWN = {(2, 3), (7, 1), (4, 4), (6, 9)}  # the examples in pamp_pipelines/evaluation/tasks/arithmetic.yaml

pairs = [(a, b) for a in range(10) for b in range(10) if (a, b) not in SHOWN]
random.Random(0).shuffle(pairs)
rows = [
    {
        "problem": f"What is {a} + {b}?",
        "level": "Level 0",
        "type": "Arithmetic",
        "solution": f"${a} + {b} = \\boxed{{{a + b}}}$.",
    }
    for a, b in pairs
]
Path(__file__).with_name("add1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
