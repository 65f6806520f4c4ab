"""Names that Dagster could not tell apart as dimensions of a partition."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pamp_pipelines.errors import Problem

_FOLDERS = {"corpus": "corpora", "model": "models", "training_config": "training_configs"}


def name_clashes(names: Mapping[str, Collection[str]], file_of: Callable[[str, str], Path]) -> list[Problem]:
    """Kinds that span a grid of partitions together and declare the very same names.

    Dagster finds the dimension that two assets share by comparing all keys of the dimensions, not their names, also
    where a mapping names the dimension (``MultiToSingleDimensionPartitionMapping`` in 1.13.28).

    Args:
        names: by kind of declaration.
        file_of: the YAML file of a kind and name.
    """
    problems = []
    for first, second in (("corpus", "model"), ("model", "training_config")):
        if (shared := set(names[second])) and shared == set(names[first]):
            example = min(shared)
            message = (
                f"assets/{_FOLDERS[first]} and assets/{_FOLDERS[second]} declare the very same names "
                f"({', '.join(sorted(shared))}), and Dagster cannot tell such dimensions of a partition apart. Rename "
                f"one of the files, e.g. to {example}-1.yaml."
            )
            problems.append(Problem(file_of(second, example), 1, "", message))
    return problems
