"""The stage functions: artifacts, identity, refusals, killed conversions, and what a conversion must never import."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.conversion.importer import describe_plan, import_hf
from pamp_pipelines.conversion.job import ImportJob, plain_export_job, plain_import_job
from pamp_pipelines.conversion.torch_dist import checkpoint_dir
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.events import Event


def write_model(directory: Path, config: dict[str, Any]) -> Path:
    """A Hugging Face directory with random float32 weights, without torch."""
    from pamp_pipelines.conversion.layout import layout_of

    random = np.random.default_rng(0)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    shapes = layout_of(config).hf_shapes()
    save_file({n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}, directory / "model.safetensors")
    return directory


def test_artifacts_through_the_launcher(config_of: Any, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", config_of("llama"))
    events: list[Event] = []
    job = plain_import_job(source, tmp_path / "out" / "imported")
    artifact = import_hf(job, events.append)
    assert (artifact.kind, artifact.id, artifact.path) == ("megatron_checkpoint", job.id, job.output)
    assert read_artifact(job.output, verify="hash").content == artifact.content
    root = job.output / "checkpoint"
    assert (root / "latest_checkpointed_iteration.txt").read_text() == "release"
    assert json.loads((root / "release" / "metadata.json").read_text())["sharded_backend"] == "torch_dist"
    assert (job.output / "hf_template" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    stats = artifact.manifest.stats
    assert stats["parameters"] * 4 == stats["bytes"] == (source / "model.safetensors").stat().st_size - header(source)
    assert {c.name: c.passed for c in artifact.manifest.checks} == {
        "coverage": True, "finite_weights": True, "tokenizer": False, "trainable": True,
    }  # fmt: skip
    kinds = [e.kind for e in events]
    assert kinds[0] == "started"
    assert "finished" in kinds
    last = [e for e in events if e.kind == "progress"][-1]
    assert last.data["done_bytes"] == last.data["total_bytes"] == stats["bytes"]
    assert last.data["gigabytes_per_second"] > 0
    assert any("no tokenizer files" in e.data["message"] for e in events if e.kind == "warning")

    result = export_hf(plain_export_job(job.output, tmp_path / "out" / "exported"))
    assert result.kind == "hf_export"
    assert result.manifest.inputs == (artifact.ref,)
    assert (result.path / "model.safetensors").is_file()
    # nothing but the artifacts and their locks stays
    names = {f.name for f in (tmp_path / "out").iterdir()}
    assert names == {"imported", "exported"} | {
        f".{n}.{end}" for n in ("imported", "exported") for end in ("lock", "intact.json")
    }


def header(directory: Path) -> int:
    return 8 + int.from_bytes((directory / "model.safetensors").read_bytes()[:8], "little")


def test_a_finished_artifact_is_returned_and_a_changed_source_is_not(
    config_of: Any, in_process: None, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "source", config_of("llama"))
    first = import_hf(plain_import_job(source, tmp_path / "imported"))
    before = (first.path / "manifest.json").stat().st_mtime_ns
    again = import_hf(plain_import_job(source, tmp_path / "imported"))
    assert again == first
    assert (first.path / "manifest.json").stat().st_mtime_ns == before

    data = bytearray((source / "model.safetensors").read_bytes())
    data[-1] ^= 1  # same names, shapes and size: only a weight differs
    (source / "model.safetensors").write_bytes(data)
    other = import_hf(plain_import_job(source, tmp_path / "imported"))
    assert other.id != first.id
    assert other.content != first.content
    export = plain_export_job(tmp_path / "imported", tmp_path / "exported")
    assert plain_export_job(tmp_path / "imported", tmp_path / "elsewhere").id == export.id
    assert plain_export_job(tmp_path / "imported", tmp_path / "exported", dtype="bfloat16").id != export.id
    assert plain_export_job(tmp_path / "imported", tmp_path / "exported", max_shard_bytes=10**6).id != export.id


def test_foreign_output_is_never_replaced(config_of: Any, in_process: None, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", config_of("llama"))
    precious = tmp_path / "documents"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="documents: exists and is no megatron_checkpoint"):
        import_hf(plain_import_job(source, precious))
    assert (precious / "thesis.tex").read_text() == "x"
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file: exists"):
        import_hf(plain_import_job(source, tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    import_hf(plain_import_job(source, tmp_path / "empty"))


def test_a_wrong_source_leaves_nothing(config_of: Any, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", config_of("llama"))
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        import_hf(plain_import_job(source, tmp_path / "out" / "imported"))
    assert {f.name for f in (tmp_path / "out").iterdir()} <= {".imported.lock"}
    with pytest.raises(InputError, match="no such directory"):
        plain_import_job(tmp_path / "absent", tmp_path / "out" / "imported")
    with pytest.raises(InputError, match="no checkpoint here"):
        plain_export_job(source, tmp_path / "x")


def test_export_needs_a_template(config_of: Any, in_process: None, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", config_of("llama"))
    imported = import_hf(plain_import_job(source, tmp_path / "imported"))
    shutil.copytree(imported.path / "checkpoint", tmp_path / "alone")
    with pytest.raises(InputError, match="give --template"):
        plain_export_job(tmp_path / "alone", tmp_path / "exported")
    for place in (tmp_path / "alone", tmp_path / "alone" / "release"):
        job = plain_export_job(place, tmp_path / f"from-{place.name}", source)
        assert job.checkpoint == tmp_path / "alone" / "release"
    export_hf(job)


def test_memory_budget(config_of: Any, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", config_of("llama"))
    plan = describe_plan(plain_import_job(source, tmp_path / "x"))
    assert plan["source_bytes"] == plan["checkpoint_bytes"] == plan["parameters"] * 4
    assert plan["peak_memory_bytes"] < 2**30
    with pytest.raises(InputError, match="memory_bytes is 1000"):
        describe_plan(plain_import_job(source, tmp_path / "x", memory_bytes=1000))


def test_nothing_heavy_is_imported(config_of: Any, tmp_path: Path) -> None:
    """Neither the caller nor the worker needs torch, let alone a model."""
    source = write_model(tmp_path / "source", config_of("qwen3"))
    script = f"""
import sys
from pathlib import Path
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.conversion.job import plain_export_job, plain_import_job
assert "numpy" not in sys.modules
from pamp_pipelines.conversion import stage, worker
stage.run_worker = lambda module, job, run_dir, **_: sys.exit(3) if worker.main(job) else None
root = Path({str(tmp_path)!r})
import_hf(plain_import_job(root / "source", root / "imported"))
export_hf(plain_export_job(root / "imported", root / "exported"))
heavy = {{"torch", "megatron", "transformers", "safetensors"}} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert source.is_dir()


@pytest.mark.slow
def test_a_killed_import_leaves_nothing_that_loads(config_of: Any, tmp_path: Path) -> None:
    """SIGKILL to the caller while chunks are being written; a rerun makes the artifact and sweeps what was left."""
    changes = {"vocab_size": 25_000, "hidden_size": 480, "intermediate_size": 920}
    source = write_model(tmp_path / "source", config_of("llama", **changes))
    out = tmp_path / "out" / "imported"
    script = f"""
from pathlib import Path
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import plain_import_job
import_hf(plain_import_job(Path({str(source)!r}), Path({str(out)!r}), chunk_bytes=30_000))
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    while not any(out.parent.glob(".imported.*/checkpoint/release/__0_0.distcp")):
        assert process.poll() is None, "the import ended before it could be killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    (draft,) = (d for d in out.parent.glob(".imported.*.partial") if (d / "checkpoint").exists())
    for place in (out, draft):
        with pytest.raises(InputError, match="no checkpoint here"):
            checkpoint_dir(place)
    artifact = import_hf(plain_import_job(source, out))
    read_artifact(artifact.path, verify="hash")
    assert {f.name for f in out.parent.iterdir()} == {"imported", ".imported.lock", ".imported.intact.json"}


def test_a_rerun_writes_only_what_is_not_finished(
    config_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth file fails; the second run finds a receipt of another plan and a file that changed since."""
    from pamp_pipelines.conversion import buckets, write_chunks
    from pamp_pipelines.conversion.import_work import run_import
    from pamp_pipelines.lake.events import EventLog

    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 100_000)
    source = write_model(tmp_path / "source", config_of("llama"))
    log, written = EventLog(tmp_path / "events.jsonl"), []
    original = write_chunks.write_tensor

    def job(target: str) -> ImportJob:
        (tmp_path / target).mkdir()
        return ImportJob(name="x", id="x" * 64, output=tmp_path / target, source=source, workers=1)

    run_import(job("whole"), tmp_path / "whole", log)
    files = sorted((tmp_path / "whole" / "checkpoint" / "release").glob("*.distcp"))
    assert len(files) > 4

    def fails_in_the_fourth(stream: Any, *rest: Any) -> int:
        if Path(stream.name).name == "__3_0.distcp":
            raise OSError("disk full")
        written.append(Path(stream.name).name)
        return original(stream, *rest)

    monkeypatch.setattr(write_chunks, "write_tensor", fails_in_the_fourth)
    again = job("again")
    with pytest.raises(OSError, match="disk full"):
        run_import(again, tmp_path / "again", log)
    assert set(written) == {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}
    (folder,) = tmp_path.glob(".again.*.buckets")
    other = folder.parent / f".again.{'y' * 16}.buckets"
    other.mkdir()
    receipt = json.loads((folder / "__1_0.json").read_text())
    (folder / "__1_0.json").write_text(json.dumps(receipt | {"chunks": "of another plan"}))
    damaged = bytearray((folder / "__2_0.distcp").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / "__2_0.distcp").write_bytes(damaged)

    def counts(stream: Any, *rest: Any) -> int:
        written.append(Path(stream.name).name)
        return original(stream, *rest)

    monkeypatch.setattr(write_chunks, "write_tensor", counts)
    written.clear()
    shutil.rmtree(tmp_path / "again")
    (tmp_path / "again").mkdir()
    run_import(again, tmp_path / "again", log)
    assert "__0_0.distcp" not in written
    assert {"__1_0.distcp", "__2_0.distcp", "__3_0.distcp"} <= set(written)
    assert not list(tmp_path.glob(".again.*"))
    for file in files:
        assert (tmp_path / "again" / "checkpoint" / "release" / file.name).read_bytes() == file.read_bytes()


def test_index_and_tracker_come_last(config_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that dies while it writes chunks has written neither."""
    from pamp_pipelines.conversion import import_work
    from pamp_pipelines.lake.events import EventLog

    source = write_model(tmp_path / "source", config_of("llama"))
    target = tmp_path / "target"
    target.mkdir()
    job = ImportJob(name="x", id="x", output=target, source=source)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_work, "write_objects", dies)
    with pytest.raises(KeyboardInterrupt):
        import_work.run_import(job, target, EventLog(tmp_path / "events.jsonl"))
    files = {f.name for f in target.rglob("*") if f.is_file()}
    assert "__0_0.distcp" in files
    assert not files & {".metadata", "latest_checkpointed_iteration.txt", "metadata.json"}


def test_from_scratch(config_of: Any, in_process: None, tmp_path: Path) -> None:
    config = config_of("qwen3")
    del config["model_type"]
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    job = ImportJob(name="s", id="s" * 64, output=tmp_path / "scratch", config=config, tokenizer=tokenizer)
    artifact = import_hf(job)
    assert {f.path for f in artifact.manifest.files} == {"hf_template/config.json", "hf_template/tokenizer.json"}
    written = json.loads((artifact.path / "hf_template" / "config.json").read_text())
    assert written == {**config, "model_type": "qwen3"}
    assert artifact.manifest.stats["from_scratch"] is True
    assert artifact.manifest.stats["parameters"] > 0
    missing = job.model_copy(update={"tokenizer": tmp_path / "absent", "output": tmp_path / "other"})
    with pytest.raises(InputError, match="absent: no tokenizer"):
        import_hf(missing)
    assert not (tmp_path / "other").exists()


def test_declared_models(own_project: Any, in_process: None) -> None:
    from pamp_pipelines.conversion.job import import_job
    from pamp_pipelines.declarations.catalog import load_catalog
    from pamp_pipelines.lake.store import Lake

    catalog, lake = load_catalog(own_project), Lake(own_project.lake)
    names = sorted(catalog.models)
    assert len(names) == 2
    for name in names:
        job = import_job(catalog, lake, name)
        assert job.output == lake.checkpoint_dir(name, job.id)
        artifact = import_hf(job)
        assert import_job(catalog, lake, name).id == artifact.id
        scratch = catalog.models[name].from_scratch is not None
        assert (artifact.path / "checkpoint").exists() is not scratch
        assert artifact.manifest.declaration["model"][name]["licence"] == catalog.models[name].licence
    with pytest.raises(InputError):
        import_job(catalog, lake, "absent")


def test_digests_are_remembered_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pamp_pipelines.conversion import identity

    file = tmp_path / "a.safetensors"
    file.write_bytes(b"one")
    cache = tmp_path / "cache"
    first = identity.digests([file], tmp_path, cache)
    read: list[Path] = []
    original = identity.sha256_file
    monkeypatch.setattr(identity, "sha256_file", lambda f: read.append(f) or original(f))
    assert identity.digests([file], tmp_path, cache) == first
    assert read == []
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert identity.digests([file], tmp_path, cache) != first
    assert read == [file]
    next(iter(cache.iterdir())).write_text("{")
    assert identity.digests([file], tmp_path, cache) == identity.digests([file], tmp_path, None)


def peak_of_import(source: Path, target: Path) -> int:
    """Peak resident memory in MiB of an import (it maps no file), where torch and Megatron cannot be imported at all.

    Read from /proc: `ru_maxrss` of a new process begins at the size of the one that started it, here that of the tests.
    """
    script = f"""
import sys
sys.modules |= dict.fromkeys(("torch", "megatron", "transformers"))  # an import of them raises
from pathlib import Path
from pamp_pipelines.conversion import stage, worker
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import plain_import_job
stage.run_worker = lambda module, job, run_dir, **_: worker.main(job)
import_hf(plain_import_job(Path({str(source)!r}), Path({str(target)!r})))
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=240, capture_output=True, text=True)
    return int(done.stdout)


def test_memory_does_not_grow_with_layers_or_experts(config_of: Any, tmp_path: Path) -> None:
    """10, 80 and 80 MB: the peak is the same but for the plan. Nothing that builds a model could have been called."""
    sizes = {"hidden_size": 200, "intermediate_size": 420, "head_dim": 20, "vocab_size": 251}
    experts = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 64,
        "num_experts_per_tok": 2, "moe_intermediate_size": 60,
    }  # fmt: skip
    configs = {
        "8 layers": config_of("llama", num_hidden_layers=8, **sizes),
        "64 layers": config_of("llama", num_hidden_layers=64, **sizes),
        "8 layers of 64 experts": config_of("qwen3", num_hidden_layers=8, **sizes, **experts),
    }
    peaks, weights = {}, {}
    for name, config in configs.items():
        source = write_model(tmp_path / name, config)
        weights[name] = (source / "model.safetensors").stat().st_size
        peaks[name] = peak_of_import(source, tmp_path / f"{name}, imported")
    few, *more = weights.values()
    assert all(size > 6 * few for size in more), weights
    few, *more = peaks.values()
    assert all(abs(peak - few) < 12 for peak in more), peaks
