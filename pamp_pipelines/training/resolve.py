"""From declarations and finished inputs to a training job."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pamp_pipelines.conversion import job as conversion
from pamp_pipelines.conversion.job import ExportJob, import_job
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.cross_checks import check_pair
from pamp_pipelines.declarations.hf_config import load_hf_config
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.declarations.training_identity import decides_weights, kept_steps
from pamp_pipelines.errors import InputError, MissingInput
from pamp_pipelines.lake.artifact import Artifact, find, require_passed
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.manifest import artifact_id
from pamp_pipelines.lake.staging import here
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.blend import weighted_shards, within_limits
from pamp_pipelines.training.extend import OVERRIDES, PHASES, find_shorter, require_extendable, with_phases
from pamp_pipelines.training.job import DataPhase, HeldOutShards, TrainJob
from pamp_pipelines.training.kept import read_intact
from pamp_pipelines.training.lineage import finished_versions, follows
from pamp_pipelines.training.outcome import KIND
from pamp_pipelines.training.overrides import apply_overrides, require_free
from pamp_pipelines.training.requirements import require_devices
from pamp_pipelines.training.saved import has_weights
from pamp_pipelines.training.versions import select_version, version_id

STAGE_VERSION = 4
"""Bumped when equal inputs and parameters give other weights, or other content."""


class Inputs(BaseModel):
    """Finished artifacts that a training run needs."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    shards: dict[str, Artifact]
    """By corpus, sorted."""
    initial: Artifact
    """The megatron_checkpoint: imported weights, or the resolved architecture of a model from scratch."""
    source: Path | None = None
    """Hugging Face directory of the imported weights."""

    @property
    def all(self) -> tuple[Artifact, ...]:
        return (*self.shards.values(), self.initial)


def train_job(
    catalog: Catalog,
    lake: Lake,
    model: str,
    config: str,
    *,
    profile: str | None = None,
    fresh: bool = False,
    overrides: Sequence[str] = (),
    claim: bool = True,
    take_over: bool = False,
    on_event: OnEvent = ignore,
) -> TrainJob:
    """Resolve a declared pair, with its finished inputs, into a job.

    Args:
        model: name of the model.
        config: name of the training config.
        profile: compute profile; default: the one that the training config names. It may set another layout, which
            changes neither the identity nor the global batch.
        fresh: begin a new version although one of equal inputs exists.
        overrides: ``key=value`` with dotted keys, over the declared training config; they change the identity.
        claim: make the version's directory; False for a dry run.
        take_over: of a remote lake: go on with an unfinished version that another working directory began.
        on_event: gets a warning for each earlier version whose manifest is damaged; it is passed over.

    Raises:
        MissingInput: shards or the converted model are not there; names the partition as the UI does.
        VerificationFailed: an input failed a check that blocks, or its files or those of the run to go on with are
            damaged.
        InputError: the pair is not declared, or does not fit the model, the profile or its devices; names file and
            field. Or it is a finished run made longer, which cannot go on (``extend.require_extendable``).
    """
    catalog.require_pair(model, config)
    file = catalog.file_of("training_config", config)
    declared = apply_overrides(catalog.training_config(config), overrides, str(file))
    profile_name = profile or declared.profile
    compute = catalog.profile(profile_name)
    require_free(overrides, compute, str(catalog.file_of("profile", profile_name)))
    catalog = catalog.with_training_config(config, declared)
    check_pair(catalog, model, config, profile=profile_name).raise_errors()
    if claim:
        require_devices(compute.lay_out(declared), compute, file)
    inputs = find_inputs(catalog, lake, model, tuple(sorted(declared.corpora)))
    if claim:
        for artifact in inputs.all:
            require_intact_artifact(artifact)
    tokens = {corpus: int(artifact.manifest.stats["train"]["tokens"]) for corpus, artifact in inputs.shards.items()}
    resolved = within_limits(declared, tokens, file)
    parameters = resolved_parameters(resolved)
    contents = [artifact.content for artifact in inputs.all]
    finished = list(finished_versions(lake, model, config, on_event))
    runs, known = [artifact for _, artifact in finished], {version_id(d) for d in _versions(lake, model, config)}
    if not fresh:
        parameters = with_phases(runs, parameters, contents, STAGE_VERSION, known)
    id = artifact_id(KIND, STAGE_VERSION, contents, parameters)
    # unless there is a version of this length already
    if claim and not fresh and id not in known and PHASES not in parameters:
        require_extendable(runs, parameters, contents, STAGE_VERSION)
    version = select_version(lake, model, config, id, fresh=fresh, claim=claim, take_over=take_over)
    try:
        return _job(
            catalog,
            lake,
            model,
            config,
            version,
            fresh,
            declared,
            overrides,
            resolved,
            compute,
            inputs,
            parameters,
            id,
            finished,
        )
    except ValidationError as error:
        problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        raise InputError(
            f"{file} with {catalog.file_of('profile', profile_name)} ({compute.world_size} processes): {problems}"
        ) from None


def find_inputs(catalog: Catalog, lake: Lake, model: str, corpora: Sequence[str]) -> Inputs:
    """The finished inputs of a run of a model on corpora.

    Raises:
        MissingInput: the first that is not there.
        VerificationFailed: one failed a check that blocks.
    """
    converted = import_job(catalog, lake, model)
    initial = find(converted.output, converted.id)
    if initial is None:
        raise MissingInput("megatron_checkpoint", model)
    shards = {}
    for corpus in corpora:
        tokenized = tokenize_job(catalog, lake, corpus, model)
        artifact = find(tokenized.output, tokenized.id)
        if artifact is None:
            raise MissingInput("tokenized_shards", f"{corpus}|{model}")
        shards[corpus] = artifact
    for artifact in (*shards.values(), initial):
        require_passed(artifact)
    return Inputs(shards=shards, initial=initial, source=converted.source)


def resolved_parameters(config: TrainingConfig) -> dict[str, Any]:
    """What decides the weights besides the inputs; the shares are in the order of those, since a corpus may be renamed.

    Raises:
        InputError: a step of the evaluation lies after the end.
    """
    return {**decides_weights(config), "blend": list(config.blend.values())}


def _job(
    catalog: Catalog,
    lake: Lake,
    model: str,
    config: str,
    version: int,
    fresh: bool,
    declared: TrainingConfig,
    overrides: Sequence[str],
    resolved: TrainingConfig,
    compute: ComputeProfile,
    inputs: Inputs,
    parameters: dict[str, Any],
    id: str,
    finished: Sequence[tuple[int, Artifact]],
) -> TrainJob:
    template = here(inputs.initial.path / "hf_template")
    hf_config = load_hf_config(template)
    share = declared.blend
    weights = inputs.initial.path / "checkpoint"
    run_dir = lake.version_dir(model, config, version).absolute()
    remainders, declared_as = declared.remainders(), declared.model_dump(mode="json")
    # in iterations, and shortened where a corpus is exhausted
    declared = compute.lay_out(resolved).in_iterations()
    return TrainJob(
        name=f"{model}/{config}/{run_dir.name}",
        run_dir=run_dir,
        hf_config=hf_config,
        template_dir=template.absolute(),
        pretrained_checkpoint=weights.absolute() if has_weights(inputs.initial.manifest) else None,
        source=inputs.source.absolute() if inputs.source else None,
        vocab_size=hf_config["vocab_size"],
        eod_id=_eod_id(inputs),
        train=tuple(
            shards
            for corpus, artifact in inputs.shards.items()
            for shards in weighted_shards(artifact, share[corpus], corpus)
        ),
        heldout=tuple(
            HeldOutShards(corpus=corpus, prefix=(artifact.path / "heldout").absolute())
            for corpus, artifact in inputs.shards.items()
            if artifact.manifest.names("heldout.idx")
        ),
        sequence_length=declared.sequence_length,
        iterations=declared.train_iterations,
        horizon=declared.horizon_iterations,
        phases=tuple(
            DataPhase(first_sample=first, samples=samples, seed=seed)
            for first, samples, seed in parameters.get(PHASES, ())
        ),
        extends=None if fresh else _shorter(finished, version, inputs, parameters),
        global_batch_size=declared.global_batch_size,
        micro_batch_size=declared.micro_batch_size,
        optimizer=declared.optimizer,
        dropout=declared.dropout,
        document_attention=declared.document_attention,
        precision=declared.precision,
        state_precision=declared.state_precision,
        parallelism=declared.parallelism,
        recompute=declared.recompute,
        offload=declared.offload,
        checkpoint=declared.checkpoint,
        validation=declared.validation,
        cadence=kept_steps(declared),
        limits=declared.limits,
        seed=declared.seed,
        data_seed=declared.data_seed,
        determinism=declared.determinism,
        cross_entropy=declared.cross_entropy,
        log_interval=declared.log_interval,
        world_size=compute.world_size,
        megatron_args=declared.megatron_args,
        id=id,
        inputs=tuple(artifact.ref for artifact in inputs.all),
        declaration={
            "model": {model: catalog.model(model).model_dump(mode="json")},
            "training_config": {config: declared_as},
            "resolved": parameters,
            # tokens that were declared and do not fill a global batch
            "remainder_tokens": remainders,
            **follows(finished, version),
            **({OVERRIDES: list(overrides)} if overrides else {}),
        },
        profile=compute,
    )


def _shorter(
    finished: Sequence[tuple[int, Artifact]], version: int, inputs: Inputs, parameters: dict[str, Any]
) -> Path | None:
    others = [artifact for number, artifact in finished if number != version]
    return find_shorter(others, parameters, [artifact.content for artifact in inputs.all], STAGE_VERSION)


def _versions(lake: Lake, model: str, config: str) -> list[Path]:
    return [lake.version_dir(model, config, version).absolute() for version in lake.versions(model, config)]


def _eod_id(inputs: Inputs) -> int:
    """The end-of-document token of the shards; one model has one tokenizer, so all corpora agree."""
    ids = {corpus: int(artifact.manifest.stats["eod_id"]) for corpus, artifact in inputs.shards.items()}
    if len(set(ids.values())) > 1:
        raise InputError(f"the shards end documents with different tokens: {ids}; materialise tokenized_shards again")
    return next(iter(ids.values()))


def export_job(catalog: Catalog, lake: Lake, key: CheckpointKey) -> ExportJob:
    """The export of a kept checkpoint, after checking that its files are there.

    Raises:
        MissingInput: there is no such checkpoint, or its model was not converted.
        VerificationFailed: files of the checkpoint are missing or damaged.
    """
    read_intact(lake, key)
    return conversion.export_job(catalog, lake, key)
