from datetime import timedelta

import dagster as dg
import pytest

from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.freshness import VARIABLE, longest_gap
from pamp_pipelines.project import Project

TRAINING = dg.AssetKey("pretrained_checkpoint")


def policies(project: Project) -> dict[dg.AssetKey, dg.FreshnessPolicy]:
    specs = build_definitions(project).resolve_all_asset_specs()
    return {spec.key: spec.freshness_policy for spec in specs if spec.freshness_policy}


@pytest.mark.parametrize(
    ("cron", "hours"),
    [
        ("0 3 * * 1", 7 * 24),
        ("0 3 * * 1,3", 5 * 24),
        ("*/15 * * * *", 0.25),
        ("@daily", 24),
        ("0 9-17 * * mon-fri", 64),
    ],
)
def test_the_longest_gap_between_two_ticks(cron: str, hours: float) -> None:
    assert longest_gap(cron) == timedelta(hours=hours)


def test_off_unless_asked_for(tiny_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert policies(tiny_project) == {}


def test_each_retraining_has_until_the_next_tick(own_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert policies(own_project) == {TRAINING: dg.FreshnessPolicy.time_window(fail_window=timedelta(days=14))}
    declared = own_project.assets / "training_configs/sonnets-only.yaml"
    declared.write_text(declared.read_text() + 'cron: "@daily"\n')
    assert policies(own_project) == {TRAINING: dg.FreshnessPolicy.time_window(fail_window=timedelta(days=2))}
    for config in ("both", "sonnets-only"):
        file = own_project.assets / f"training_configs/{config}.yaml"
        file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "cron" not in line))
    assert policies(own_project) == {}
