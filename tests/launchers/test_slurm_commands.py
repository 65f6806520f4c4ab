"""The Slurm launcher beside commands that fail, are missing or are interrupted."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.launchers import slurm
from pamp_pipelines.launchers.base import Handle, WorkerSpec
from pamp_pipelines.launchers.slurm import SlurmLauncher
from pamp_pipelines.launchers.slurm_commands import Unreachable, find_by_name

QUEUE = """
for argument in "$@"; do case "$argument" in --steps) exit 0 ;; --format=%F) number=1 ;; esac; done
if [ "$number" ]; then [ ! -e queue ] || echo 42; exit 0; fi
[ ! -e queue ] || echo "$(cat queue)|PENDING|None|"
[ ! -e canceled ] || echo "$(cat canceled)|CANCELLED|None|"
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of Slurm's commands, whose queue of at most one job is the file `queue` in the current folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    command(folder, "squeue", QUEUE)
    command(folder, "scancel", "[ ! -e queue ] || mv queue canceled")
    command(folder, "sacct", "exit 1")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield folder
    signal.signal(signal.SIGINT, before)


def command(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def spec(tmp_path: Path) -> WorkerSpec:
    (tmp_path / "job.json").write_text("{}")
    profile = ComputeProfile.model_validate({"launcher": "slurm", "grace_s": 1})
    return WorkerSpec("pkg.worker", tmp_path / "job.json", tmp_path / "run", profile)


TAKEN = """sed -n 's/^#SBATCH --job-name=//p' "$2" > queue"""


@pytest.mark.parametrize(
    "body",
    [f"{TAKEN}; kill -INT $PPID; exec sleep 60", f"(sleep 1; {TAKEN}) & kill -INT $PPID; exec sleep 60"],
    ids=["taken", "taken a moment later"],
)
def test_an_interrupt_during_the_submission_leaves_no_job(commands: Path, tmp_path: Path, body: str) -> None:
    command(commands, "sbatch", body)
    with pytest.raises(KeyboardInterrupt):
        SlurmLauncher().submit(spec(tmp_path))
    assert (tmp_path / "canceled").exists()
    (cancel,) = (tmp_path / "run").rglob(slurm.CANCEL)  # seen by a job that comes later still
    assert SlurmLauncher().find(tmp_path / "run") is None
    assert cancel.parent.parent.name == "logs"


def test_a_full_disk_after_the_submission_leaves_no_job(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(commands, "sbatch", f"{TAKEN}; echo 42")
    write = slurm.write_handle

    def full(run_dir: Path, handle: Handle) -> None:
        if handle.id:
            raise OSError(28, "No space left on device")
        write(run_dir, handle)

    monkeypatch.setattr(slurm, "write_handle", full)
    with pytest.raises(OSError, match="No space left"):
        SlurmLauncher().submit(spec(tmp_path))
    assert (tmp_path / "canceled").exists()


@pytest.mark.parametrize("gone", ["deleted", "not to be started"])
def test_a_command_that_is_away_for_a_moment_ends_nothing(commands: Path, tmp_path: Path, gone: str) -> None:
    command(commands, "sbatch", f"{TAKEN}; echo 42")
    launcher = SlurmLauncher()
    handle = launcher.submit(spec(tmp_path))
    if gone == "deleted":
        (commands / "squeue").unlink()
    else:
        (commands / "squeue").chmod(0o644)
    with pytest.raises(Unreachable, match="squeue"):
        find_by_name(handle.details["name"])
    assert launcher.poll(handle).reason == "running"
    command(commands, "squeue", QUEUE)
    assert SlurmLauncher().poll(handle).reason == "queued"
