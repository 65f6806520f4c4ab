"""What Dagster's grid of models and training configs cannot say: which of its cells are declared.

A grid is always full, a cell that no config declares counts as missing for ever, and Dagster offers no state for it. So
the asset's description gives the true numbers and the reasons, and a launch of such a cell fails at once.
"""

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.orchestration.values import table

_NAMED = 10
"""Configs with undeclared cells that are listed by name; `declared_pairs` has them all."""


def grid_note(catalog: Catalog) -> str:
    """Markdown: how many cells are declared, and of the others whose file leaves them out."""
    cells, declared = len(catalog.models) * len(catalog.training_configs), len(catalog.pairs())
    if cells == declared:
        return "Every cell of the grid is declared: each config trains every model."
    partial = [config for config in catalog.training_configs if len(catalog.models_of(config)) < len(catalog.models)]
    lines = [
        f"* `training_configs/{config}.yaml` lists `models:` {', '.join(catalog.models_of(config)) or 'none'}"
        for config in partial[:_NAMED]
    ]
    lines += [f"* and {len(partial) - _NAMED} more: see `declared_pairs`"] if len(partial) > _NAMED else []
    others = "The other one always shows" if cells - declared == 1 else f"The other {cells - declared} always show"
    return (
        f"**{declared} of the {cells} cells of the grid are declared.** {others} as missing, and a launch of one fails "
        "at once:\n\n"
        + "\n".join(lines)
        + "\n\n`pamp materialize pretrained_checkpoint --all` and the schedules launch declared cells only."
    )


def declared_pairs(catalog: Catalog) -> dg.MetadataValue:
    """A row for each training config: the models it trains, and those it does not."""
    return table(
        [
            {
                "training_config": config,
                "trains": ", ".join(models := catalog.models_of(config)),
                "not declared": ", ".join(sorted(set(catalog.models) - set(models))),
            }
            for config in catalog.training_configs
        ],
        schema=dg.TableSchema([dg.TableColumn(name) for name in ("training_config", "trains", "not declared")]),
    )
