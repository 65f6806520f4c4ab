"""What other processes and sudden ends do."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pamp_pipelines.lake.artifact import find
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob

PROGRAM = """
import sys
from pathlib import Path
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob
job = TokenizeJob.model_validate_json(Path(sys.argv[1]).read_text())
artifact = tokenize(job, lambda event: print(event.kind, flush=True))
print(artifact.content)
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[TokenizeJob], "subprocess.Popen[str]"]:
    def run(job: TokenizeJob) -> "subprocess.Popen[str]":
        file = tmp_path / "job.json"
        file.write_text(job.model_dump_json())
        return subprocess.Popen([sys.executable, "-c", PROGRAM, str(file)], stdout=subprocess.PIPE, text=True)

    return run


def partials(job: TokenizeJob) -> list[Path]:
    return list(job.output.parent.glob(f".{job.output.name}.*.partial"))


def test_a_killed_build_leaves_nothing_and_the_next_one_succeeds(
    make_job: Callable[..., TokenizeJob], start: Callable[[TokenizeJob], "subprocess.Popen[str]"], plays: list[str]
) -> None:
    job = make_job((f"{i} {play}" for i in range(3) for play in plays), fraction=0.1).model_copy(
        update={"batch_bytes": 50_000}
    )
    process = start(job)
    deadline = time.monotonic() + 60
    while not any((p / "train.bin").exists() and (p / "train.bin").stat().st_size > 100_000 for p in partials(job)):
        assert process.poll() is None, "ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert not job.output.exists()
    assert find(job.output, job.id) is None
    assert partials(job)
    after_kill = tokenize(job)
    assert partials(job) == []
    uninterrupted = tokenize(job.model_copy(update={"output": job.output.with_name("uninterrupted")}))
    assert after_kill.content == uninterrupted.content


def test_two_processes_at_once_build_once(
    make_job: Callable[..., TokenizeJob], start: Callable[[TokenizeJob], "subprocess.Popen[str]"], plays: list[str]
) -> None:
    job = make_job(plays, fraction=0.1)
    outputs = [process.communicate(timeout=60)[0].split() for process in [start(job), start(job)]]
    assert sorted(map(len, outputs)) == [1, 3]
    assert outputs[0][-1] == outputs[1][-1]
    assert {"started", "finished"} <= {*outputs[0], *outputs[1]}
