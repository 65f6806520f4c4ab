"""The job that scores a kept checkpoint of the lake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.row_files import HELD_OUT, HUB, held_out_corpus, is_held_out, row_file
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.errors import InputError, MissingInput, VerificationFailed
from pamp_pipelines.evaluation.export_cache import evicted_export
from pamp_pipelines.evaluation.scores import SCORES, read_scores
from pamp_pipelines.evaluation.sources import hub_sources
from pamp_pipelines.evaluation.spec import Baseline, EvaluateJob, Predecessor, Subject, evaluation_spec, work_folder
from pamp_pipelines.lake.artifact import Artifact, find, read_artifact
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.manifest import ArtifactRef
from pamp_pipelines.lake.staging import here
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.job import TrainJob, read_job

HELD_OUT_FILE, HELD_OUT_PREFIX = "heldout.jsonl", "heldout"


def evaluate_job(catalog: Catalog, lake: Lake, key: CheckpointKey, evaluations: Sequence[str]) -> EvaluateJob:
    """Resolve declared evaluations of a checkpoint against its export and its training run.

    Args:
        catalog: the project's declarations.
        lake: where the artifacts are.
        key: the checkpoint.
        evaluations: names of declared evaluations; one worker will serve them all.

    Raises:
        MissingInput: the checkpoint is not exported yet.
        VerificationFailed: the export failed a check that blocks.
        InputError: a task or its rows are missing or wrong.
    """
    export = _export(lake, key)
    run = lake.version_dir(key.model, key.training_config, key.version)
    try:
        training = read_job(run / "job.json")
    except InputError as error:
        raise InputError(f"{error}\nScores of {key} need what it says of the run: put it back from a copy.") from None
    rows = {name: _rows(catalog, lake, key.model, name, catalog.evaluation(name), training) for name in evaluations}
    subject = Subject(
        directory=export.path,
        content=export.content,
        checkpoint_content=next((ref.content for ref in export.manifest.inputs if ref.kind == "checkpoint"), None),
        # The shards end each document with this token, so it is what training puts before the next one.
        prefix=training.eod_id,
        model=key.model,
        training_config=key.training_config,
        version=key.version,
        step=key.step,
        tokens_seen=key.step * training.tokens_per_iteration,
        inputs=(export.ref,),
        baseline=_baseline(lake, training, needed=any(of_one.heldout for of_one in rows.values())),
    )
    root = catalog.project.root
    specs = [
        evaluation_spec(
            name,
            declared := catalog.evaluation(name),
            subject,
            lake.scores_dir(key, name),
            rows[name].files,
            root,
            hub_sources(declared),
            list(dict.fromkeys(rows[name].inputs)),
        ).model_copy(
            update={
                "predecessor": _predecessor(lake, key, name),
                "heldout": tuple(dict.fromkeys(rows[name].heldout)),
            }
        )
        for name in evaluations
    ]
    return EvaluateJob(
        subject=subject,
        evaluations=tuple(specs),
        work=work_folder(lake.scores_dir(key, "").parent, specs),
        profile=_profile(catalog, key.training_config),
        trusted=(root,),
    )


def _profile(catalog: Catalog, training_config: str) -> ComputeProfile:
    """Where to evaluate: where the config trains, or by default where it is not declared any more."""
    config = catalog.training_configs.get(training_config)
    return catalog.profile(config.profile if config else TrainingConfig.model_fields["profile"].default)


def _predecessor(lake: Lake, key: CheckpointKey, evaluation: str) -> Predecessor | None:
    """Scores of the last checkpoint before this one in the same run, if it has any by this evaluation."""
    folder = lake.scores_dir(key, evaluation).parents[1]
    steps = sorted(int(found.name) for found in folder.glob("*/") if found.name.isdecimal())
    for step in reversed([step for step in steps if step < key.step]):
        file = lake.scores_dir(replace(key, step=step), evaluation) / SCORES
        if file.is_file():
            # One of an older version, or damaged, is no reason not to score this checkpoint.
            with contextlib.suppress(InputError):
                return Predecessor(step=step, rows=tuple(read_scores(file)))
    return None


def _export(lake: Lake, key: CheckpointKey) -> Artifact:
    path = lake.export_dir(key)
    if (evicted := evicted_export(path)) is not None:
        export = evicted  # its identity is known; whoever scores it makes it again
    else:
        try:
            export = require_intact_artifact(read_artifact(path))
        except InputError:
            raise MissingInput("hf_export", str(key)) from None
    if failed := export.manifest.failed_checks:
        reasons = "; ".join(f"{check.name}: {check.description}" for check in failed)
        raise VerificationFailed(f"{path}: not scored, since the export failed a check that blocks: {reasons}")
    return export


def _here(lake: Lake, prefixes: Iterable[Path]) -> tuple[Path, ...]:
    """Shard prefixes in this lake by the names of their folders; the job's absolute paths may be of another place."""
    return tuple(lake.shards_dir(p.parent.parent.name, p.parent.name) / p.name for p in prefixes)


def _baseline(lake: Lake, training: TrainJob, needed: bool) -> Baseline | None:
    """None for a run that held out nothing, unless other held-out text is to be looked for in its training shards."""
    heldout = _here(lake, (shards.prefix for shards in training.heldout))
    if not heldout and not needed:
        return None
    return Baseline(
        train=_here(lake, (shards.prefix for shards in training.train)),
        heldout=heldout,
        rows=tuple(prefix.with_name(HELD_OUT_FILE) for prefix in heldout),
        eod=training.eod_id,
        vocabulary=training.vocab_size,
    )


@dataclass
class _Rows:
    """Files of local rows by task; prefixes of the shards that held-out ones are of; shards that the run has not."""

    files: dict[str, list[Path]] = field(default_factory=dict)
    heldout: list[Path] = field(default_factory=list)
    inputs: list[ArtifactRef] = field(default_factory=list)


def _rows(catalog: Catalog, lake: Lake, model: str, name: str, declared: Evaluation, training: TrainJob) -> _Rows:
    """Local rows of an evaluation; ``held_out`` are those of every corpus of the run, in its order."""
    rows = _Rows()
    for task, source in declared.data.items():
        where = f"{catalog.file_of('evaluation', name)}: data.{task}"
        if task not in declared.tasks:
            raise InputError(f"{where}: no task of this evaluation.")
        if is_held_out(source):
            corpus = held_out_corpus(source)
            if corpus == "":
                raise InputError(f"{where}: {source!r} names no corpus after the colon; {HELD_OUT} is the run's own.")
            prefixes, shards = _held_out(catalog, lake, model, training, corpus)
            rows.files[task] = [prefix.with_name(HELD_OUT_FILE) for prefix in prefixes]
            rows.heldout += prefixes
            rows.inputs += shards
            if not prefixes:
                which = f"corpus {corpus} holds" if corpus else f"the corpora of {training.name} hold"
                raise InputError(f"{where}: {which} out nothing; set `held_out: {{fraction: …}}` there.")
        elif not source.startswith(HUB):
            packages = catalog.project.data / "packages"
            rows.files[task] = [row_file(source, catalog.project.resolve, packages)]
    return rows


def _held_out(
    catalog: Catalog, lake: Lake, model: str, training: TrainJob, corpus: str | None
) -> tuple[list[Path], list[ArtifactRef]]:
    """Prefixes of held-out shards: of one corpus, or of all that the run was trained on; and what the run has not.

    Those of a corpus of the run are the ones that it held out. Of another corpus they are those of its shards for the
    model as declared now.

    Raises:
        MissingInput: the shards, or their texts, are not there.
    """
    of_run = [shards for shards in training.heldout if corpus in (None, shards.corpus)]
    prefixes = list(_here(lake, (shards.prefix for shards in of_run)))
    inputs: list[ArtifactRef] = []
    partition: str | None = None
    if corpus is not None and not of_run:
        job = tokenize_job(catalog, lake, corpus, model)
        partition = f"{corpus}|{model}"
        shards = find(job.output, job.id)
        if shards is None:
            raise MissingInput("tokenized_shards", partition)
        if shards.manifest.stats.get("heldout", {}).get("documents"):
            prefixes, inputs = [shards.path / HELD_OUT_PREFIX], [shards.ref]
    for file in (prefix.with_name(HELD_OUT_FILE) for prefix in prefixes):
        if not here(file).is_file():
            raise MissingInput("tokenized_shards", partition, f"{file} is gone; {training.name} is scored on it.")
    return prefixes, inputs
