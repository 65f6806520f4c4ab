"""Retraining on new data: scan a corpus that has changed, tokenize it, train the configs that ask for it.

A look at the lake decides what is next, so that it does not matter who did the step before, or whether Dagster was
away. Nothing is requested twice: a run that failed waits for a person.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from pamp_pipelines.corpus.changes import source_state
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.artifact import find
from pamp_pipelines.lake.manifest import ArtifactRef
from pamp_pipelines.lake.staging import looking
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.orchestration.jobs import TRAIN
from pamp_pipelines.orchestration.partitions import multi_key
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.lineage import last_finished
from pamp_pipelines.training.resolve import train_job

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

NAME = "retrain_on_new_data"
TAG = "retrain"


def retrain_on_new_data(
    loaded: Catalog, jobs: "Sequence[UnresolvedAssetJobDefinition]", minimum_interval_s: int = 60
) -> list[dg.SensorDefinition]:
    """The sensor; nothing where no training config asks for it.

    Args:
        loaded: the declarations that the definitions were built from.
        jobs: the project's.
        minimum_interval_s: seconds between two looks; sources have to be the same in two of them.
    """
    asking = [name for name, config in loaded.training_configs.items() if config.retrain_on_new_data]
    if not asking:
        return []

    @dg.sensor(
        name=NAME,
        jobs=list(jobs),
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Scans and tokenizes corpora with new data and trains a new version with "
        f"{', '.join(asking)} of each model that has a finished one.",
    )
    def retrain(context: dg.SensorEvaluationContext, pamp: ProjectResource) -> dg.SensorResult:
        looked = Look(loaded, pamp.lake, json.loads(context.cursor or "{}"))
        with looking():
            requests = list(looked.requests(asking))
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "; ".join(looked.notes) or "No corpus has new data.",
            cursor=json.dumps(looked.states),
        )

    return [retrain]


@dataclass
class Look:
    """One look at sources and lake.

    Attributes:
        states: of each corpus' sources, as the look before saw them; replaced by what this one sees.
        notes: why nothing is requested, for the sensor's message.
    """

    catalog: Catalog
    lake: Lake
    states: dict[str, str]

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    def requests(self, configs: Sequence[str]) -> Iterator[dg.RunRequest]:
        """Runs to start now: of each corpus, shards and training whatever its input allows, each once for all."""
        pairs = [
            (model, config)
            for model, config in self.catalog.pairs()
            if config in configs and last_finished(self.lake, model, config)
        ]
        if not pairs:
            self.notes.append("No model has a finished version that a retraining could follow")
        corpora = sorted({corpus for _, config in pairs for corpus in self.catalog.blend(config)})
        scanned = set()
        for corpus in corpora:
            request = self._scan(corpus)
            if request is True:
                scanned.add(corpus)
            elif request:
                yield request
        ready: set[tuple[str, str]] = set()
        for corpus, model in sorted({(c, m) for m, config in pairs for c in self.catalog.blend(config)}):
            if corpus not in scanned:
                continue
            shards = tokenize_job(self.catalog, self.lake, corpus, model)
            if find(shards.output, shards.id) is not None:
                ready.add((corpus, model))
            else:
                yield _request("tokenize", multi_key(corpus=corpus, model=model), shards.id)
        for model, config in pairs:
            if all((corpus, model) in ready for corpus in self.catalog.blend(config)):
                yield from self._train(model, config)

    def _scan(self, corpus: str) -> dg.RunRequest | bool:
        """True when the corpus is scanned as it is now, False when there is nothing to ask for yet."""
        try:
            state, known = source_state(self.catalog, self.lake, corpus)
            before, self.states[corpus] = self.states.get(corpus), state
            if not known:
                if before != state:
                    self.notes.append(f"Sources of {corpus} have changed; they have to be the same in the next look")
                    return False
                return _request("prepare_corpus", corpus, state)
            job = corpus_job(self.catalog, self.lake, corpus)
        except PampError as error:
            self.notes.append(str(error))
            return False
        return True if find(job.output, job.id) is not None else _request("prepare_corpus", corpus, job.id)

    def _train(self, model: str, config: str) -> Iterator[dg.RunRequest]:
        found = last_finished(self.lake, model, config)
        assert found is not None
        try:
            job = train_job(self.catalog, self.lake, model, config, claim=False)
        except PampError as error:
            self.notes.append(str(error))
            return
        if _shards(job.inputs) != _shards(found[1].inputs):
            yield _request(TRAIN, multi_key(model=model, training_config=config), job.id)


def _shards(inputs: Sequence[ArtifactRef]) -> set[str]:
    return {ref.content for ref in inputs if ref.kind == "tokenized_shards"}


def _request(job: str, partition: str, id: str) -> dg.RunRequest:
    return dg.RunRequest(
        job_name=job, partition_key=partition, run_key=f"{job}:{partition}:{id}", tags={TAG: "new data"}
    )
