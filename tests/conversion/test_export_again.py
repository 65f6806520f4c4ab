"""An export that was killed: the next one writes what is not finished, and nothing that it should not trust."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pamp_pipelines.conversion import export_buckets, export_work, gather
from pamp_pipelines.conversion.job import ExportJob
from pamp_pipelines.conversion.torch_dist import read_checkpoint
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.events import EventLog
from tests.conversion.test_export import whole, write_checkpoint

Export = Callable[[], set[str]]
NEVER = 10**6


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_buckets, "_BUCKET_BYTES", 30_000)


@pytest.fixture
def export(
    build: Any, imported: Any, small_buckets: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., set[str]]:
    """Exports to `tmp_path/out` in files of 60 kB; fails when so many tensors are written. Names those written."""
    artifact = imported(build("llama", False, "bfloat16"))
    write = gather._write

    def run(fails_after: int = NEVER, **options: Any) -> set[str]:
        written: list[str] = []

        def counted(reader: Any, item: Any, *rest: Any) -> int:
            if len(written) == fails_after:
                raise OSError("the machine went down")
            written.append(item.name)
            return write(reader, item, *rest)

        monkeypatch.setattr(gather, "_write", counted)
        target = tmp_path / "out"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        fields = {"max_shard_bytes": 60_000, "workers": 1, "template": artifact / "hf_template", **options}
        checkpoint = artifact / "checkpoint" / "release"
        job = ExportJob(name="x", id="x" * 64, output=target, checkpoint=checkpoint, **fields)
        try:
            export_work.run_export(job, target, EventLog(tmp_path / "events.jsonl"))
        except OSError:
            assert fails_after != NEVER
        return set(written)

    return run


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


def test_a_rerun_writes_only_what_is_not_finished(export: Any, tmp_path: Path) -> None:
    every = export()
    before = content(tmp_path / "out")
    assert len(before) > 3
    first = export(fails_after=len(every) // 2)
    assert not content(tmp_path / "out"), "files that are not finished are not in the output"
    (folder,) = tmp_path.glob(".out.*.buckets")
    receipts = sorted(folder.glob("*.json"))
    assert 3 < len(receipts) < len(every)
    changed = json.loads(receipts[0].read_text())
    receipts[0].write_text(json.dumps(changed | {"written": "another plan"}))
    receipts[1].write_text(receipts[1].read_text()[:20])
    (folder.parent / f".out.{'y' * 16}.buckets").mkdir()
    second = export()
    assert first | second == every
    assert len(second) < len(every) * 0.8
    assert content(tmp_path / "out") == before
    assert not list(tmp_path.glob(".out.*"))


def test_a_file_of_another_size_or_header_is_begun_anew(export: Any, tmp_path: Path) -> None:
    every = export()
    before = content(tmp_path / "out")
    export(fails_after=len(every) - 1)
    (folder,) = tmp_path.glob(".out.*.buckets")
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-1])
    data = bytearray(second.read_bytes())
    data[20] ^= 1
    second.write_bytes(data)
    again = export()
    assert len(again) > 2
    assert content(tmp_path / "out") == before


def test_a_part_that_changed_since_it_was_written_is_written_again(export: Any, tmp_path: Path) -> None:
    every = export()
    before = content(tmp_path / "out")
    export(fails_after=len(every) - 1)
    (folder,) = tmp_path.glob(".out.*.buckets")
    file = min(folder.glob("*.safetensors"))
    for byte in (int.from_bytes(file.read_bytes()[:8], "little") + 8, -1):  # the first and the last of a weight
        data = bytearray(file.read_bytes())
        data[byte] ^= 1
        file.write_bytes(data)
    again = export()
    assert 2 <= len(again) < len(every)
    assert content(tmp_path / "out") == before


def test_a_checkpoint_whose_bytes_are_not_those_that_were_saved_is_not_exported(
    build: Any, imported: Any, exported: Any
) -> None:
    artifact = imported(build("llama", False, "bfloat16"))
    checkpoint = artifact / "checkpoint" / "release"
    some = read_checkpoint(checkpoint).tensors["decoder.layers.mlp.linear_fc2.weight"].chunks[-1]
    data = bytearray((checkpoint / some.file).read_bytes())
    data[some.start + some.length // 2] ^= 64
    (checkpoint / some.file).write_bytes(data)
    with pytest.raises(InputError, match=rf"{some.file} at byte {some.start}: .* not as it was saved \(CRC-32\)"):
        exported(checkpoint, artifact / "hf_template")


def test_what_would_fail_again_is_not_kept(
    build: Any, weights: Any, reference: Any, small_buckets: None, tmp_path: Path
) -> None:
    source = build("llama", False, "float32")
    tensors = reference(weights(source), "llama", False)
    tensors["decoder.final_layernorm.weight"] = torch.full_like(tensors["decoder.final_layernorm.weight"], 1e6)
    checkpoint = tmp_path / "large"
    write_checkpoint(checkpoint, tensors, whole)
    (tmp_path / "out").mkdir()
    job = ExportJob(
        name="x",
        id="x" * 64,
        output=tmp_path / "out",
        checkpoint=checkpoint,
        template=source,
        dtype="float16",
        workers=1,
    )
    with pytest.raises(InputError, match="beyond the range of float16"):
        export_work.run_export(job, tmp_path / "out", EventLog(tmp_path / "events.jsonl"))
    assert not list(tmp_path.glob(".out.*"))
