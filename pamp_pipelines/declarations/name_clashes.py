"""Names that Dagster could not tell apart as dimensions of a partition."""

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import Problem


def name_clashes(catalog: Catalog) -> list[Problem]:
    """Kinds that span a grid of partitions together and declare the very same names.

    Dagster finds the dimension that two assets share by comparing all keys of the dimensions, not their names.
    """
    kinds = {
        "corpus": ("corpora", set(catalog.corpora)),
        "model": ("models", set(catalog.models)),
        "training_config": ("training_configs", set(catalog.training_configs)),
    }
    problems = []
    for first, second in (("corpus", "model"), ("model", "training_config")):
        (folder, names), (other, other_names) = kinds[first], kinds[second]
        if names and names == other_names:
            example = min(names)
            message = (
                f"assets/{folder} and assets/{other} declare the very same names ({', '.join(sorted(names))}), and "
                f"Dagster cannot tell such dimensions of a partition apart. Rename one of the files, e.g. to "
                f"{example}-1.yaml."
            )
            problems.append(catalog.problem(second, example, (), message))
    return problems
