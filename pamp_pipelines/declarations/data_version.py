"""Which part of a declaration decides what comes out of it."""

import hashlib
import json
from typing import Any

from pamp_pipelines.declarations.base import Declaration
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.declarations.training_identity import declared_training

IRRELEVANT = frozenset({"description", "owners", "shard_sets"})
"""Fields of a corpus or model that change nothing made of it: words for people, and the corpora that are beside it."""


def relevant(declaration: Declaration) -> dict[str, Any]:
    """The declaration as plain JSON data without what is irrelevant, defaults filled in."""
    if isinstance(declaration, TrainingConfig):
        return declared_training(declaration)
    return declaration.model_dump(mode="json", exclude=set(IRRELEVANT))


def declaration_hash(declaration: Declaration) -> str:
    """SHA-256, in hex, of the relevant part: equal for declarations that mean the same."""
    canonical = json.dumps(relevant(declaration), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
