"""Tokens that end documents are like any other: with a pad token equal to them, Megatron replaces and masks them.

Qwen's chat models have such a pair (`<|im_end|>` and `<|endoftext|>`); nothing is said when it happens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

# runs the real worker up to its training data, and counts there
LOOK = """
    import json, sys
    from pathlib import Path
    from pamp_pipelines.training import worker

    start = worker.start_megatron

    def start_and_look(job):
        started = start(job)
        from pamp_pipelines.training import data

        def count(job, dataset):
            found = {"samples": len(dataset), "ends": 0, "masked": 0, "zeros": 0}
            for index in range(len(dataset)):
                item = dataset[index]
                found["ends"] += int((item["tokens"] == job.eod_id).sum())
                found["zeros"] += int((item["tokens"] == 0).sum())
                found["masked"] += int((item["loss_mask"] == 0).sum())
            (job.run_dir / "found.json").write_text(json.dumps(found))
            sys.exit(0)

        data._train_loader = count
        return started

    worker.start_megatron = start_and_look
    sys.exit(worker.main(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_ends_of_documents_are_seen_and_predicted(trainer: Any, tmp_path: Path) -> None:
    import textwrap

    (tmp_path / "look.py").write_text(textwrap.dedent(LOOK))
    job = trainer.job(tmp_path / "run")
    package = str(Path(__file__).parents[3])
    run = trainer.start(job, worker="look", PYTHONPATH=f"{tmp_path}:{package}")
    run.wait()
    assert (job.run_dir / "found.json").is_file(), run.log()
    found = json.loads((job.run_dir / "found.json").read_text())
    assert found["samples"] >= job.iterations * job.global_batch_size
    # a document has 130 tokens on average, a sample 32
    assert found["ends"] > found["samples"] / 8
    assert found["masked"] == 0
    # token 0 occurs in the text, and far more rarely than where ends were replaced by it
    assert found["zeros"] < found["ends"] / 2
