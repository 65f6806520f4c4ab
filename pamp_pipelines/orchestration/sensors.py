"""Sensors that keep Dagster's picture true: of the YAML on disk, and of the checkpoints in the lake."""

import time
from dataclasses import replace

import dagster as dg

from pamp_pipelines.declarations.catalog import KINDS, Catalog, folder_of
from pamp_pipelines.declarations.usable import usable_catalog
from pamp_pipelines.errors import Problem
from pamp_pipelines.orchestration.checkpoints import announce_unknown
from pamp_pipelines.orchestration.damage import sentences
from pamp_pipelines.orchestration.declarations import Report, observe
from pamp_pipelines.orchestration.leftovers import end_leftovers
from pamp_pipelines.orchestration.resources import ProjectResource

SETTLED_S = 120.0
"""A training run reports its checkpoints itself, within moments; what is older than this was missed."""

AT_ONCE = 100
"""Checkpoints that one tick registers: a tick has to end within a minute."""


def watch_declarations(loaded: Catalog) -> dg.SensorDefinition:
    """Observes changed declarations; its message says what is on disk and not loaded.

    Args:
        loaded: the declarations that the definitions were built from.
    """

    @dg.sensor(
        name="watch_declarations",
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports a new data version of each declaration whose YAML has changed, so that exactly the "
        "partitions that read it become stale. Says when Reload definitions is needed.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        on_disk, problems = usable_catalog(loaded.project)
        events: list[Report] = []
        observed = observe(context.instance, known_to(loaded, on_disk), events.append)
        return dg.SensorResult(asset_events=events, skip_reason=_message(loaded, on_disk, problems, observed))

    return watch


def register_checkpoints() -> dg.SensorDefinition:
    """Reports kept checkpoints of the lake that no run has: copied there, or of a run that died before it could."""

    @dg.sensor(
        name="register_checkpoints",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Adds kept checkpoints that are in the lake and not in Dagster: copied there from elsewhere, or "
        "made by `pamp train`.",
    )
    def register(context: dg.SensorEvaluationContext, pamp: ProjectResource) -> dg.SkipReason:
        settled = time.time() - SETTLED_S
        announced = announce_unknown(context.instance, pamp.lake, before=settled, at_most=AT_ONCE)
        parts = [f"Added {', '.join(announced.added)}." if announced.added else "Every kept checkpoint is known."]
        parts += ["Left out: " + "; ".join(sentences(announced.left_out))] if announced.left_out else []
        return dg.SkipReason(" ".join(parts))

    return register


def end_dead_runs(minimum_interval_s: int = 30) -> dg.SensorDefinition:
    """Fails runs whose process is gone, so that their slot of a pool is free again."""

    @dg.sensor(
        name="end_dead_runs",
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Marks runs of this machine as failed whose process was killed together with Dagster, or with "
        "`pamp materialize`, and frees their slots. Their workers end by themselves.",
    )
    def end_dead(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        ended = end_leftovers(context.instance)
        return dg.SkipReason(f"Ended {', '.join(ended)}." if ended else "No run has lost its process.")

    return end_dead


def known_to(loaded: Catalog, on_disk: Catalog) -> Catalog:
    """The declarations on disk that have a partition in the loaded definitions."""
    return replace(
        on_disk,
        corpora={name: c for name, c in on_disk.corpora.items() if name in loaded.names("corpus")},
        models={name: m for name, m in on_disk.models.items() if name in loaded.names("model")},
        training_configs={
            name: c for name, c in on_disk.training_configs.items() if name in loaded.names("training_config")
        },
    )


def not_loaded(loaded: Catalog, on_disk: Catalog) -> list[str]:
    """Declarations that were added, removed or edited after the definitions were loaded, as ``models/name``."""
    found = []
    for kind in KINDS:
        old, new, folder = loaded.declared(kind), on_disk.declared(kind), folder_of(loaded.project, kind).name
        found += [f"{folder}/{name}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return found


def _message(loaded: Catalog, on_disk: Catalog, problems: list[Problem], observed: int) -> str:
    parts = [f"Observed {observed} changed declarations."] if observed else []
    if problems:
        parts.append("Not readable: " + "; ".join(map(str, problems)))
    if differ := not_loaded(loaded, on_disk):
        parts.append(f"On disk and not as loaded: {', '.join(differ)}. Press Reload definitions.")
    return " ".join(parts) or "Every declaration is as loaded."
