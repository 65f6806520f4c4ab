"""What other processes and sudden ends do."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pamp_pipelines.declarations.corpus import Filter
from pamp_pipelines.lake.artifact import find
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job

PROGRAM = """
import sys
from pathlib import Path
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob
job = TokenizeJob.model_validate_json(Path(sys.argv[1]).read_text())
artifact = tokenize(job, lambda event: print(event.kind, flush=True))
print(artifact.content)
# not ru_maxrss, which starts at that of the process that forked this one
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(peak.split()[1], file=sys.stderr)
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    def run(job: TokenizeJob, limit: int | None = None) -> "subprocess.Popen[str]":
        file = tmp_path / "job.json"
        file.write_text(job.model_dump_json())
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # private memory of each process, workers too
        obey = (lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))) if limit else None
        # buffers and stacks of a math library's threads are none of the stage's memory, and go by the machine
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, str(file)]
        return subprocess.Popen(command, text=True, preexec_fn=obey, env=env, **pipes)

    return run


def partials(job: TokenizeJob) -> list[Path]:
    return list(job.output.parent.glob(f".{job.output.name}.*.partial"))


def test_a_killed_build_leaves_nothing_and_the_next_one_succeeds(
    make_job: Callable[..., TokenizeJob], start: Callable[..., "subprocess.Popen[str]"], plays: list[str]
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
    make_job: Callable[..., TokenizeJob], start: Callable[..., "subprocess.Popen[str]"], plays: list[str]
) -> None:
    job = make_job(plays, fraction=0.1)
    outputs = [process.communicate(timeout=60)[0].split() for process in [start(job), start(job)]]
    assert min(map(len, outputs)) == 1
    assert outputs[0][-1] == outputs[1][-1]
    assert {"started", "finished"} <= {*outputs[0], *outputs[1]}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(
    make_job: Callable[..., TokenizeJob],
    start: Callable[..., "subprocess.Popen[str]"],
    plays: list[str],
    tmp_path: Path,
) -> None:
    import tokenizers

    words = sorted({word for play in plays for word in play.split()})
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast.save(str(tmp_path / "tokenizer.json"))
    peaks = []
    for copies in (6, 60):
        texts = (f"{i} {play}" for i in range(copies) for play in plays)
        job = make_job(texts, fraction=0.1, tokenizer=tmp_path / "tokenizer.json", eod=words[1], out=f"x{copies}")
        # small enough that both corpora fill batches
        process = start(job.model_copy(update={"batch_bytes": 1 << 20, "workers": 1}))
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        peaks.append(int(errors.split()[-1]) / 1024)
    # 33 MB more text; measured: 17 MiB more memory, since the four threads that check the shards fill their blocks
    assert peaks[1] - peaks[0] < 25, peaks


LIMIT = 240 << 20
TIMES = 3


@pytest.mark.slow
def test_a_corpus_of_three_times_the_memory_that_a_process_may_have(
    start: Callable[..., "subprocess.Popen[str]"], plays: list[str], tmp_path: Path, tokenizer: Path
) -> None:
    """5 GB under 1.5 GB each: benchmarks/tokenization_memory.py."""
    source = tmp_path / "a.jsonl"
    copies = 0
    with source.open("w") as out:
        while out.tell() < TIMES * LIMIT:
            out.writelines(json.dumps({"text": f"{copies} {play}"}) + "\n" for play in plays)
            copies += 1
    filters = [Filter(deduplicate="exact")]
    job = plain_tokenize_job([str(source)], tokenizer, tmp_path / "shards", workers=2, filters=filters)
    process = start(job, LIMIT)
    _, errors = process.communicate(timeout=600)
    source.unlink()
    assert process.returncode == 0, errors
    artifact = find(job.output, job.id)
    assert artifact
    assert artifact.manifest.stats["documents_written"] == copies * len(plays)
    assert not artifact.manifest.failed_checks
    shutil.rmtree(job.output)
