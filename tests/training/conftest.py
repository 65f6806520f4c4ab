"""A plain job for tests that run nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.training.job import TrainJob
from tests.train_jobs import plain_train_job


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., TrainJob]:
    """Makes a job of a two-layer Llama; keyword arguments replace fields."""

    def make(**changes: Any) -> TrainJob:
        return plain_train_job(tmp_path, **changes)

    return make
