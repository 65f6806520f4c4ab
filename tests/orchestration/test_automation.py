"""Ticks of the automation without a daemon: what would run, and when."""

import shutil

import dagster as dg
import pytest

from pamp_pipelines.lake.manifest import CheckResult, Manifest
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.checks import CHECKS, check_evaluations
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

    def check_export(self, partition: str, passed: bool) -> None:
        verdicts = [CheckResult(name=check.name, passed=passed) for check in CHECKS["hf_export"]]
        manifest = Manifest(kind="hf_export", id="i", content="c", created="now", checks=verdicts)
        for evaluation in check_evaluations(self.instance, "hf_export", partition, manifest):
            self.instance.report_runless_asset_event(evaluation)

    def export(self, partition: str, passed: bool = True) -> None:
        self.report(EXPORT, partition)
        self.check_export(partition, passed)

    def add_checkpoint(self, partition: str) -> None:
        self.instance.add_dynamic_partitions("checkpoint", [partition])
        self.report(dg.AssetKey("checkpoint"), partition)

    def add_and_request(self, *partitions: str) -> None:
        """As long before what follows: the tick that requests their runs, and one more."""
        for partition in partitions:
            self.add_checkpoint(partition)
        self.tick()
        assert self.tick() == {}


@pytest.fixture
def automation(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Automation:
    return Automation(definitions, instance)


def test_a_new_checkpoint_is_exported_and_scored_in_one_run_and_nothing_else_runs(automation: Automation) -> None:
    automation.add_checkpoint(ONE)
    assert automation.tick() == {"hf_export": {ONE}, "eval_scores/perplexity": {ONE}, "eval_scores/sums": {ONE}}
    assert automation.tick() == {}


def test_what_was_exported_by_hand_is_scored(automation: Automation) -> None:
    automation.add_and_request(ONE)
    automation.export(ONE)
    assert automation.tick() == {"eval_scores/perplexity": {ONE}, "eval_scores/sums": {ONE}}
    assert automation.tick() == {}


def test_the_leaderboard_does_not_wait_for_every_checkpoint(automation: Automation) -> None:
    automation.add_checkpoint(ONE)
    automation.add_checkpoint(TWO)
    automation.tick()
    automation.export(ONE)
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
    automation.add_and_request(ONE)
    automation.report(EXPORT, ONE)
    assert not {asset for asset in automation.tick() if asset.startswith("eval_scores")}
    automation.check_export(ONE, passed=True)
    assert automation.tick() == {"eval_scores/perplexity": {ONE}, "eval_scores/sums": {ONE}}


def test_a_failed_export_keeps_only_its_own_scores_back(automation: Automation) -> None:
    automation.add_and_request(ONE, TWO)
    automation.export(TWO)
    automation.export(ONE, passed=False)  # the newest of all, and made while the other one waits to be scored
    assert automation.tick() == {"eval_scores/perplexity": {TWO}, "eval_scores/sums": {TWO}}


def test_a_new_evaluation_waits_for_a_backfill_of_what_exists(automation: Automation, own_project: Project) -> None:
    """Otherwise one new YAML would start a run for each checkpoint that was ever kept."""
    automation.add_checkpoint(ONE)
    automation.export(ONE)
    for key in SCORES:
        automation.report(key, ONE)
    automation.tick()
    folder = own_project.assets / "evaluations"
    shutil.copy(folder / "sums.yaml", folder / "more-sums.yaml")
    automation.definitions = build_definitions(own_project)
    assert not {asset for asset in automation.tick() if asset.startswith("eval_scores")}
    automation.add_checkpoint(TWO)
    automation.export(TWO)
    assert automation.tick().get("eval_scores/more-sums") == {TWO}
