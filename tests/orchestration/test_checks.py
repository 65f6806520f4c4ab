import dagster as dg

from pamp_pipelines.lake.manifest import CheckResult, Manifest
from pamp_pipelines.orchestration.checks import CHECKS, check_evaluations, check_results, check_specs


def results(*verdicts: CheckResult) -> dict[str, dg.AssetCheckResult]:
    manifest = Manifest(kind="pretrained_checkpoint", id="i", content="c", created="now", checks=verdicts)
    return {str(r.check_name): r for r in check_results("pretrained_checkpoint", manifest)}


def test_verdicts_of_the_manifest_become_check_results() -> None:
    found = results(
        CheckResult(name="loss_fell", passed=False, description="rose", metadata={"first": 1.0, "last": 2.0}),
        CheckResult(name="validation_gap", passed=False, severity="WARN"),
        CheckResult(name="tracker_reached", passed=True),
    )
    fell = found["loss_fell"]
    assert (fell.passed, fell.severity, fell.description) == (False, dg.AssetCheckSeverity.ERROR, "rose")
    assert fell.metadata["last"] == dg.FloatMetadataValue(2.0)
    assert found["validation_gap"].severity is dg.AssetCheckSeverity.WARN
    assert found["tracker_reached"].passed


def test_a_verdict_that_is_not_there_is_not_passed() -> None:
    absent = results()["loss_finite"]
    assert not absent.passed
    assert absent.severity is dg.AssetCheckSeverity.WARN
    assert "Not judged" in (absent.description or "")


def test_error_checks_block() -> None:
    for asset, checks in CHECKS.items():
        specs = check_specs(asset, None)
        assert {s.name: s.blocking for s in specs} == {c.name: c.severity == "ERROR" for c in checks}


def test_checks_are_of_a_partition(definitions: dg.Definitions) -> None:
    """One without partitions is that of the newest materialisation, whichever partition that was."""
    graph = definitions.resolve_asset_graph()
    for key in graph.asset_check_keys:
        assert graph.get(key).partitions_def == graph.get(key.asset_key).partitions_def, key


def test_verdicts_outside_a_run_are_those_of_the_newest_materialisation(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """Otherwise Dagster takes them for verdicts on an older one, and shows none."""
    key, partition = dg.AssetKey("hf_export"), "scratch/both/v0001/0000004"
    instance.add_dynamic_partitions("checkpoint", [partition])
    instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=partition))
    manifest = Manifest(
        kind="hf_export", id="i", content="c", created="now", checks=[CheckResult(name="coverage", passed=False)]
    )
    for evaluation in check_evaluations(instance, "hf_export", partition, manifest):
        instance.report_runless_asset_event(evaluation)
    coverage = dg.AssetCheckKey(key, "coverage")
    (info,) = instance.event_log_storage.get_asset_check_partition_info([coverage])
    assert (info.partition_key, info.latest_execution_status.value, info.is_current) == (partition, "FAILED", True)
