"""Does a training config fit its compute profile and its own schedule?"""

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.cuda_needs import cuda_needs
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.report import Report, Subject
from pamp_pipelines.declarations.training_config import TrainingConfig


def check_training_config(
    catalog: Catalog, name: str, report: Report, *, profile: str | None = None, cuda: bool | None = None
) -> None:
    """Checks that need no model.

    Args:
        profile: compute profile instead of the declared one.
        cuda: whether this machine has CUDA devices; None when that is unknown.
    """
    subject = Subject(catalog, report, "training_config", name)
    config = catalog.training_config(name)
    profile = profile or config.profile
    if profile in catalog.profiles:
        layout = layout_subject(subject, profile)
        _check_processes(subject, layout, laid_out(catalog, name, profile), catalog.profile(profile), profile)
        cuda = catalog.profile(profile).has_gpus(here=cuda)
    _check_schedule(subject, config)
    _check_precision(subject, config)
    if cuda is False:
        _check_without_cuda(subject, laid_out(catalog, name, profile))


def laid_out(catalog: Catalog, name: str, profile: str | None) -> TrainingConfig:
    """A training config as a profile runs it; default: the profile that it names, which may not exist."""
    config = catalog.training_config(name)
    compute = catalog.profiles.get(profile or config.profile)
    return compute.lay_out(config) if compute else config


def layout_subject(config: Subject, profile: str | None) -> Subject:
    """The file that has the last word about the parallel groups of a training config under check."""
    name = profile or config.catalog.training_config(config.name).profile
    compute = config.catalog.profiles.get(name)
    sets_it = compute is not None and compute.parallelism is not None
    return Subject(config.catalog, config.report, "profile", name) if sets_it else config


def _check_processes(
    subject: Subject, layout: Subject, config: TrainingConfig, profile: ComputeProfile, profile_name: str
) -> None:
    parallel = config.parallelism
    _check_layout_of_profile(subject, layout, config)
    where = f"the {profile.world_size} processes of profile {profile_name!r}"
    if profile.world_size % parallel.model_parallel:
        layout.error(
            "parallelism",
            f"tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context} = "
            f"{parallel.model_parallel} does not divide {where}: change one of them, or "
            f"resources/{profile_name}.yaml: processes_per_node",
        )
        return
    data_parallel = profile.world_size // parallel.model_parallel
    together = config.micro_batch_size * data_parallel
    if config.global_batch_size % together:
        subject.error(
            "global_batch_size",
            f"{config.global_batch_size} is not a multiple of micro_batch_size {config.micro_batch_size} x data "
            f"parallel {data_parallel} ({where}): take e.g. {-(-config.global_batch_size // together) * together}",
        )
    experts = parallel.tensor * parallel.pipeline * parallel.expert
    if parallel.expert > 1 and profile.world_size % experts:
        layout.error("parallelism.expert", f"tensor x pipeline x expert = {experts} does not divide {where}")


def _check_layout_of_profile(subject: Subject, layout: Subject, config: TrainingConfig) -> None:
    """What a config would refuse of itself, where a profile sets the whole block."""
    parallel = config.parallelism
    if not parallel.distributed_optimizer:
        needs = ["state_precision"] if config.state_precision != "fp32" else []
        needs += ["offload.optimizer"] if config.offload.optimizer else []
        for field in needs:
            message = f"`{field}` of training config {subject.name!r} needs it: set it to true"
            layout.error("parallelism.distributed_optimizer", message)
    if parallel.overlap_param_gather and not parallel.overlap_grad_reduce:
        layout.error("parallelism.overlap_param_gather", "needs `overlap_grad_reduce: true`")
    if config.offload.activation_layers and parallel.pipeline > 1:
        message = f"cannot be above 1 with `offload.activation_layers` of training config {subject.name!r}"
        layout.error("parallelism.pipeline", message)


def _check_schedule(subject: Subject, declared: TrainingConfig) -> None:
    for field, remainder in declared.remainders().items():
        if remainder and field != "tokens":
            subject.warn(field, f"rounded down to whole global batches: {remainder} tokens are left over")
    config = declared.in_iterations()
    total, interval = config.train_iterations, config.checkpoint.interval
    validation = config.validation.interval
    assert interval is not None
    assert validation is not None
    if config.optimizer.warmup_iterations >= total:
        message = f"{config.optimizer.warmup_iterations} leaves no step of the {total} after warm-up: lower it"
        subject.error("optimizer.warmup_iterations", message)
    for field, every in (
        ("checkpoint.keep_every", config.checkpoint.keep_every),
        ("evaluation.every", config.evaluation.every),
    ):
        if every is None:
            continue
        if every % interval:
            subject.error(
                field, f"{every} is not a multiple of checkpoint.interval {interval}: no such checkpoint is saved"
            )
        elif every > total:
            subject.warn(field, f"{every} is more than the {total} iterations of the run: it never comes")
    for index, step in enumerate(config.evaluation.steps):
        if step > total:
            subject.error("evaluation.steps", f"step {step} is after the last of {total} iterations", index)
    if interval > total:
        subject.warn(
            "checkpoint.interval", f"{interval} is more than the {total} iterations: a killed run starts again"
        )
    if validation > total:
        message = f"{validation} is more than the {total} iterations: validated at the end only"
        subject.warn("validation.interval", message)
    decay, warmup = config.optimizer.decay_iterations, config.optimizer.warmup_iterations
    if decay is not None and decay <= warmup:
        message = f"{decay} is not above the {warmup} iterations of warm-up: raise it"
        subject.error("optimizer.decay_iterations", message)
    evaluation = config.evaluation
    if not evaluation.final and evaluation.every is None and not evaluation.steps:
        subject.warn(
            "evaluation", "no checkpoint of this config is kept or scored: set `final: true`, `every` or `steps`"
        )
    batch = config.sequence_length * config.global_batch_size
    if config.tokens is not None and config.tokens % batch:
        subject.warn("tokens", f"rounded down to {total * batch}: {total} global batches of {batch} tokens")


def _check_precision(subject: Subject, config: TrainingConfig) -> None:
    if config.cross_entropy == "transformer_engine":
        if config.determinism == "exact":
            subject.error(
                "cross_entropy", "transformer_engine adds in no fixed order: set `determinism: fast`, or native"
            )
        if config.precision == "fp16":
            subject.error("cross_entropy", "transformer_engine refuses fp16: take precision bf16, or native")


def _check_without_cuda(subject: Subject, config: TrainingConfig) -> None:
    """Warnings, since a config may be checked on a machine other than the one that trains; the training itself refuses
    there."""
    for field, message in cuda_needs(
        config.precision, config.state_precision, config.parallelism, config.offload
    ).items():
        subject.warn(field, f"{message}, or take another profile")
