"""Dagster's grid is full; what is said about its cells that are not declared."""

import shutil
from pathlib import Path

import dagster as dg

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.orchestration.grid import declared_pairs, grid_note
from pamp_pipelines.project import Project

FIXTURE = Path(__file__).parent.parent / "fixtures/project"


def test_the_description_counts_the_declared_cells_and_names_the_files(definitions: dg.Definitions) -> None:
    description = definitions.resolve_asset_graph().get(dg.AssetKey("pretrained_checkpoint")).description or ""
    assert description.startswith("A training run of a model with a config")
    assert "**3 of the 4 cells of the grid are declared.** The other one always shows as missing" in description
    assert "* `training_configs/sonnets-only.yaml` lists `models:` scratch" in description
    assert "both.yaml" not in description


def test_a_full_grid_says_so(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "assets/training_configs/sonnets-only.yaml").unlink()
    assert grid_note(load_catalog(Project(tmp_path))).startswith("Every cell of the grid is declared")


def test_many_configs_are_counted_and_not_listed(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    one = tmp_path / "assets/training_configs/sonnets-only.yaml"
    for number in range(11):
        shutil.copy(one, one.with_stem(f"copy-{number:02d}"))
    note = grid_note(load_catalog(Project(tmp_path)))
    assert "14 of the 26 cells of the grid are declared.** The other 12 always show as missing" in note
    assert "* and 2 more: see `declared_pairs`" in note


def test_declared_pairs_are_a_table(tiny_project: Project) -> None:
    shown = declared_pairs(load_catalog(tiny_project))
    assert [record.data for record in shown.records] == [  # type: ignore[attr-defined]
        {"training_config": "both", "trains": "imported, scratch", "not declared": ""},
        {"training_config": "sonnets-only", "trains": "scratch", "not declared": "imported"},
    ]
