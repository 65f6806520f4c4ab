"""A job whose worker is a stand-in: it writes checkpoints, metrics and events as Megatron's does, and can fail."""

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pamp_pipelines
from pamp_pipelines.conversion.dtypes import by_name
from pamp_pipelines.conversion.payload import write_tensor
from pamp_pipelines.conversion.torch_dist import StoredChunk, StoredTensor, write_index
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.training_config import Checkpointing, Dropout, Optimizer, Parallelism, Validation
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.manifest import ArtifactRef
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.training import run
from pamp_pipelines.training.job import TrainJob, WeightedShards
from tests.s3_server import _s3_server, machines, s3

__all__ = ["_s3_server", "machines", "s3"]

# plan.json beside the run: {"at": iteration, "do": what}
TRAINER = """
    import json, os, signal, sys, time
    from pathlib import Path
    from pamp_pipelines.conversion.dtypes import by_name
    from pamp_pipelines.conversion.payload import write_tensor
    from pamp_pipelines.conversion.torch_dist import StoredChunk, StoredTensor, write_index
    from pamp_pipelines.lake.events import EventLog
    from pamp_pipelines.training.checkpoints import TRACKER, checkpoint_path, tracked_iteration
    from pamp_pipelines.training.job import read_job

    job = read_job(Path(sys.argv[1]))
    plan_file = job.run_dir.parent / "plan.json"
    plan = json.loads(plan_file.read_text()) if plan_file.exists() else {}
    log = EventLog(job.events_path)

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def save(step):
        directory = checkpoint_path(job.checkpoints_dir, step)
        directory.mkdir(parents=True)
        with (directory / "__0_0.distcp").open("w+b") as stream:
            length = write_tensor(stream, by_name("float32"), (16,), [step.to_bytes(4, "little") * 16])
        if plan.get("do") == "die in save" and plan["at"] == step:
            die()
        chunk = StoredChunk((0,), (16,), "__0_0.distcp", 0, length)
        write_index(directory, [StoredTensor("w", by_name("torch.float32"), (16,), (chunk,))], [])
        if plan.get("do") == "die before tracker" and plan["at"] == step:
            die()
        (job.checkpoints_dir / TRACKER).write_text(str(step))
        if plan.get("do") == "die before event" and plan["at"] == step:
            die()
        log.write("checkpoint", iteration=step, path=str(directory))

    start = tracked_iteration(job.checkpoints_dir) or 0
    log.write("started", iteration=start, iterations=job.iterations)
    for step in range(start + 1, job.iterations + 1):
        if plan.get("at") == step:
            plan_file.unlink() if plan["do"] in ("die", "exit 0", "exit 2", "exit 17") else None
            if plan["do"] == "die":
                die()
            if plan["do"].startswith("exit"):
                print("the worker's own reason", file=sys.stderr)
                sys.exit(int(plan["do"].split()[1]))
            if plan["do"] == "hang":
                time.sleep(300)
        record = {"iteration": step, "loss": plan.get("losses", {}).get(str(step), 8.0 - step / 10)}
        record["tokens_per_second"] = 1000.0 + step
        if step % job.validation.interval == 0 or step == job.iterations:
            record["validation_loss"] = plan.get("validation_loss", record["loss"])
        with job.metrics_path.open("a") as stream:
            stream.write(json.dumps(record) + "\\n")
        log.write("metric", **record)
        if step % job.checkpoint.interval == 0 or step in job.cadence or step == job.iterations:
            save(step)
    log.write("finished", iteration=job.iterations)
"""

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
    "vocab_size": 128,
}

SHARDS = ArtifactRef(kind="tokenized_shards", id="a" * 64, content="b" * 64)
IMPORT = ArtifactRef(kind="megatron_checkpoint", id="c" * 64, content="d" * 64)


def write_checkpoint(directory: Path, value: int = 1) -> None:
    """A small but real ``torch_dist`` directory."""
    directory.mkdir(parents=True)
    with (directory / "__0_0.distcp").open("w+b") as stream:
        length = write_tensor(stream, by_name("float32"), (16,), [bytes([value]) * 64])
    chunk = StoredChunk((0,), (16,), "__0_0.distcp", 0, length)
    write_index(directory, [StoredTensor("w", by_name("torch.float32"), (16,), (chunk,))], [])


class Bench:
    """Makes jobs and collects events."""

    worker = "fake_trainer"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[Event] = []

    def job(self, **changes: Any) -> TrainJob:
        versions = self.root / "lake/runs/model/config"
        fields: dict[str, Any] = {
            "name": "model/config/v0001",
            "run_dir": versions / "v0001",
            "hf_config": LLAMA,
            "template_dir": self.root / "template",
            "pretrained_checkpoint": None,
            "vocab_size": 128,
            "eod_id": 0,
            "train": (WeightedShards(prefix=self.root / "shards/train", weight=1.0),),
            "sequence_length": 8,
            "iterations": 10,
            "global_batch_size": 4,
            "micro_batch_size": 1,
            "optimizer": Optimizer(lr=1e-3),
            "dropout": Dropout(),
            "precision": "fp32",
            "parallelism": Parallelism(),
            "recompute": "none",
            "checkpoint": Checkpointing(interval=2, keep_last=2),
            "validation": Validation(interval=5),
            "cadence": (5, 10),
            "seed": 1,
            "data_seed": 1,
            "determinism": "exact",
            "log_interval": 1,
            "world_size": 1,
            "id": "e" * 64,
            "inputs": (SHARDS, IMPORT),
            "declaration": {"model": {"model": {}}},
            "profile": ComputeProfile(grace_s=1.0, threads_per_process=1),
        }
        return TrainJob.model_validate(fields | changes)

    def plan(self, **plan: Any) -> None:
        file = self.job().run_dir.parent / "plan.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(plan))

    def no_plan(self) -> None:
        (self.job().run_dir.parent / "plan.json").unlink(missing_ok=True)

    def train(self, job: TrainJob | None = None) -> Any:
        self.events = []
        return run.train(job or self.job(), self.events.append, worker=self.worker)

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    def steps(self) -> list[int]:
        """Steps that have a checkpoint directory."""
        return sorted(int(d.name[5:]) for d in (self.job().checkpoints_dir).glob("iter_*"))

    def iterations(self) -> list[int]:
        """Iterations in metrics.jsonl, in the order of lines."""
        return [json.loads(line)["iteration"] for line in self.job().metrics_path.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The stand-in runs without torchrun, which alone would take seconds a start; one test has it."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "fake_trainer.py").write_text(textwrap.dedent(TRAINER))
    # the package under test, also where another one is installed
    package = Path(pamp_pipelines.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (modules, package))))

    def without_torchrun(*args: Any, **options: Any) -> None:
        run_worker(*args, **(options | {"nproc": None}))

    monkeypatch.setattr(run, "run_worker", without_torchrun)
    return Bench(tmp_path)


@pytest.fixture
def checkpoint() -> Callable[..., None]:
    return write_checkpoint
