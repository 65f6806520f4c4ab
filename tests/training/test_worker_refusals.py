"""What the worker refuses before it starts Megatron, and when it has nothing to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.conversion.dtypes import by_name
from pamp_pipelines.conversion.torch_dist import StoredChunk, StoredTensor, write_index
from pamp_pipelines.training.checkpoints import TRACKER, checkpoint_path
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.worker import EXIT_INPUT, main


@pytest.fixture
def write_job(make_job: Callable[..., TrainJob]) -> Callable[..., Path]:
    """Writes a job of four steps; keyword arguments replace fields."""

    def write(**changes: Any) -> Path:
        job = make_job(**{"iterations": 4, "global_batch_size": 2, **changes})
        path = job.run_dir / "job.json"
        path.write_text(job.model_dump_json())
        return path

    return write


def write_checkpoint(root: Path, step: int) -> Path:
    """A checkpoint of one tensor of four bytes."""
    directory = checkpoint_path(root, step)
    directory.mkdir(parents=True)
    (directory / "__0_0.distcp").write_bytes(b"1234")
    chunk = StoredChunk((0,), (1,), "__0_0.distcp", 0, 4)
    write_index(directory, [StoredTensor("weight", by_name("float32"), (1,), (chunk,))], [])
    (root / TRACKER).write_text(str(step))
    return directory


def test_a_job_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    file.write_text("{}")
    assert main(file) == EXIT_INPUT
    assert f"{file}: not a training job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 2}, "started with 1 processes; the job is for 2"),
        ({"hf_config": {"architectures": ["MambaForCausalLM"]}}, "'MambaForCausalLM' is not supported"),
        ({"pretrained_checkpoint": Path("/nowhere")}, "/nowhere: no checkpoint here"),
    ],
)
def test_jobs_that_cannot_run_here(
    changes: dict[str, Any], message: str, write_job: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write_job(**changes)) == EXIT_INPUT
    assert message in capsys.readouterr().err


def test_weights_of_another_model(
    write_job: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "import"
    write_checkpoint(weights, 1)
    assert main(write_job(pretrained_checkpoint=weights)) == EXIT_INPUT
    assert "embedding.word_embeddings.weight is missing" in capsys.readouterr().err


def test_a_model_that_megatron_cannot_represent(
    make_job: Callable[..., TrainJob], write_job: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write_job(hf_config=make_job().hf_config | {"hidden_act": "gelu"})) == EXIT_INPUT
    assert "cannot be trained: hidden_act is 'gelu'" in capsys.readouterr().err


def test_a_truncated_checkpoint_is_not_loaded(
    write_job: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job()
    directory = write_checkpoint(job.parent / "checkpoints", 2)
    (directory / "__0_0.distcp").write_bytes(b"12")
    assert main(job) == EXIT_INPUT
    assert (
        f"{directory / '__0_0.distcp'}: 2 of 4 bytes that .metadata points up to: truncated" in capsys.readouterr().err
    )


def test_an_empty_tracker_is_not_taken_for_a_new_run(
    write_job: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job()
    write_checkpoint(job.parent / "checkpoints", 2)
    (job.parent / "checkpoints" / TRACKER).write_text("")
    assert main(job) == EXIT_INPUT
    assert "names no iteration" in capsys.readouterr().err


def test_a_complete_run_is_left_alone(write_job: Callable[..., Path]) -> None:
    job = write_job()
    write_checkpoint(job.parent / "checkpoints", 4)
    script = (
        "import sys; from pathlib import Path; from pamp_pipelines.training.worker import main;"
        "status = main(Path(sys.argv[1])); sys.exit(status or ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script, str(job)], check=False).returncode == 0
