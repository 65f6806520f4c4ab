"""Each finding names its file and field; the valid project has none."""

from collections.abc import Callable

import pytest
from dagster._utils.schedules import cron_string_iterator, is_valid_cron_schedule
from hypothesis import given
from hypothesis import strategies as st

from pamp_pipelines.declarations.catalog import load_catalog, read_catalog
from pamp_pipelines.declarations.cron import cron_problem
from pamp_pipelines.declarations.cross_checks import check_pair, cross_check
from pamp_pipelines.errors import DeclarationError, InputError
from pamp_pipelines.project import Project

Edit = Callable[[str, str, str], None]
M = "models: [tiny]"
MODELS = "assets/models/"
PPL = "assets/evaluations/ppl.yaml"
CFG = "assets/training_configs/cfg.yaml"


def check(project: Project, cuda: bool | None = None) -> tuple[list[str], list[str]]:
    catalog, problems = read_catalog(project)
    report = cross_check(catalog, cuda=cuda)
    errors, warnings = (
        [f"{p.file.name}:{p.line}: {p.field}: {p.message}" for p in found]
        for found in (problems + report.errors, report.warnings)
    )
    return errors, warnings


def test_the_valid_project_has_no_findings(project: Project) -> None:
    assert check(project, cuda=False) == ([], [])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "models: [tiny]",
            "models: [hf]\nprofile: eight\nparallelism: {tensor: 4}",
            "does not divide the 6 attention heads",
        ),
        (
            "models: [tiny]",
            "models: [hf]\nprofile: eight\nparallelism: {tensor: 4}",
            "neither a divisor nor a multiple of the 3",
        ),
        (
            "models: [tiny]",
            "parallelism: {pipeline: 4}\nmodels: [tiny]\nprofile: eight",
            "does not divide the 2 layers",
        ),
        (
            "models: [tiny]",
            "models: [hf]\nparallelism: {tensor: 5}",
            "cfg.yaml:2: parallelism: tensor 5 x pipeline 1 x context 1",
        ),
        (
            "models: [tiny]",
            "models: [tiny]\nprofile: eight",
            "cfg.yaml:7: global_batch_size: 4 is not a multiple of…take e.g. 8",
        ),
        (M, M + "\nmicro_batch_size: 3", "cfg.yaml:7: global_batch_size: 4 is not a multiple"),
        (M, "models: [hf]", None),
        (
            "sequence_length: 32",
            "sequence_length: 129",
            "sequence_length: 129 is more than the 128 positions",
        ),
        (
            "models: [tiny]",
            "models: [tiny]\nparallelism: {expert: 2}\nprofile: eight",
            "parallelism.expert: model 'tiny' is dense",
        ),
        (
            "  interval: 5\nvalidation",
            "  interval: 5\n  keep_every: 7\nvalidation",
            "cfg.yaml:11: checkpoint.keep_every: 7 is not a",
        ),
        (
            "models: [tiny]",
            "models: [tiny]\nevaluation: {every: 3}",
            "cfg.yaml:2: evaluation.every: 3 is not a multiple",
        ),
        (
            "models: [tiny]",
            "models: [tiny]\nevaluation: {steps: [1, 11]}",
            "evaluation.steps[1]: step 11 is after the last",
        ),
        ("  lr: 1e-3", "  lr: 1e-3\n  warmup_iterations: 10", "optimizer.warmup_iterations: 10 leaves no step"),
        (
            "models: [tiny]",
            "models: [tiny]\nmegatron_args: {save: x}",
            "cfg.yaml:2: megatron_args.save: `save` is set by the",
        ),
        (M, M + "\nmegatron_args: {init-method-sdt: 1}", "did you mean `init-method-std`"),
        (M, M + "\nmegatron_args: {init-method-std: wide}", "takes a number, not 'wide'"),
        (M, M + "\ncross_entropy: transformer_engine", "cross_entropy: transformer_engine adds in no fixed order"),
        (
            M,
            M + "\ncross_entropy: transformer_engine\ndeterminism: fast\nprecision: fp16",
            "cross_entropy: transformer_engine refuses fp16",
        ),
        (M, M + "\ncron: 0 3 * *", "cfg.yaml:2: cron: '0 3 * *' is not a cron expression"),
    ],
)
def test_errors_of_a_training_config(project: Project, edit: Edit, old: str, new: str, expected: str | None) -> None:
    if not old.startswith("models"):
        edit(CFG, "models: [tiny]\n", "models: [hf]\n")
    edit(CFG, old, new)
    errors, _ = check(project)
    if expected is None:
        assert errors == []
    else:
        assert any(all(part in error for part in expected.split("…")) for error in errors), errors


@pytest.mark.parametrize(("length", "context", "tensor"), [(36, True, False), (33, True, True), (40, False, False)])
def test_lengths_of_context_and_sequence_parallelism(
    project: Project, edit: Edit, length: int, context: bool, tensor: bool
) -> None:
    """Context parallelism cuts a sequence into twice as many parts, so that causal attention is balanced."""
    edit(CFG, M, M + "\nprofile: eight\nparallelism: {tensor: 2, context: 4, sequence_parallel: true}")
    edit(CFG, "sequence_length: 32", f"sequence_length: {length}")
    errors, _ = check(project)
    assert any("is not a multiple of 2 x parallelism.context = 8" in error for error in errors) == context
    assert any("is not a multiple of parallelism.tensor 2" in error for error in errors) == tensor


def test_key_value_heads_may_be_replicated(project: Project, edit: Edit) -> None:
    (project.resources / "six.yaml").write_text("processes_per_node: 6\n")
    edit(CFG, M, "models: [hf]\nprofile: six\nparallelism: {tensor: 6}")
    assert check(project) == ([], [])


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("assets/corpora/text.yaml", "*.jsonl", "*.txt", "text.yaml:2: sources[0]: 'data/text/*.txt' matches no file"),
        ("assets/corpora/text.yaml", "/*.jsonl", "", "sources[0]: 'data/text' is a folder"),
        (MODELS + "hf.yaml", "data/hf", "data/models/x", "hf.yaml:2: hf.path: …make setup"),
        (MODELS + "hf.yaml", "data/hf", "data/tok", "hf.yaml:1: hf: …config.json is missing"),
        (
            MODELS + "tiny.yaml",
            "data/tok",
            "data/text",
            "tiny.yaml:2: from_scratch.tokenizer: 'data/text' is neither",
        ),
        (
            MODELS + "tiny.yaml",
            "vocab_size: 3",
            "vocab_size: 2",
            "the highest token id is 2, but model 'tiny' has vocab_size 2",
        ),
        (MODELS + "tiny.yaml", "eod: <|endoftext|>", "eod: <|endoftxt|>", "Did you mean '<|endoftext|>'?"),
        (
            PPL,
            "  heldout_perplexity:",
            "  heldout_perplexty:",
            "data.heldout_perplexty: …Did you mean",
        ),
        (
            PPL,
            "held_out",
            "data/benchmarks/x.jsonl",
            "ppl.yaml:3: data.heldout_perplexity: …make setup",
        ),
        (PPL, "held_out", "'held_out:'", "ppl.yaml:3: data.heldout_perplexity: …'held_out:': name a corpus after the"),
        (PPL, "held_out", "held_out:pomes", "ppl.yaml:3: data.heldout_perplexity: …'held_out:pomes': there is no such"),
        (PPL, "held_out", "hub:poems", "data.heldout_perplexity: …expected hub:owner/name"),
        (PPL, "held_out", "package:no-such-package/x.jsonl", "data.heldout_perplexity: …is not installed"),
        (
            PPL,
            "[heldout_perplexity]",
            "[heldout_perplexity, x.yaml]",
            "ppl.yaml:1: tasks[1]: 'x.yaml'",
        ),
    ],
)
def test_errors_of_sources(project: Project, edit: Edit, file: str, old: str, new: str, expected: str) -> None:
    edit(file, old, new)
    errors, _ = check(project)
    assert len(errors) == 1, errors
    assert all(part in errors[0] for part in expected.split("…")), errors


@pytest.mark.parametrize(
    "source", ["hub:owner/name:main@v1", "package:dagster/dagster/__init__.py", "held_out:{corpus}"]
)
def test_rows_may_be_the_hubs_a_packages_or_held_out_documents(project: Project, edit: Edit, source: str) -> None:
    corpus = next(iter(load_catalog(project).corpora))
    edit(PPL, "held_out", source.format(corpus=corpus))
    assert check(project)[0] == []


def test_a_corpus_that_holds_out_nothing_has_no_held_out_rows(project: Project, edit: Edit) -> None:
    corpus = next(iter(load_catalog(project).corpora))
    edit(PPL, "held_out", f"held_out:{corpus}")
    with (project.root / f"assets/corpora/{corpus}.yaml").open("a") as file:
        file.write("held_out: {fraction: 0}\n")
    (error,) = check(project)[0]
    assert "that corpus holds out nothing" in error


def test_a_damaged_tokenizer_is_named(project: Project) -> None:
    (project.root / "data/tok/tokenizer.json").write_text("{}")
    errors, _ = check(project)
    assert len(errors) == 1
    assert "is not a readable tokenizer.json" in errors[0]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("iterations: 10", "tokens: 200", "tokens: rounded down to 128"),
        (M, M + "\nprecision: fp8_delayed", "precision: precision fp8_delayed needs a CUDA device"),
        (M, M + "\noffload: {optimizer: 0.5}", "cfg.yaml:2: offload: offload needs a CUDA device"),
        (
            "models: [tiny]",
            "models: [tiny]\nevaluation: {final: false}",
            "evaluation: no checkpoint of this config is kept",
        ),
        (
            "models: [tiny]",
            "models: [tiny]\nevaluation: {every: 20}",
            "evaluation.every: 20 is more than the 10 iterations",
        ),
    ],
)
def test_warnings(project: Project, edit: Edit, old: str, new: str, expected: str) -> None:
    edit(CFG, old, new)
    errors, warnings = check(project, cuda=False)
    assert errors == []
    assert any(expected in warning for warning in warnings), warnings


def test_hub_models_are_not_downloaded_by_a_check(project: Project, edit: Edit) -> None:
    edit(MODELS + "hf.yaml", "path: data/hf", "id: nobody/nothing\n  revision: 0a1b2c3d")
    assert check(project) == (
        [],
        ["hf.yaml:2: hf.id: nobody/nothing is not in the local cache: its architecture is unchecked until first use"],
    )


def test_one_pair_before_a_launch(project: Project, edit: Edit) -> None:
    edit(PPL, "held_out", "nowhere.jsonl")
    catalog = load_catalog(project)
    check_pair(catalog, "tiny", "cfg").raise_errors()
    with pytest.raises(DeclarationError, match="global_batch_size"):
        check_pair(catalog, "tiny", "cfg", profile="eight").raise_errors()
    with pytest.raises(InputError, match="no profile 'nine'"):
        check_pair(catalog, "tiny", "cfg", profile="nine")
    with pytest.raises(InputError, match="models: 'hf' is not listed"):
        check_pair(catalog, "hf", "cfg")


def test_a_layout_of_the_profile_is_checked_in_its_place(project: Project, edit: Edit) -> None:
    """A profile that lays runs out itself has its own file named, and what it replaces does not count."""
    edit("resources/eight.yaml", "node: 8", "node: 8\nmicro_batch_size: 1\nparallelism: {tensor: 2, pipeline: 2}")
    catalog = load_catalog(project)
    check_pair(catalog, "tiny", "cfg", profile="eight").raise_errors()
    edit(CFG, "iterations: 10", "iterations: 10\nmicro_batch_size: 3\nparallelism: {tensor: 5}")
    check_pair(load_catalog(project), "tiny", "cfg", profile="eight").raise_errors()
    edit("resources/eight.yaml", "tensor: 2, pipeline: 2", "tensor: 1, pipeline: 8")
    with pytest.raises(
        DeclarationError, match=r"eight\.yaml:\d+: parallelism\.pipeline: 8 does not divide the 2 layers"
    ):
        check_pair(load_catalog(project), "tiny", "cfg", profile="eight").raise_errors()
    edit("resources/eight.yaml", "pipeline: 8", "pipeline: 3")
    with pytest.raises(DeclarationError, match=r"eight\.yaml:\d+: parallelism: tensor 1 x pipeline 3 x context 1 = 3"):
        check_pair(load_catalog(project), "tiny", "cfg", profile="eight").raise_errors()


@pytest.mark.parametrize(
    ("config", "profile", "said"),
    [
        ("state_precision: bf16", "distributed_optimizer: false", "distributed_optimizer: `state_precision` of"),
        ("offload: {optimizer: 0.5}", "distributed_optimizer: false", "distributed_optimizer: `offload.optimizer` of"),
        ("offload: {activation_layers: 1}", "pipeline: 2", "pipeline: cannot be above 1 with `offload.activation_la"),
        ("seed: 1", "overlap_param_gather: true", "overlap_param_gather: needs `overlap_grad_reduce: true`"),
    ],
)
def test_a_profile_may_not_take_away_what_the_config_needs(
    project: Project, edit: Edit, config: str, profile: str, said: str
) -> None:
    edit(CFG, "iterations: 10", f"iterations: 10\n{config}")
    edit("resources/eight.yaml", "node: 8", "node: 8\nmicro_batch_size: 1\nparallelism: {tensor: 2}")
    check_pair(load_catalog(project), "tiny", "cfg", profile="eight").raise_errors()
    edit("resources/eight.yaml", "tensor: 2", f"tensor: 2, {profile}")
    with pytest.raises(DeclarationError, match=rf"eight\.yaml:\d+: parallelism\.{said}"):
        check_pair(load_catalog(project), "tiny", "cfg", profile="eight").raise_errors()


@pytest.mark.parametrize(
    "expression",
    ["0 3 * * 1", "*/15 0-6 1,15 jan-mar mon-fri", "@daily", "0 0 1 * 7", "0 0 29 2 *", "0 0 31 2-3 *", "5/15 * * * *"],
)
def test_cron(expression: str) -> None:
    assert cron_problem(expression) is None


@pytest.mark.parametrize(
    "expression",
    [
        *("", "60 * * * *", "* 24 * * *", "* * 0 * *", "5-1 * * * *", "*/0 * * * *", "@often", "a * * * *"),
        *("² 3 * * *", "٣ 3 * * *", "*/² * * * *", f"{'9' * 5000} * * * *", f"*/{'9' * 5000} * * * *"),
    ],
)
def test_no_cron(expression: str) -> None:
    assert cron_problem(expression)


@pytest.mark.parametrize(
    "expression",
    ["0 0 30 2 *", "0 0 31 feb *", "0 0 30,31 2 *", "0 0 30/1 2 *", "0 0 31 2,4,6 *", "0 0 31 4-6/2 *", "0 0 30 2 1"],
)
def test_a_date_that_never_comes(project: Project, edit: Edit, expression: str) -> None:
    edit(CFG, M, f'{M}\ncron: "{expression}"')
    errors, _ = check(project)
    assert len(errors) == 1
    assert errors[0].startswith("cfg.yaml:2: cron: never comes: month ")


_MONTHS_AND_DAYS = ["jan", "feb", "mar", "apr", "dec", "sun", "mon", "tue", "sat"]
_NUMBER = st.integers(0, 62).map(str) | st.sampled_from(["²", "٣", "007", *_MONTHS_AND_DAYS])
_ITEM = st.builds(
    lambda first, last, step: f"{first}{last and '-' + last}{step and '/' + step}",
    st.just("*") | _NUMBER,
    st.just("") | _NUMBER,
    st.just("") | _NUMBER,
)
_FIELD = st.just("*") | st.lists(_ITEM, min_size=1, max_size=2).map(",".join)


@given(
    st.lists(_FIELD, min_size=4, max_size=6).map(" ".join) | st.tuples(*(_FIELD,) * 2).map("0 0 {0[0]} {0[1]} *".format)
)
def test_dagster_takes_every_cron_that_passes(expression: str) -> None:
    """Dagster's own check at the load of a schedule, and its search for the next time."""
    if cron_problem(expression) is None:
        assert is_valid_cron_schedule(expression), expression
        next(cron_string_iterator(0.0, expression, "UTC"))


@pytest.mark.parametrize(
    ("profile", "here", "warns"),
    [
        ("processes_per_node: 8", True, False),
        ("processes_per_node: 8", False, True),
        ("processes_per_node: 8", None, False),
        # what this machine has says nothing of a cluster's
        ("processes_per_node: 8\nlauncher: slurm", False, False),
        ("processes_per_node: 8\nlauncher: kubernetes\nkubernetes: {image: x, gpus: 8}", False, False),
        ("processes_per_node: 8\nlauncher: kubernetes\nkubernetes: {image: x}", True, True),
    ],
)
def test_gpus_are_those_of_the_profile(
    project: Project, edit: Edit, profile: str, here: bool | None, warns: bool
) -> None:
    edit(CFG, M, M + "\nprofile: eight\nglobal_batch_size: 8\noffload: {optimizer: 0.5}")
    edit(CFG, "global_batch_size: 4\n", "")
    edit("resources/eight.yaml", "processes_per_node: 8", profile)
    errors, warnings = check(project, cuda=here)
    assert errors == []
    assert [w.split(": ")[1] for w in warnings] == ["offload"] * warns
