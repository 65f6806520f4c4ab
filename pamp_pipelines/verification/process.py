"""Running one verification worker in a folder of its own and reading what it leaves there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import OnEvent
from pamp_pipelines.launchers import run_worker

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
_MAX_THREADS = 8
"""Small batches do not gain from more, and a comparison must not take the machine."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder. Where the block fails, the logs that the error names stay, and only they."""
    folder = Path(tempfile.mkdtemp(prefix="pamp-verify-")).resolve()
    try:
        yield folder
    except BaseException:
        for path in folder.iterdir():
            if path.is_dir() and path.name != "logs":
                shutil.rmtree(path, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def run[R: BaseModel](
    module: str, job: BaseModel, work: Path, result: type[R], file: str, on_event: OnEvent, env: Mapping[str, str]
) -> R:
    """Run a worker with `job` and read its result from `work / file`.

    Raises:
        WorkerFailed: it ended badly; with its last lines.
    """
    job_file = work / "job.json"
    write_text(job_file, job.model_dump_json(indent=2))
    run_worker(module, job_file, work, profile=_profile(), on_event=on_event, env={**_OFFLINE, **env})
    return result.model_validate_json((work / file).read_bytes())


def _profile() -> ComputeProfile:
    if "OMP_NUM_THREADS" in os.environ:
        return ComputeProfile()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ComputeProfile(threads_per_process=min(cores, _MAX_THREADS))
