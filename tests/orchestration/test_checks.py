import dagster as dg

from pamp_pipelines.lake.manifest import CheckResult, Manifest
from pamp_pipelines.orchestration.checks import CHECKS, check_results, check_specs


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
        assert {s.name: s.blocking for s in check_specs(asset)} == {c.name: c.severity == "ERROR" for c in checks}
