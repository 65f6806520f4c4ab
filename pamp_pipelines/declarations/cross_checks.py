"""Everything that can be known to be wrong before anything runs. Each finding names its file and field."""

from typing import Any

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.config_checks import check_training_config, laid_out, layout_subject
from pamp_pipelines.declarations.report import Report, Subject
from pamp_pipelines.declarations.source_checks import check_corpus, check_evaluation, check_model


def cross_check(catalog: Catalog, *, cuda: bool | None = None) -> Report:
    """All checks of all declarations and of every declared pair.

    Args:
        cuda: whether this machine has CUDA devices; None when that is unknown or does not matter.
    """
    report = Report()
    for corpus in catalog.corpora:
        check_corpus(catalog, corpus, report)
    for evaluation in catalog.evaluations:
        check_evaluation(catalog, evaluation, report)
    configs = {model: check_model(catalog, model, report) for model in catalog.models}
    for name in catalog.training_configs:
        check_training_config(catalog, name, report, cuda=cuda)
    for model, name in catalog.pairs():
        if (hf_config := configs[model]) is not None:
            check_architecture(catalog, model, name, hf_config, report)
    return report


def check_pair(
    catalog: Catalog, model: str, config: str, *, profile: str | None = None, cuda: bool | None = None
) -> Report:
    """The checks that concern one run, for a launch: the pair is declared, its files exist, its numbers fit.

    Raises:
        InputError: one of the names is not declared, or the config is not for the model.
    """
    catalog.require_pair(model, config)
    if profile is not None:
        catalog.profile(profile)
    report = Report()
    for corpus in catalog.training_config(config).corpora:
        check_corpus(catalog, corpus, report)
    hf_config = check_model(catalog, model, report)
    check_training_config(catalog, config, report, profile=profile, cuda=cuda)
    if hf_config is not None:
        check_architecture(catalog, model, config, hf_config, report, profile=profile)
    return report


def check_architecture(
    catalog: Catalog,
    model: str,
    config: str,
    hf_config: dict[str, Any],
    report: Report,
    *,
    profile: str | None = None,
) -> None:
    """The config's sizes against the model's, by the rules of Megatron's TransformerConfig and validate_args.

    Args:
        profile: compute profile instead of the declared one.
    """
    subject = Subject(catalog, report, "training_config", config)
    layout = layout_subject(subject, profile)
    declared = laid_out(catalog, config, profile)
    parallel, length = declared.parallelism, declared.sequence_length
    tensor, pipeline = parallel.tensor, parallel.pipeline

    heads = _size(hf_config, "num_attention_heads")
    if heads and heads % tensor:
        layout.error("parallelism.tensor", f"{tensor} does not divide the {heads} attention heads of model {model!r}")
    groups = _size(hf_config, "num_key_value_heads") or heads
    # Fewer KV heads than ranks: each is replicated on the same number of ranks.
    if groups and groups % tensor and tensor % groups:
        message = f"{tensor} is neither a divisor nor a multiple of the {groups} key-value heads of model {model!r}"
        layout.error("parallelism.tensor", message)
    ffn = _size(hf_config, "intermediate_size")
    if ffn and ffn % tensor:
        layout.error("parallelism.tensor", f"{tensor} does not divide the intermediate size {ffn} of model {model!r}")
    layers = _size(hf_config, "num_hidden_layers")
    if layers and layers % pipeline:
        layout.error("parallelism.pipeline", f"{pipeline} does not divide the {layers} layers of model {model!r}")
    positions = _size(hf_config, "max_position_embeddings")
    if positions and length > positions:
        message = f"{length} is more than the {positions} positions (max_position_embeddings) of model {model!r}"
        subject.error("sequence_length", message)
    if parallel.context > 1 and length % (2 * parallel.context):
        message = f"{length} is not a multiple of 2 x parallelism.context = {2 * parallel.context}"
        subject.error("sequence_length", message)
    if parallel.sequence_parallel and length % tensor:
        subject.error(
            "sequence_length", f"{length} is not a multiple of parallelism.tensor {tensor} (sequence_parallel)"
        )
    experts = (
        _size(hf_config, "num_experts") or _size(hf_config, "num_local_experts") or _size(hf_config, "n_routed_experts")
    )
    if parallel.expert > 1 and (experts is None or experts % parallel.expert):
        message = f"{parallel.expert} does not divide the {experts} experts of model {model!r}"
        layout.error(
            "parallelism.expert", message if experts else f"model {model!r} is dense, it has no experts: take 1"
        )


def _size(hf_config: dict[str, Any], field: str) -> int | None:
    """A size from config.json; what is absent or no positive integer is the conversion's to refuse."""
    value = hf_config.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
