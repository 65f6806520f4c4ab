"""What the graph is: compared with graph.json, which PAMP_UPDATE_SNAPSHOTS=1 rewrites."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.project import Project

SNAPSHOT = Path(__file__).parent / "graph.json"
HEAVY = ("torch", "transformers", "megatron", "lm_eval", "datasets", "pandas", "matplotlib")


def describe_partitions(definition: dg.PartitionsDefinition | None) -> Any:
    match definition:
        case dg.MultiPartitionsDefinition():
            return definition.partition_dimension_names
        case dg.DynamicPartitionsDefinition():
            return f"dynamic {definition.name}"
        case dg.StaticPartitionsDefinition():
            return list(definition.get_partition_keys())
    return None


def describe(definitions: dg.Definitions) -> dict[str, Any]:
    graph = definitions.resolve_asset_graph()
    assets = {}
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        assets[key.to_user_string()] = {
            "group": node.group_name,
            "upstream": sorted(parent.to_user_string() for parent in node.parent_keys),
            "partitions": describe_partitions(node.partitions_def),
            "kinds": sorted(node.kinds),
            "owners": sorted(node.owners),
            "pools": sorted(node.pools or ()),
            "checks": sorted(check.name for check in node.check_keys),
            "external": node.is_external,
            "automated": node.automation_condition is not None,
            "code_version": node.code_version,
        }
    repository = definitions.get_repository_def()
    return {
        "assets": assets,
        "jobs": sorted(name for name in repository.job_names if not name.startswith("__")),
        "schedules": {s.name: s.cron_schedule for s in repository.schedule_defs},
        "sensors": {s.name: s.default_status.value for s in repository.sensor_defs},
    }


def test_graph_is_the_committed_one(definitions: dg.Definitions) -> None:
    found = describe(definitions)
    if os.environ.get("PAMP_UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(SNAPSHOT.read_text())


def test_loadable(definitions: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(definitions)


def test_a_run_is_one_process(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()
    executors = {repository.get_job(name).executor_def.name for name in repository.job_names}
    assert executors == {dg.in_process_executor.name}


def test_every_asset_is_described(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    bare = [key.to_user_string() for key in graph.get_all_asset_keys() if not graph.get(key).description]
    assert bare == ["eval_scores/sums"] or bare == []


@pytest.mark.parametrize(
    ("asset", "key", "parent", "expected"),
    [
        ("raw_corpus", "plays", "corpus_declaration", {"plays"}),
        ("megatron_checkpoint", "scratch", "model_declaration", {"scratch"}),
        ("tokenized_shards", "plays|scratch", "raw_corpus", {"plays"}),
        ("tokenized_shards", "plays|scratch", "corpus_declaration", {"plays"}),
        ("tokenized_shards", "plays|scratch", "model_declaration", {"scratch"}),
        ("pretrained_checkpoint", "imported|both", "model_declaration", {"imported"}),
        ("pretrained_checkpoint", "imported|both", "training_declaration", {"both"}),
        ("pretrained_checkpoint", "scratch|both", "tokenized_shards", {"plays|scratch", "sonnets|scratch"}),
        ("pretrained_checkpoint", "imported|both", "tokenized_shards", {"plays|imported", "sonnets|imported"}),
        ("pretrained_checkpoint", "scratch|sonnets-only", "tokenized_shards", {"sonnets|scratch"}),
        ("pretrained_checkpoint", "imported|both", "megatron_checkpoint", {"imported"}),
    ],
)
def test_upstream_of_a_key(definitions: dg.Definitions, asset: str, key: str, parent: str, expected: set[str]) -> None:
    assert upstream(definitions, asset, key, parent) == expected


def upstream(definitions: dg.Definitions, asset: str, key: str, parent: str) -> set[str]:
    graph = definitions.resolve_asset_graph()
    down, up = graph.get(dg.AssetKey(asset)).partitions_def, graph.get(dg.AssetKey(parent)).partitions_def
    assert down is not None
    mapping = graph.get_partition_mapping(dg.AssetKey(asset), dg.AssetKey(parent))
    found = mapping.get_upstream_mapped_partitions_result_for_partitions(
        down.subset_with_partition_keys([key]), down, up
    )
    return set(found.partitions_subset.get_partition_keys())


def test_upstream_of_every_run_is_its_blend_in_the_tokens_of_its_model(
    definitions: dg.Definitions, tiny_project: Project
) -> None:
    catalog = load_catalog(tiny_project)
    for model, config in catalog.pairs():
        found = upstream(definitions, "pretrained_checkpoint", f"{model}|{config}", "tokenized_shards")
        assert found == {f"{corpus}|{model}" for corpus in catalog.blend(config)}


def test_downstream_of_shards_are_the_configs_that_blend_them(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    runs, shards = dg.AssetKey("pretrained_checkpoint"), dg.AssetKey("tokenized_shards")
    up, down = graph.get(shards).partitions_def, graph.get(runs).partitions_def
    assert up is not None
    assert down is not None
    found = graph.get_partition_mapping(runs, shards).get_downstream_partitions_for_partitions(
        up.subset_with_partition_keys(["sonnets|scratch"]), up, down
    )
    assert set(found.get_partition_keys()) == {"scratch|both", "scratch|sonnets-only"}


def test_a_project_without_declarations_loads(tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").touch()
    (tmp_path / "resources").mkdir()
    for kind in ("corpora", "models", "training_configs", "evaluations"):
        (tmp_path / "assets" / kind).mkdir(parents=True)
    dg.Definitions.validate_loadable(build_definitions(Project(tmp_path)))


def test_equal_names_of_model_and_config_cost_one_of_them_its_partition(tmp_path: Path) -> None:
    """Dagster's inference takes such dimensions for each other, and would load nothing at all."""
    project = make_project(tmp_path)
    rename(project.root / "assets/training_configs/sonnets-only.yaml", "scratch")
    for path in ("corpora/plays", "models/imported", "training_configs/both"):
        (project.root / f"assets/{path}.yaml").unlink()
    definitions = build_definitions(project)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
    assert describe_partitions(graph.get(dg.AssetKey("training_declaration")).partitions_def) == []
    assert describe_partitions(graph.get(dg.AssetKey("model_declaration")).partitions_def) == ["scratch"]
    assert "declare the very same names" in (graph.get(dg.AssetKey("training_declaration")).description or "")


def test_check_refuses_equal_names(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    for name in ("plays", "sonnets"):
        rename(project.root / f"assets/models/{'imported' if name == 'plays' else 'scratch'}.yaml", name)
    result = CliRunner().invoke(pamp, ["check", "--project", str(project.root), "--json"])
    errors = json.loads(result.stdout.splitlines()[-1])["errors"]
    assert result.exit_code == 1
    assert any("assets/corpora and assets/models declare the very same names" in e["message"] for e in errors)


def test_each_asset_leads_to_its_yaml(definitions: dg.Definitions, tiny_project: Project) -> None:
    graph = definitions.resolve_asset_graph()
    linked = {
        key.to_user_string(): {
            Path(reference.file_path).relative_to(tiny_project.root).as_posix()
            for reference in graph.get(key).metadata["dagster/code_references"].code_references
        }
        for key in graph.get_all_asset_keys()
        if "dagster/code_references" in graph.get(key).metadata
    }
    assert linked["eval_scores/sums"] == {"assets/evaluations/sums.yaml"}
    (reference,) = graph.get(dg.AssetKey(["eval_scores", "sums"])).metadata["dagster/code_references"].code_references
    # where the declaration begins, below the modeline and other comments
    lines = Path(reference.file_path).read_text().splitlines()
    assert lines[reference.line_number - 1] == next(line for line in lines if line and not line.startswith("#"))
    assert linked["megatron_checkpoint"] == {"assets/models/imported.yaml", "assets/models/scratch.yaml"}
    assert len(linked["pretrained_checkpoint"]) == 4
    assert linked["hf_export"] == linked["checkpoint"] == linked["pretrained_checkpoint"]
    assert linked["leaderboard"] == {"assets/evaluations/perplexity.yaml", "assets/evaluations/sums.yaml"}
    assert linked.keys() == {key.to_user_string() for key in graph.get_all_asset_keys()}


def make_project(root: Path) -> Project:
    shutil.copytree(Path(__file__).parent.parent / "fixtures/project", root, dirs_exist_ok=True)
    return Project(root)


def rename(file: Path, name: str) -> None:
    file.rename(file.with_stem(name))


def test_importing_definitions_is_cheap(tiny_project: Project) -> None:
    """Every run and every reload of the UI pays for this import."""
    code = f"import sys, pamp_pipelines.definitions; print([m for m in {HEAVY!r} if m in sys.modules])"
    environment = {**os.environ, "PAMP_PROJECT": str(tiny_project.root)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
