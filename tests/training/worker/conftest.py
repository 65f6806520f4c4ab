"""Real training processes on tiny shards. One start of Megatron costs 10-20 s, so runs are shared by the session."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pamp_pipelines.tokenization.indexed import IndexedWriter
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import read_metrics

VOCABULARY = 258  # no multiple of 128: the padding must not count
EOD = 256
LIMIT_S = 240
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1  # linux/prctl.h, linux/capability.h


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Makes and runs jobs on two corpora of random walks, `a` and `b`, each with `train` and `heldout` documents.

    Nobody may write into their folder: trainings leave shards alone.
    """
    root = tmp_path_factory.mktemp("shards")
    random = np.random.default_rng(0)
    for corpus in "ab":
        for split, documents in (("train", 60), ("heldout", 7)):
            with IndexedWriter(root / f"{corpus}_{split}", np.uint16) as writer:
                for _ in range(documents):
                    walk = (random.integers(0, 40) + np.cumsum(random.integers(0, 3, random.integers(60, 200)))) % 200
                    tokens = np.append(walk, EOD).astype(np.uint16)
                    writer.add(tokens, np.array([len(tokens)]))
    for file in root.iterdir():
        file.chmod(0o444)
    root.chmod(0o555)
    return Trainer(root)


def _job(shards: Path, run_dir: Path, **changes: Any) -> TrainJob:
    """Eight steps of a four-layer Llama on one process; `changes` replace fields, and entries of most mappings."""
    fields: dict[str, Any] = {
        "name": f"tiny/{run_dir.name}/v0001",
        "run_dir": run_dir,
        "hf_config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": 64,
            "initializer_range": 0.02,
            "intermediate_size": 128,
            "max_position_embeddings": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "vocab_size": VOCABULARY,
        },
        "template_dir": run_dir,
        "pretrained_checkpoint": None,
        "vocab_size": VOCABULARY,
        "eod_id": EOD,
        "train": [{"prefix": shards / "a_train", "weight": 3.0}, {"prefix": shards / "b_train", "weight": 1.0}],
        "heldout": [{"corpus": corpus, "prefix": shards / f"{corpus}_heldout"} for corpus in "ab"],
        "sequence_length": 32,
        "iterations": 8,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "optimizer": {"lr": 3e-3, "min_lr": 3e-4, "warmup_iterations": 1, "beta2": 0.95},
        "dropout": {"hidden": 0.0, "attention": 0.0},
        "precision": "fp32",
        "parallelism": {"distributed_optimizer": False},
        "recompute": "none",
        "checkpoint": {"interval": 4},
        "validation": {"interval": 4},
        "seed": 1,
        "data_seed": 2,
        "determinism": "exact",
        "log_interval": 1,
        "world_size": 1,
    }
    for name, value in changes.items():
        old = fields.get(name)
        fields[name] = (
            {**old, **value}
            if name != "hf_config" and isinstance(value, Mapping) and isinstance(old, Mapping)
            else value
        )
    return TrainJob.model_validate(fields)


@dataclass
class Run:
    """Processes of a job."""

    job: TrainJob
    process: subprocess.Popen[bytes]

    def wait(self) -> int:
        """Exit status of torchrun."""
        return self.process.wait(LIMIT_S)

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Until something is so, which must be before the processes end."""
        deadline = time.monotonic() + LIMIT_S
        while not reached():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.005)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """SIGKILL for torchrun and everything below it."""
        for process in [psutil.Process(self.process.pid), *self.workers()]:
            process.kill()
        self.process.wait(LIMIT_S)

    def steps(self) -> list[int]:
        return [record["iteration"] for record in read_metrics(self.job.metrics_path)]

    def log(self) -> str:
        return (self.job.run_dir / "log").read_text(errors="replace")[-4000:]


class Trainer:
    """Makes jobs, and runs them as the launcher does."""

    def __init__(self, shards: Path) -> None:
        self.shards = shards

    def job(self, run_dir: Path, **changes: Any) -> TrainJob:
        return _job(self.shards, run_dir, **changes)

    @staticmethod
    def obey_permissions() -> None:
        """Called in a process before it executes a program: root then has no right to files but what modes say."""
        # it fails for those who may not drop it, who then do not have it
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)

    def start(self, job: TrainJob, worker: str = "pamp_pipelines.training.worker", **env: str) -> Run:
        job.run_dir.mkdir(parents=True, exist_ok=True)
        file = job.run_dir / "job.json"
        file.write_text(job.model_dump_json())
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.world_size}"]
        with (job.run_dir / "log").open("ab") as log:
            process = subprocess.Popen(
                [*torchrun, "-m", worker, str(file)],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | env,
                start_new_session=True,
                preexec_fn=self.obey_permissions,
            )
        return Run(job, process)

    def finish(self, *jobs: TrainJob) -> None:
        """Run jobs beside each other to their end."""
        runs = [self.start(job) for job in jobs]
        for run in runs:
            assert run.wait() == 0, run.log()

    def records(self, job: TrainJob) -> list[dict[str, Any]]:
        """Metric records without what depends on the clock."""
        timed = ("seconds_per_iteration", "tokens_per_second", "model_tflops")
        lines = job.metrics_path.read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]
