"""Which part of a declaration decides what comes out of it."""

import hashlib
import json
from typing import Any

from pamp_pipelines.declarations.base import Declaration

IRRELEVANT = frozenset(
    {"description", "owners", "cron", "retrain_on_new_data", "profile", "worse_factor", "allow_code"}
)
"""Top-level fields that change neither bytes nor scores: texts, when and where a run happens, a limit of warnings,
a permission."""


def relevant(declaration: Declaration) -> dict[str, Any]:
    """The declaration as plain JSON data without the irrelevant fields, defaults filled in."""
    return declaration.model_dump(mode="json", exclude=set(IRRELEVANT))


def declaration_hash(declaration: Declaration) -> str:
    """SHA-256, in hex, of the relevant part: equal for declarations that mean the same."""
    canonical = json.dumps(relevant(declaration), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
