"""Who answers for an asset."""

from collections.abc import Iterable

from pamp_pipelines.declarations.corpus import Corpus
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.declarations.training_config import TrainingConfig


def owners(declared: Iterable[Corpus | Model | TrainingConfig | Evaluation]) -> list[str]:
    """Owners of all declarations behind an asset, each once, in order of appearance."""
    return list(dict.fromkeys(owner for declaration in declared for owner in declaration.owners))
