"""The plan of a model of many small tensors: how much memory one more chunk takes, and which bucket gets it."""

import tracemalloc
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.conversion_plan import CONFIG, NARROW, write_headers
from pamp_pipelines.conversion import buckets, exporter
from pamp_pipelines.conversion.buckets import assign, bucket_count, read_plan, write_plans
from pamp_pipelines.conversion.import_work import Stored
from pamp_pipelines.conversion.importer import plan_of
from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.conversion.plan import ImportPlan, peak_bytes
from pamp_pipelines.conversion.torch_dist import write_index


def many_experts(folder: Path, layers: int) -> Callable[[], ImportPlan]:
    """DeepSeek-V3 of narrow layers, its weights holes of sparse files."""
    source = folder / f"{layers} layers"
    source.mkdir()
    write_headers(source, {**CONFIG, **NARROW, "num_hidden_layers": layers, "n_routed_experts": 64}, 500_000)
    job = ImportJob(name="x", id="x", output=folder / "out", source=source)
    return lambda: plan_of(job)


def peak_of(function: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_chunk_takes_no_more_than_the_printed_bound_says(tmp_path: Path) -> None:
    few, few_bytes = peak_of(many_experts(tmp_path, 6))
    many, many_bytes = peak_of(many_experts(tmp_path, 16))
    more = len(many.sizes) - len(few.sizes)
    assert more > 1500
    per_chunk = (peak_bytes(1, 10**6) - peak_bytes(1)) / 10**6
    assert (many_bytes - few_bytes) / more < 0.9 * per_chunk


def test_buckets_and_index_are_written_a_chunk_at_a_time(tmp_path: Path) -> None:
    plan = many_experts(tmp_path, 6)()
    numbers = assign(plan.sizes)
    stored = Stored(plan, numbers, ["__0_0.distcp"], [])

    def write() -> None:
        write_plans(plan, numbers, tmp_path)
        write_index(tmp_path, stored, [])

    _, peak = peak_of(write)
    assert peak / len(plan.sizes) < 300


def test_a_chunk_of_an_export_takes_no_more_either(tmp_path: Path) -> None:
    peaks, chunks = [], []
    for layers in (6, 12):
        plan = many_experts(tmp_path, layers)()
        release = tmp_path / f"{layers} layers, imported"
        release.mkdir()
        (release / "__0_0.distcp").touch()
        write_index(release, Stored(plan, array("H", bytes(2 * len(plan.sizes))), ["__0_0.distcp"], []), [])
        job = ExportJob(name="x", id="x", output=tmp_path / "out", checkpoint=release, template=plan.source.dir)
        assert len(exporter.plan_of(job)[2].items) > 64 * layers
        peaks.append(peak_of(lambda job=job: exporter.plan_of(job))[1])
        chunks.append(len(plan.sizes))
    per_chunk = (peak_bytes(1, 10**6) - peak_bytes(1)) / 10**6
    assert (peaks[1] - peaks[0]) / (chunks[1] - chunks[0]) < per_chunk


@pytest.mark.parametrize("size", [400, 10_000])
def test_a_bucket_reads_its_own_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", size * 2**10)
    plan = many_experts(tmp_path, 4)()
    numbers = assign(plan.sizes)
    made = write_plans(plan, numbers, tmp_path)
    assert len(made) == bucket_count(plan.sizes) > 1
    found = {}
    for number, bucket in enumerate(made):
        chunks = read_plan(bucket.plan)
        assert bucket.bytes == sum(chunk.bytes for _, chunk in chunks)
        assert {numbers[n] for n, _ in chunks} == {number}
        sources = [(chunk.pieces[0].file, chunk.pieces[0].start) for _, chunk in chunks]
        assert sources == sorted(sources)
        found |= dict(chunks)
    assert [found[n] for n in range(len(plan.sizes))] == list(plan.chunks())


@given(st.lists(st.integers(1, 2**31), min_size=1, max_size=300))
def test_buckets_are_balanced_and_none_is_empty(sizes: list[int]) -> None:
    numbers = assign(sizes)
    loads = [0] * bucket_count(sizes)
    for number, size in zip(numbers, sizes, strict=True):
        loads[number] += size
    assert min(loads) > 0
    assert max(loads) - min(loads) <= max(sizes)
