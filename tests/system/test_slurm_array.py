"""Wide work as a Slurm array: tokenization, scoring and conversion dealt out to tasks on two nodes."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import plain_export_job, plain_import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import WorkerFailed
from pamp_pipelines.evaluation.array import evaluate_many
from pamp_pipelines.evaluation.plain import plain_job
from pamp_pipelines.evaluation.scores import read_scores
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.base import Handle, WorkerSpec, read_handle
from pamp_pipelines.launchers.slurm import SlurmLauncher
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.array import run_folder
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.tokenization.pieces import Plan, Staging
from tests.launchers.conftest import Bench, bench, wait_for  # noqa: F401
from tests.system.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.system

PROFILE = ComputeProfile(
    launcher="slurm", nodes=2, processes_per_node=2, threads_per_process=1, grace_s=10, slurm={"poll_s": 0.3}
)


def bytes_of(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.is_file() and file.name != "manifest.json"  # times
    }


def test_an_array_tokenizes_to_the_bytes_of_this_machine(slurm: SlurmCluster, own_project: Project) -> None:
    catalog, lake = load_catalog(own_project), Lake(own_project.lake)
    scan_corpus(corpus_job(catalog, lake, "plays"))
    declared = tokenize_job(catalog, lake, "plays", "scratch").model_copy(update={"task_bytes": 4000})
    here = tokenize(declared.model_copy(update={"output": own_project.root / "here", "workers": 1}))
    staging = Staging.of(declared.output)
    handles: list[Handle | None] = []
    pieces: list[int] = []

    def listen(event: Event) -> None:
        if event.kind == "submitted":
            handles.append(read_handle(run_folder(staging)))
            pieces.append(len(Plan.model_validate_json(staging.plan_file.read_bytes()).tasks))

    there = tokenize(declared, listen, profile=PROFILE)
    assert bytes_of(there.path) == bytes_of(here.path)
    assert there.content == here.content
    assert [handle.details["tasks"] for handle in handles if handle] == [4]
    assert pieces[0] > 4  # more pieces than tasks
    assert [path.name for path in there.path.parent.iterdir() if "pieces" in path.name] == []
    assert slurm.jobs() == []


TASK = """
    import os, sys, time
    from pathlib import Path
    from pamp_pipelines.lake.events import EventLog
    task = int(os.environ["PAMP_TASK"])
    log = EventLog(Path(f"events-{task}.jsonl"))
    log.write("started", task=task, tasks=os.environ["PAMP_TASKS"], node=os.environ["SLURMD_NODENAME"])
"""


def test_a_failed_task_is_named_when_all_have_ended(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    module = bench.write(
        "one_fails", TASK + "\n    print(f'said by {task}', flush=True)\n    sys.exit(3 if task == 2 else 0)\n"
    )
    seen: list[Event] = []
    with pytest.raises(WorkerFailed, match="one_fails task 2: exit status 3") as error:
        run_worker(module, bench.job, bench.run_dir, profile=PROFILE, tasks=4, on_event=seen.append)
    assert "said by 2" in str(error.value)
    started = [event.data for event in seen if event.kind == "started"]
    assert sorted(data["task"] for data in started) == [0, 1, 2, 3]
    assert {data["tasks"] for data in started} == {"4"}


def test_cancel_ends_all_tasks_of_an_array(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    """More tasks than cores: some run, others wait in the queue."""
    module = bench.write("sleeps", TASK + "\n    time.sleep(300)\n")
    seen: list[Event] = []

    def interrupt(event: Event) -> None:
        seen.append(event)
        if len([one for one in seen if one.kind == "started"]) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_worker(module, bench.job, bench.run_dir, profile=PROFILE, tasks=10, on_event=interrupt)
    wait_for(lambda: slurm.jobs() == [], 120, "end of all tasks in the queue")
    bench.assert_all_dead(120)


def test_a_preempted_task_of_an_array_starts_again_alone(slurm: SlurmCluster, bench: Bench) -> None:  # noqa: F811
    """The last task's number is the whole array's: its shell must not put all back into the queue."""
    module = bench.write(
        "twice",
        TASK
        + """
    if task == 1 and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        Path("go").touch()
        sys.exit(75)
    while not Path("go").exists():
        time.sleep(0.1)
""",
    )
    launcher = SlurmLauncher()
    bench.run_dir.mkdir(exist_ok=True)
    handle = launcher.submit(WorkerSpec(module, bench.job, bench.run_dir, PROFILE, tasks=2))
    task = f"{handle.id}_1"
    wait_for((handle.log_dir / "task1/start0").exists, 120, "first start")
    wait_for(lambda: slurm.command("squeue", "-h", "-j", task, "-o", "%T") == "PENDING", 120, "requeue")
    slurm.hurry(task)
    wait_for(lambda: not launcher.poll(handle).running, 120, "end")
    assert launcher.poll(handle).exit_code == 0
    ends = [json.loads((handle.log_dir / f"task{n}/exit.json").read_text()) for n in (0, 1)]
    assert [end["restarts"] for end in ends] == [0, 1]


def test_an_array_scores_several_models(slurm: SlurmCluster, own_project: Project, tmp_path: Path) -> None:
    """Three real scorings in two tasks; one model is broken, the others are published and it is named."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a rose by any other name"}\n')
    model = own_project.data / "models/imported"
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "config.json").write_text("{}")
    data = {"heldout_perplexity": rows}
    jobs = [
        plain_job(directory, ["heldout_perplexity"], tmp_path / f"scores{n}", data=data)
        for n, directory in enumerate((model, broken, model))
    ]
    seen: list[Event] = []
    profile = PROFILE.model_copy(update={"processes_per_node": 1})
    with pytest.raises(WorkerFailed, match=r"array_worker task 1: exit status 1.*broken"):
        evaluate_many(jobs, profile, tmp_path, seen.append)
    assert [(tmp_path / f"scores{n}/heldout_perplexity/scores.parquet").exists() for n in range(3)] == [
        True,
        False,
        True,
    ]
    first, last = evaluate_many([jobs[0], jobs[2]], profile, tmp_path, seen.append)  # found, not scored again
    perplexities = [[row["value"] for row in read_scores(scores.path / "scores.parquet")] for scores in (first, last)]
    assert perplexities[0] == perplexities[1]
    assert len([event for event in seen if event.kind == "submitted"]) == 1
    assert slurm.jobs() == []


def write_model(folder: Path) -> None:
    """A model of 268 MB, which is three buckets of a checkpoint; most of it is its vocabulary."""
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64_000, "hidden_size": 1024},
        **{"num_hidden_layers": 1, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2},
        **{"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "hidden_act": "silu"},
    }
    layer = "model.layers.0."
    shapes = {
        **dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (64000, 1024)),
        **{f"{layer}self_attn.{name}_proj.weight": (1024, 1024) for name in "qo"},
        **{f"{layer}self_attn.{name}_proj.weight": (256, 1024) for name in "kv"},
        **{f"{layer}mlp.{name}_proj.weight": (96, 1024) for name in ("gate", "up")},
        f"{layer}mlp.down_proj.weight": (1024, 96),
        **{f"{layer}{name}_layernorm.weight": (1024,) for name in ("input", "post_attention")},
        "model.norm.weight": (1024,),
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for number, (name, shape) in enumerate(shapes.items()):
        bits = np.arange(math.prod(shape), dtype=np.uint32).astype(np.uint16) + np.uint16(number)
        tensors[name] = (bits & 0x3BFF).view(np.float16).reshape(shape)  # small finite numbers
    save_file(tensors, folder / "model.safetensors")


def seen_on(events: list[Event]) -> list[str]:
    """Launchers that jobs were submitted to."""
    return [event.data["launcher"] for event in events if event.kind == "submitted"]


def test_an_array_writes_the_weights_of_an_import_and_of_an_export(slurm: SlurmCluster, tmp_path: Path) -> None:
    write_model(source := tmp_path / "source")
    seen: list[Event] = []
    jobs = [plain_import_job(source, tmp_path / name) for name in ("here", "there")]
    import_hf(jobs[0])
    import_hf(jobs[1], seen.append, profile=PROFILE)
    files = [bytes_of(tmp_path / name / "checkpoint/release") for name in ("here", "there")]
    assert files[0] == files[1]
    assert len(files[0]) >= 4  # three buckets, and the index
    assert seen_on(seen) == ["slurm"]
    exported = export_hf(plain_export_job(tmp_path / "there", tmp_path / "back"), seen.append, profile=PROFILE)
    original, back = (load_file(folder / "model.safetensors") for folder in (source, exported.path))
    assert original.keys() == back.keys()
    assert all(np.array_equal(original[name], back[name]) for name in original)
    assert seen_on(seen) == ["slurm", "slurm"]
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in (".buckets", ".array")]
    assert slurm.jobs() == []
