"""Whatever the declarations hold, the code location loads: what is wrong with one of them is its own affair."""

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.declarations.usable import usable_catalog
from pamp_pipelines.errors import DeclarationError
from pamp_pipelines.orchestration.assets import eval_scores
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.chain import select
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.project import Project

NAMES = st.sampled_from(
    [
        *("a", "b", "a-b", "a_b", "a.b", "a..b", "a...b", "b.", "b..", "-a", "c_", "x-.y", "0", "1e3", "a" * 100),
        # what Dagster, its sensors, jobs and checks are called
        *("on-new-data", "on_new_data", "context", "train", "evaluate", "a-scores_finite", "a_score-not.extreme"),
    ]
) | st.from_regex(r"[a-z0-9._-]{1,6}", fullmatch=True)
OWNERS = st.sampled_from(
    ["a@b.c", "a..b@c.d", "a@b.de", "+a@b.de", "a@b.museum", "a@b.technology", "a@b-.de", ".@b.de", "team:", "team:x"]
) | st.builds("{}@{}.{}".format, *[st.from_regex(r"[a-z.+_-]{1,3}", fullmatch=True)] * 3)
CRONS = st.sampled_from([None, "@daily", "0 3 * * 1", "0 0 30 2 *", "* * * *", "@reboot", "5/15 * * * *"])
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
COMMON = {"description": WORDS, "owners": st.lists(OWNERS, max_size=2)}


def sometimes_broken(fields: dict[str, Any]) -> st.SearchStrategy[str]:
    """A file as text (JSON is YAML); one in eight is none."""
    whole = st.fixed_dictionaries({**{name: COMMON[name] for name in COMMON}, **fields}).map(json.dumps)
    return st.integers(0, 7).flatmap(lambda n: st.sampled_from(["a: [", "{}", "x: 1\n"]) if n == 0 else whole)


CORPUS = sometimes_broken(
    {
        "licence": st.just("CC0-1.0"),
        "sources": st.just(["*.jsonl"]),
        "format": st.just("jsonl"),
        "shard_sets": st.dictionaries(NAMES, st.just("meta.x"), max_size=2),
    }
)
MODEL = sometimes_broken({"hf": st.just({"path": "data/hf"})})
CONFIG = sometimes_broken(
    {
        "corpora": st.dictionaries(NAMES, st.just(1), min_size=1, max_size=2),
        "models": st.none() | st.lists(NAMES, min_size=1, max_size=2),
        "cron": CRONS,
        "retrain_on_new_data": st.booleans(),
        "evaluation": st.just({"steps": [999]}),
        "sequence_length": st.just(8),
        "iterations": st.just(10),
        "global_batch_size": st.just(1),
        "optimizer": st.just({"lr": 1e-3}),
        "checkpoint": st.just({"interval": 5}),
        "validation": st.just({"interval": 5}),
    }
)
EVALUATION = sometimes_broken({"tasks": st.just(["heldout_perplexity"])})
PROJECT = st.fixed_dictionaries(
    {
        "corpora": st.dictionaries(NAMES, CORPUS, max_size=3),
        "models": st.dictionaries(NAMES, MODEL, max_size=3),
        "training_configs": st.dictionaries(NAMES, CONFIG, max_size=3),
        "evaluations": st.dictionaries(NAMES, EVALUATION, max_size=3),
    }
)


def lay_out(root: Path, files: dict[str, dict[str, str]]) -> Project:
    shutil.rmtree(root / "assets", ignore_errors=True)
    (root / "resources").mkdir(exist_ok=True)
    (root / "resources/local.yaml").write_text("processes_per_node: 1\n")
    (root / "workspace.yaml").touch()
    for folder, declared in files.items():
        (root / "assets" / folder).mkdir(parents=True)
        for name, text in declared.items():
            (root / "assets" / folder / f"{name}.yaml").write_text(text)
    return Project(root)


def sound(**more: Any) -> str:
    """A training config that is right."""
    fields = {
        "corpora": {"a": 1},
        "sequence_length": 8,
        "iterations": 10,
        "global_batch_size": 1,
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"interval": 5},
        "validation": {"interval": 5},
    }
    return json.dumps({**fields, **more})


TEXT = json.dumps({"licence": "CC0-1.0", "sources": ["*.jsonl"], "format": "jsonl"})
SCORES = json.dumps({"tasks": ["heldout_perplexity"]})
HF = json.dumps({"hf": {"path": "data/hf"}})


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(files=PROJECT)
@example({"corpora": {}, "models": {}, "training_configs": {}, "evaluations": {"a": SCORES, "a-scores_finite": SCORES}})
@example(
    {
        "corpora": {"a": TEXT},
        "models": {"m": HF},
        "training_configs": {
            "on-new-data": sound(cron="@daily", retrain_on_new_data=True),
            "watch": sound(cron="@daily"),
        },
        "evaluations": {"context": SCORES},
    }
)
@example({"corpora": {"a": TEXT}, "models": {}, "training_configs": {"c": sound()}, "evaluations": {}})
def test_whatever_the_files_hold_the_definitions_load(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, dict[str, str]]
) -> None:
    root = tmp_path_factory.getbasetemp() / "loads"
    root.mkdir(exist_ok=True)
    dg.Definitions.validate_loadable(build_definitions(lay_out(root, files)))


@pytest.mark.parametrize("owner", ["a@b.c", "a@b.technology", "+a@b.de", "team:", "bob"])
def test_owners_that_dagster_does_not_take_are_refused(tmp_path: Path, owner: str) -> None:
    text = json.dumps({"hf": {"path": "x"}, "owners": [owner]})
    with pytest.raises(
        DeclarationError, match=r"owners\[0\]: .* is not an owner: give team:name, or an e-mail address"
    ):
        load_catalog(lay_out(tmp_path, {"models": {"m": text}}))


@pytest.mark.parametrize("name", ["a...b", "a..b", "a."])
def test_names_that_dagster_does_not_take_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeclarationError, match="no dot at the end nor beside another"):
        load_catalog(lay_out(tmp_path, {"models": {name: json.dumps({"hf": {"path": "x"}})}}))


def test_a_broken_file_fails_the_launches_of_what_it_declares_alone(own_project: Project) -> None:
    (own_project.assets / "models/scratch.yaml").write_text("from_scrach: {}\n")
    (own_project.assets / "training_configs/both.yaml").write_text("[\n")
    (made,) = materialize(own_project, "raw_corpus", "plays")
    assert made.partition == "plays"
    (own_project.assets / "corpora/plays.yaml").write_text("licence: MIT\n")
    for asset, partition in {"raw_corpus": "plays", "tokenized_shards": "plays|imported"}.items():
        with pytest.raises(DeclarationError) as error:
            materialize(own_project, asset, partition)
        assert {problem.file.name for problem in error.value.problems} == {"plays.yaml"}


def test_a_launch_from_the_ui_says_which_file_is_broken(own_project: Project, instance: dg.DagsterInstance) -> None:
    job = build_definitions(own_project).resolve_job_def("prepare_corpus")
    (own_project.assets / "corpora/plays.yaml").write_text("licence: MIT\n")
    result = job.execute_in_process(partition_key="plays", instance=instance, raise_on_error=False)
    (failed,) = result.get_step_failure_events()
    said = str(failed.step_failure_data.error_display_string)
    assert f"{own_project.assets}/corpora/plays.yaml:1: sources: is required" in said


def test_a_broken_evaluation_does_not_keep_the_others_from_a_checkpoint(
    own_project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(eval_scores, "evaluate_checkpoint", lambda *a: asked.extend(a[3]) or [])
    job = build_definitions(own_project).resolve_job_def("evaluate")
    (own_project.assets / "evaluations/sums.yaml").write_text("taks: []\n")
    key = "scratch/both/v0001/0000004"
    instance.add_dynamic_partitions("checkpoint", [key])
    selection = [dg.AssetKey(["eval_scores", name]) for name in ("perplexity", "sums")]
    result = job.execute_in_process(
        partition_key=key, instance=instance, raise_on_error=False, asset_selection=selection
    )
    assert asked == ["perplexity"]
    (failed,) = result.get_step_failure_events()
    assert "sums.yaml" in str(failed.step_failure_data.error_display_string)


def test_what_is_broken_is_told_where_the_declarations_are_shown(own_project: Project) -> None:
    (own_project.assets / "models/scratch.yaml").write_text("from_scrach: {}\n")
    (own_project.assets / "evaluations/sums.yaml").write_text("taks: []\n")
    graph = build_definitions(own_project).resolve_asset_graph()
    models, sums = graph.get(dg.AssetKey("model_declaration")), graph.get(dg.AssetKey(["eval_scores", "sums"]))
    assert "scratch.yaml:1: from_scrach: unknown field" in (models.description or "")
    assert "sums.yaml:1: taks: unknown field" in (sums.description or "")
    assert sums.automation_condition is None
    # nor is it passed over where all evaluations are asked for, or reindexed
    assert select(usable_catalog(own_project)[0], "eval_scores").evaluations == ("perplexity", "sums")
    assert models.partitions_def is not None
    assert "scratch" in models.partitions_def.get_partition_keys()
