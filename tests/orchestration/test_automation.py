"""Ticks of the automation without a daemon: what would run, and when."""

import shutil
from collections.abc import Iterable

import dagster as dg
import pytest

from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.checks import CHECKS
from pamp_pipelines.project import Project

ONE, TWO = "scratch/both/v0001/0000004", "scratch/both/v0001/0000008"
EXPORT, LEADERBOARD = dg.AssetKey("hf_export"), dg.AssetKey("leaderboard")
SCORES = [dg.AssetKey(["eval_scores", name]) for name in ("perplexity", "sums")]


class Automation:
    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.definitions, self.instance = definitions, instance
        self.cursor = None
        self.tick()

    def tick(self) -> dict[str, set[str | None]]:
        result = dg.evaluate_automation_conditions(
            defs=self.definitions, instance=self.instance, cursor=self.cursor, asset_selection=dg.AssetSelection.all()
        )
        self.cursor = result.cursor
        keys = self.definitions.resolve_asset_graph().get_all_asset_keys()
        requested = {key.to_user_string(): result.get_requested_partitions(key) for key in keys}
        return {asset: set(partitions) for asset, partitions in requested.items() if partitions}

    def report(self, asset: dg.AssetKey, partition: str | None) -> None:
        self.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=partition))

    def check(self, asset: dg.AssetKey, names: Iterable[str], passed: bool) -> None:
        for name in names:
            evaluation = dg.AssetCheckEvaluation(
                asset_key=asset, check_name=name, passed=passed, metadata={}, severity=dg.AssetCheckSeverity.ERROR
            )
            self.instance.report_runless_asset_event(evaluation)

    def add_checkpoint(self, partition: str) -> None:
        self.instance.add_dynamic_partitions("checkpoint", [partition])
        self.report(dg.AssetKey("checkpoint"), partition)


@pytest.fixture
def automation(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Automation:
    return Automation(definitions, instance)


def test_a_new_checkpoint_is_exported_then_scored_and_nothing_else_runs(automation: Automation) -> None:
    automation.add_checkpoint(ONE)
    assert automation.tick() == {"hf_export": {ONE}}
    assert automation.tick() == {}
    automation.report(EXPORT, ONE)
    automation.check(EXPORT, [c.name for c in CHECKS["hf_export"]], passed=True)
    assert automation.tick() == {"eval_scores/perplexity": {ONE}, "eval_scores/sums": {ONE}}


def test_the_leaderboard_does_not_wait_for_every_checkpoint(automation: Automation) -> None:
    automation.add_checkpoint(ONE)
    automation.add_checkpoint(TWO)
    automation.tick()
    automation.report(EXPORT, ONE)
    automation.check(EXPORT, [c.name for c in CHECKS["hf_export"]], passed=True)
    for key in SCORES:
        automation.report(key, ONE)
    assert automation.tick().get("leaderboard") == {None}


def test_the_leaderboard_refreshes_once_after_a_batch_of_scores(automation: Automation) -> None:
    for partition in (ONE, TWO):
        automation.add_checkpoint(partition)
        automation.report(EXPORT, partition)
        for key in SCORES:
            automation.report(key, partition)
    requested = [automation.tick().get("leaderboard")]
    automation.report(LEADERBOARD, None)
    requested += [automation.tick().get("leaderboard") for _ in range(3)]
    assert requested == [{None}, None, None, None]


def test_scores_wait_for_the_blocking_checks_of_the_export(automation: Automation) -> None:
    automation.add_checkpoint(ONE)
    automation.tick()
    automation.check(EXPORT, [c.name for c in CHECKS["hf_export"]], passed=False)
    automation.report(EXPORT, ONE)
    assert not {asset for asset in automation.tick() if asset.startswith("eval_scores")}


def test_a_new_evaluation_waits_for_a_backfill_of_what_exists(automation: Automation, own_project: Project) -> None:
    """Otherwise one new YAML would start a run for each checkpoint that was ever kept."""
    automation.add_checkpoint(ONE)
    automation.report(EXPORT, ONE)
    automation.check(EXPORT, [c.name for c in CHECKS["hf_export"]], passed=True)
    for key in SCORES:
        automation.report(key, ONE)
    automation.tick()
    folder = own_project.assets / "evaluations"
    shutil.copy(folder / "sums.yaml", folder / "more-sums.yaml")
    automation.definitions = build_definitions(own_project)
    assert not {asset for asset in automation.tick() if asset.startswith("eval_scores")}
    automation.add_checkpoint(TWO)
    automation.report(EXPORT, TWO)
    assert automation.tick().get("eval_scores/more-sums") == {TWO}
