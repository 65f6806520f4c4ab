"""Row maps of the operations, and the proofs of coverage."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pamp_pipelines.conversion.architectures import Entry, Op, Source
from pamp_pipelines.conversion.coverage import interval_problem, tiling_problem
from pamp_pipelines.conversion.rows import Run, clip, rows_of_source, runs

QKV = Entry("k", ("QKV",), (Source("q", ("Q",)), Source("k", ("K",)), Source("v", ("K",))), Op.GROUP_QKV)
JOIN = Entry("k", ("2F",), (Source("gate", ("F",)), Source("up", ("F",))), Op.JOIN)


def apply(entry: Entry, dimensions: dict[str, int], sources: list[np.ndarray]) -> np.ndarray:
    out = np.full(sum(len(s) for s in sources), -1)
    for run in runs(entry, dimensions):
        out[run.start : run.start + run.rows] = sources[run.source][run.source_start : run.source_start + run.rows]
    return out


@given(groups=st.integers(1, 4), per_group=st.integers(1, 3), head=st.integers(1, 5))
def test_group_qkv_is_megatrons_view(groups: int, per_group: int, head: int) -> None:
    dims = {"D": head, "K": groups * head, "Q": groups * per_group * head}
    q = np.arange(dims["Q"])
    k = 1000 + np.arange(dims["K"])
    v = 2000 + np.arange(dims["K"])
    # [groups, heads of the group + 2, head]
    expected = np.concatenate([q.reshape(groups, -1), k.reshape(groups, -1), v.reshape(groups, -1)], axis=1).ravel()
    assert (apply(QKV, dims, [q, k, v]) == expected).all()


def test_join_is_gate_then_up() -> None:
    assert apply(JOIN, {"F": 2}, [np.array([1, 2]), np.array([3, 4])]).tolist() == [1, 2, 3, 4]


@given(data=st.data(), groups=st.integers(1, 4), per_group=st.integers(1, 3), head=st.integers(1, 5))
def test_inverse_and_clip(data: Any, groups: int, per_group: int, head: int) -> None:
    dims = {"D": head, "K": groups * head, "Q": groups * per_group * head}
    moved = runs(QKV, dims)
    for source, height in enumerate([dims["Q"], dims["K"], dims["K"]]):
        own = rows_of_source(moved, source)
        assert interval_problem(0, height, [(r.source_start, r.rows) for r in own]) is None
    total = dims["Q"] + 2 * dims["K"]
    cut = data.draw(st.integers(0, total))
    parts = clip(moved, 0, cut) + clip(moved, cut, total)
    rows = [(r.source, r.source_start + i, r.start + i) for r in parts for i in range(r.rows)]
    whole = [(r.source, r.source_start + i, r.start + i) for r in moved for i in range(r.rows)]
    assert rows == whole


def test_clip_keeps_the_place() -> None:
    assert clip([Run(0, 0, 0, 10), Run(10, 1, 5, 10)], 8, 13) == [Run(8, 0, 8, 2), Run(10, 1, 5, 3)]


@given(data=st.data())
def test_a_cut_tensor_is_tiled_and_nothing_less_is(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [((0,) * len(shape), shape)]
    for _ in range(data.draw(st.integers(0, 6))):
        number = data.draw(st.integers(0, len(boxes) - 1))
        axis = data.draw(st.integers(0, len(shape) - 1))
        offset, size = boxes[number]
        if size[axis] < 2:
            continue
        at = data.draw(st.integers(1, size[axis] - 1))
        low = (*size[:axis], at, *size[axis + 1 :])
        high = (*size[:axis], size[axis] - at, *size[axis + 1 :])
        moved = (*offset[:axis], offset[axis] + at, *offset[axis + 1 :])
        boxes[number : number + 1] = [(offset, low), (moved, high)]
    order = data.draw(st.permutations(boxes))
    assert tiling_problem(shape, order) is None
    assert tiling_problem(shape, order[1:]) is not None
    assert tiling_problem(shape, [*order, order[0]]) is not None


def test_tiling_problems_by_name() -> None:
    assert "outside" in str(tiling_problem((4, 4), [((0, 0), (5, 4))]))
    assert "outside" in str(tiling_problem((4, 4), [((-1, 0), (5, 4))]))
    # right volume, but one corner twice and one never
    overlapping = [((0, 0), (2, 4)), ((1, 0), (2, 4))]
    assert "overlap" in str(tiling_problem((4, 4), overlapping))
    assert "axes" in str(tiling_problem((4,), [((0, 0), (4, 1))]))
    assert "hold 2 elements" in str(tiling_problem((4,), [((0,), (2,))]))
    # one layer per chunk, two of them the same
    assert "overlap" in str(tiling_problem((2, 3), [((0, 0), (1, 3)), ((0, 0), (1, 3))]))


def test_interval_problems() -> None:
    assert interval_problem(10, 4, [(12, 2), (10, 2)]) is None
    assert "twice" in str(interval_problem(10, 4, [(10, 3), (12, 2)]))
    assert "not used" in str(interval_problem(10, 4, [(10, 1), (12, 2)]))
    assert "used up to" in str(interval_problem(10, 4, [(10, 3)]))
    assert "used up to" in str(interval_problem(10, 4, []))
