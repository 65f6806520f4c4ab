"""The batch script as text: what it holds, that nothing gets out of its quotes, and that bash takes it."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, LauncherError
from pamp_pipelines.launchers import find_worker, launcher_for
from pamp_pipelines.launchers.base import Handle, WorkerSpec, write_handle
from pamp_pipelines.launchers.local import LocalLauncher
from pamp_pipelines.launchers.slurm_commands import job_state
from pamp_pipelines.launchers.slurm_script import batch_script

SNAPSHOT = Path(__file__).parent / "snapshots/slurm.sh"


def script(run_dir: str = "/lake/runs/m/c/v0001", processes: int | None = 16, **fields: object) -> str:
    profile = ComputeProfile.model_validate({"launcher": "slurm", "nodes": 2, "processes_per_node": 8, **fields})
    spec = WorkerSpec(
        "pkg.worker", Path(run_dir) / "job.json", Path(run_dir), profile, processes, before_restart="pkg.restart"
    )
    return batch_script(spec, "c0ffee", Path(run_dir) / "logs/start", "pamp-c0ffee-m-c-v0001")


def test_the_whole_script() -> None:
    text = script(
        threads_per_process=4,
        grace_s=300,
        env={"NCCL_DEBUG": "WARN"},
        slurm={
            "partition": "gpu",
            "account": "llm",
            "qos": "long",
            "constraint": "h100&ib",
            "gres": "gpu:8",
            "time": "2-00:00:00",
            "directives": {"exclusive": True, "mem": 0, "mail-user": "a@b.org"},
            "setup": ["module load cuda/13", "ulimit -l unlimited"],
            "container": {"image": "reg.org#team/pamp:1", "mounts": ["/lake:/lake", "/data:/data:ro"]},
            "python": "/opt/pamp/bin/python",
        },
    )
    assert text == SNAPSHOT.read_text(), "changed on purpose? write the new text to the snapshot"


def directives(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition": "gpu\n#SBATCH --uid=0"}, "partition"),
        ({"constraint": 'a"b'}, "constraint"),
        ({"setup": ["module load cuda\nrm -rf /"]}, "setup"),
        ({"python": "py\nthon"}, "python"),
        ({"directives": {"output": "/etc/passwd"}}, "not allowed"),
        ({"directives": {"uid": "0"}}, "not allowed"),
        ({"directives": {"comment": "a\nb"}}, "comment"),
        ({"directives": {"exclusive": False}}, "leave it out"),
        ({"time": "tomorrow"}, "time"),
        ({"container": {"image": "a\nb"}}, "image"),
    ],
)
def test_what_a_profile_may_not_say(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ComputeProfile.model_validate({"launcher": "slurm", "slurm": fields})


def test_slurm_fields_need_the_launcher() -> None:
    with pytest.raises(ValidationError, match="has no effect"):
        ComputeProfile.model_validate({"slurm": {"partition": "gpu"}})


def test_a_run_directory_with_a_newline_is_refused() -> None:
    with pytest.raises(InputError, match="newlines"):
        script(run_dir="/lake/a\n#SBATCH --uid=0")


def test_variables_with_odd_names_are_refused() -> None:
    compute = ComputeProfile(launcher="slurm")
    spec = WorkerSpec("pkg.worker", Path("/lake/job.json"), Path("/lake"), compute, None, {"A=$(id) B": "1"})
    with pytest.raises(InputError, match="no names of environment variables"):
        batch_script(spec, "c0ffee", Path("/lake/logs"), "name")


def test_ranks_that_do_not_fit_the_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="3 processes cannot be shared out evenly over `nodes: 2`"):
        script(processes=3)


def test_a_worker_without_torchrun_asks_for_one_node() -> None:
    text = script(processes=None)
    assert "#SBATCH --nodes=1" in directives(text)
    assert "torchrun" not in text
    assert "elastic" not in text


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_values_of_variables_reach_the_worker_as_they_are(value: str) -> None:
    text = script(env={"VALUE": value})
    assert all("VALUE" not in line for line in directives(text))
    begin = text.index("export VALUE=")
    assert shlex.split(text[begin : text.index("\nexport PAMP_RUN_TOKEN=")]) == ["export", f"VALUE={value}"]


def test_an_array_is_one_job_whose_tasks_have_folders_of_their_own() -> None:
    compute = ComputeProfile(launcher="slurm", nodes=2, processes_per_node=8, threads_per_process=3)
    spec = WorkerSpec("pkg.worker", Path("/lake/plan.json"), Path("/lake/run"), compute, tasks=16)
    text = batch_script(spec, "c0ffee", Path("/lake/run/logs/start"), "name")
    assert {"#SBATCH --array=0-15", "#SBATCH --nodes=1", "#SBATCH --cpus-per-task=3"} <= set(directives(text))
    assert "#SBATCH --output=/lake/run/logs/start/batch-%a.log" in directives(text)
    assert 'export PAMP_TASK="$SLURM_ARRAY_TASK_ID" PAMP_TASKS=16' in text
    # $SLURM_JOB_ID of one of the tasks stands for all of them
    assert "SLURM_JOB_ID" not in text
    assert 'job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" logs="$all/task$SLURM_ARRAY_TASK_ID"' in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


def test_this_machine_has_no_arrays(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4 tasks is an array job"):
        LocalLauncher().submit(
            WorkerSpec("pkg.worker", tmp_path / "j", tmp_path, ComputeProfile(processes_per_node=4), tasks=4)
        )


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["COMPLETED", "RUNNING", "PENDING"], "RUNNING"),
        (["COMPLETED", "PENDING"], "PENDING"),
        (["COMPLETED", "FAILED", "COMPLETED"], "FAILED"),
        (["COMPLETED", "COMPLETED"], "COMPLETED"),
        ([], None),
    ],
)
def test_the_state_of_an_array(
    states: list[str], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"name|{state}|None|n1\n" for state in states)
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\nprintf '{rows}'\n" if rows else "#!/bin/sh\necho Invalid job id >&2; exit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    state = job_state("7", "name")
    assert (state and state.state) == said
    assert job_state("7", "another") is None


def test_bash_takes_it() -> None:
    text = script(run_dir='/lake/it\'s 100% "odd" $(x)'.replace('"', ""), slurm={"requeue": False})
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    assert "#SBATCH --no-requeue" in directives(text)
    assert "scontrol requeue" not in text


def test_previews_write_nothing(tmp_path: Path) -> None:
    slurm = ComputeProfile(launcher="slurm", nodes=2, processes_per_node=2)
    spec = WorkerSpec("pkg.worker", tmp_path / "job.json", tmp_path / "run", slurm, 4)
    assert "--nnodes=2 --nproc-per-node=2" in launcher_for(slurm).preview(spec)
    local = ComputeProfile(processes_per_node=4)
    command = launcher_for(local).preview(WorkerSpec("pkg.worker", tmp_path / "job.json", tmp_path / "run", local, 4))
    assert "--nproc-per-node=4" in command
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_here_a_submitted_job_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    details = {"name": "n", "poll_s": 1, "grace_s": 1}
    handle = Handle(
        launcher="slurm", token="t", host="h", id="7", submitted="now", log_dir=tmp_path / "logs", details=details
    )
    write_handle(tmp_path, handle)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LauncherError, match=r"handle\.json: it may still run slurm worker 7; .* squeue is not installed"
    ):
        find_worker(tmp_path)
