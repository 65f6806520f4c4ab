"""Mixtures of experts and latent attention in Megatron's own loop; a rank that hangs is found and survived."""

from __future__ import annotations

import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import WorkerFailed
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.run import train

pytestmark = pytest.mark.slow

_COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 88,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 28,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": 258,
}
QWEN: dict[str, Any] = {
    **_COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 12,
    "norm_topk_prob": True,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 6789.0},
}
DEEPSEEK: dict[str, Any] = {
    **_COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "kv_lora_rank": 22,
    "n_group": 4,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 6,
    "q_lora_rank": 26,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5678.0},
    "topk_group": 2,
    "v_head_dim": 10,
}

# the real worker, whose rank 0 hangs once
HANGS = """
    import os, sys, time
    from pathlib import Path
    from pamp_pipelines.training import worker
    from pamp_pipelines.training.job import read_job

    def hang_once(job, rank):
        hung = job.run_dir / "hung"
        start, steps = worker.start_megatron, iter(range(1, 1000))

        def start_and_wrap(job):
            started = start(job)
            from megatron.training import training

            step = training.train_step

            def step_or_hang(*args, **kwargs):
                if next(steps) == 6 and rank == 0 and not hung.exists():
                    print("waiting for a file server that is gone", flush=True)
                    hung.touch()
                    time.sleep(10_000)
                return step(*args, **kwargs)

            training.train_step = step_or_hang
            return started

        worker.start_megatron = start_and_wrap

    if __name__ == "__main__":
        hang_once(read_job(Path(sys.argv[1])), int(os.environ["RANK"]))
        sys.exit(worker.main(Path(sys.argv[1])))
"""


def _be_there(job: TrainJob) -> None:
    job.run_dir.mkdir(parents=True, exist_ok=True)
    log, deadline = EventLog(job.events_path), time.monotonic() + 300
    while not (job.run_dir / "hung").exists() and time.monotonic() < deadline:
        log.write("progress", stage="train")
        time.sleep(1)


def test_experts_are_trained_and_a_rank_that_hangs_is_named_ended_and_survived(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text(textwrap.dedent(HANGS))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def job(name: str, **changes: Any) -> TrainJob:
        return trainer.job(tmp_path / name, name=f"tiny/{name}/v0001", id="e" * 64, cadence=[8], **changes)

    patience = ComputeProfile(grace_s=2.0, threads_per_process=1)
    deepseek = job(
        "deepseek",
        hf_config=DEEPSEEK,
        world_size=2,
        parallelism={"expert": 2, "distributed_optimizer": True},
        profile=patience.model_copy(update={"stall_timeout_s": 6.0}),
    )
    # until it hangs it is heard of, however slow the machine is
    starting = threading.Thread(target=_be_there, args=(deepseek,))
    starting.start()
    with pytest.raises(WorkerFailed, match="no event for 6 s") as failed:
        train(deepseek, worker="hangs")
    starting.join()
    assert "[rank 0] waiting for a file server that is gone" in failed.value.last_lines
    qwen = trainer.start(job("qwen", hf_config=QWEN))
    finished = train(deepseek.model_copy(update={"profile": patience}), worker="hangs")
    assert finished.manifest.stats["resumed_from"] == 4
    assert {check.name for check in finished.manifest.checks if not check.passed} <= {"validation_gap"}
    assert qwen.wait() == 0, qwen.log()
    for done in (deepseek, qwen.job):
        records = trainer.records(done)
        assert [record["iteration"] for record in records] == list(range(1, 9))
        assert records[-1]["loss"] < records[0]["loss"]
        assert all(record["grad_norm"] > 0 for record in records)
