"""How an artifact is shown: what it is, what it holds, what its checks say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pamp_pipelines.commands.command import Outcome

if TYPE_CHECKING:
    from pamp_pipelines.lake.artifact import Artifact
    from pamp_pipelines.lake.manifest import CheckResult


def artifact_outcome(*artifacts: Artifact, **more: Any) -> Outcome:
    """An Outcome that fails when a blocking check of an artifact did."""
    data = [artifact_data(artifact) for artifact in artifacts]
    lines = [line for artifact in artifacts for line in artifact_lines(artifact)]
    passed = all(verdict(artifact.manifest.checks) for artifact in artifacts)
    shown = {"artifact": data[0]} if len(data) == 1 else {"artifacts": data}
    return Outcome({**shown, **more}, lines, ok=passed)


def artifact_data(artifact: Artifact) -> dict[str, Any]:
    """Identity, place, figures and verdicts as JSON data."""
    return {
        "kind": artifact.kind,
        "id": artifact.id,
        "content": artifact.content,
        "path": str(artifact.path),
        "bytes": artifact.bytes,
        "stats": dict(artifact.manifest.stats),
        "checks": [check.model_dump(mode="json") for check in artifact.manifest.checks],
    }


def artifact_lines(artifact: Artifact) -> Iterator[str]:
    """The same for people."""
    yield f"{artifact.kind}  {artifact.path}"
    for key, value in artifact.manifest.stats.items():
        if not isinstance(value, dict | list) or len(str(value)) <= 100:
            yield f"    {key}: {value}"
    yield from check_lines(artifact.manifest.checks)


def check_lines(checks: Sequence[CheckResult]) -> Iterator[str]:
    """One line a check."""
    for check in checks:
        mark = "passed" if check.passed else "FAILED" if check.severity == "ERROR" else "warning"
        yield f"    check {check.name}: {mark}. {check.description}"


def verdict(checks: Sequence[CheckResult]) -> bool:
    """Whether no blocking check failed."""
    return all(check.passed or check.severity != "ERROR" for check in checks)
