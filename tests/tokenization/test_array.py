"""What happens to the array of a build whose caller was killed."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.tokenization import array
from pamp_pipelines.tokenization.array import end_other_array
from pamp_pipelines.tokenization.job import TokenizeJob
from pamp_pipelines.tokenization.pieces import Plan, Staging


@pytest.mark.parametrize(
    ("same_plan", "launcher", "ends"),
    [
        (True, "slurm", False),  # it is watched
        (False, "slurm", True),
        (True, "local", True),  # it would write the same pieces beside this machine
    ],
)
def test_an_array_that_is_left(
    make_job: Callable[..., TokenizeJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    same_plan: bool,
    launcher: str,
    ends: bool,
) -> None:
    job = make_job(["a rose"])
    plan = Plan(job=job, encoder="", tokens=(), tasks=())
    running = plan if same_plan else plan.model_copy(update={"encoder": "another"})
    (tmp_path / "plan.json").write_text(running.model_dump_json())
    handle = SimpleNamespace(details={"job_sha256": sha256_file(tmp_path / "plan.json")})
    ended: list[Any] = []
    monkeypatch.setattr(array, "find_worker", lambda _: (SimpleNamespace(cancel=ended.append), handle))
    cluster = ComputeProfile(launcher="slurm") if launcher == "slurm" else None
    end_other_array(plan, Staging.of(job.output), cluster)
    assert ended == ([handle] if ends else [])
