"""What may be resumed from and what may be deleted."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pamp_pipelines.errors import InfrastructureFailed
from pamp_pipelines.training import restart
from pamp_pipelines.training.checkpoints import TRACKER
from pamp_pipelines.training.saved import Saved


def saved_with(root, checkpoint, steps, tracker):
    for step in steps:
        checkpoint(root / f"iter_{step:07d}", step)
    if tracker is not None:
        root.mkdir(exist_ok=True)
        (root / TRACKER).write_text(tracker)
    return Saved(root)


@pytest.mark.parametrize(
    ("steps", "tracker", "keep_last", "kept", "left"),
    [
        ([1, 2, 3, 4], "4", 1, (), [4]),
        ([1, 2, 3, 4], "4", 2, (), [3, 4]),
        ([1, 2, 3, 4], "4", 2, (1,), [1, 3, 4]),
        ([1, 2, 3, 4], "4", 1, (2, 4), [2, 4]),
        ([1, 2, 3, 4], "2", 1, (), [2, 3, 4]),  # 3 and 4 may be saves that have not ended
        ([1, 2, 3, 4], "", 1, (), [1, 2, 3, 4]),  # nobody knows what is complete
        ([1, 2], None, 1, (), [1, 2]),
    ],
)
def test_prune(tmp_path, checkpoint, steps, tracker, keep_last, kept, left):
    saved = saved_with(tmp_path, checkpoint, steps, tracker)
    removed = saved.prune(keep_last, kept)
    assert saved.steps() == left
    assert removed == [step for step in steps if step not in left]
    assert sorted(d.name for d in tmp_path.iterdir() if d.is_dir()) == [f"iter_{step:07d}" for step in left]


@settings(max_examples=60)
@given(
    steps=st.sets(st.integers(1, 30), min_size=1, max_size=12),
    kept=st.sets(st.integers(1, 30)),
    keep_last=st.integers(1, 4),
    data=st.data(),
)
def test_prune_never_deletes_what_is_needed(tmp_path_factory, steps, kept, keep_last, data):
    root = tmp_path_factory.mktemp("saved")
    tracker = data.draw(st.sampled_from(sorted(steps)))
    for step in steps:
        (root / f"iter_{step:07d}").mkdir()
    (root / TRACKER).write_text(str(tracker))
    Saved(root).prune(keep_last, kept)
    left = set(Saved(root).steps())
    assert tracker in left
    assert kept & steps <= left
    assert {step for step in steps if step > tracker} <= left
    assert set(sorted(step for step in steps if step <= tracker)[-keep_last:]) <= left
    rolling = {step for step in left if step <= tracker and step not in kept}
    assert len(rolling) <= keep_last


def test_sweep_removes_trash_and_unfinished_saves_and_repairs_the_tracker(tmp_path, checkpoint):
    saved = saved_with(tmp_path, checkpoint, [2, 4], "4")
    (tmp_path / ".trash-1-abc").mkdir()
    (tmp_path / "iter_0000006").mkdir()
    warnings: list[str] = []
    assert saved.sweep(warnings.append) == 4
    assert sorted(d.name for d in tmp_path.iterdir()) == ["iter_0000002", "iter_0000004", TRACKER]
    assert len(warnings) == 1
    assert "iter_0000006" in warnings[0]
    assert saved.sweep(warnings.append) == 4
    assert len(warnings) == 1  # nothing is left to say


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
def test_sweep_deletes_nothing_that_cannot_be_read_for_a_moment(tmp_path, checkpoint, monkeypatch, file):
    saved = saved_with(tmp_path, checkpoint, [4, 8], "8")
    opened = Path.open

    def stale(path, *args, **options):
        if path.name == file:
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", stale)
        with pytest.raises(InfrastructureFailed, match=r"iter_0000008: cannot be read \(Stale file handle\)"):
            saved.sweep(lambda _: None)
    assert saved.sweep(lambda _: None) == 8


def test_a_cluster_tries_again_where_storage_does_not_answer(bench, checkpoint, monkeypatch, capsys):
    """Its caller gives up at the status of a wrong input only."""
    job = bench.job()
    checkpoint(job.checkpoints_dir / "iter_0000004", 4)
    (job.run_dir / "job.json").write_text(job.model_dump_json())

    def stale(_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("pamp_pipelines.training.saved.damaged_payload", stale)
    assert restart.main(job.run_dir / "job.json") == 1
    assert "cannot be read (Stale file handle)" in capsys.readouterr().err
    assert bench.steps() == [4]


def test_sweep_passes_over_a_checkpoint_whose_index_of_records_is_damaged(tmp_path, checkpoint):
    saved = saved_with(tmp_path, checkpoint, [4, 8], "8")
    file = saved.dir(8) / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 201
    file.write_bytes(data)
    warnings: list[str] = []
    assert saved.sweep(warnings.append) == 4
    assert "not as it was saved (zip file version 20.1)" in warnings[0]


def test_sweep_repairs_a_tracker_of_other_bytes(tmp_path, checkpoint):
    saved = saved_with(tmp_path, checkpoint, [4], None)
    (tmp_path / TRACKER).write_bytes(b"\xb4")
    assert saved.sweep(lambda _: None) == 4
    assert saved.tracker() == 4


def test_sweep_of_a_new_run_says_nothing(tmp_path):
    warnings: list[str] = []
    assert Saved(tmp_path / "checkpoints").sweep(warnings.append) is None
    assert warnings == []


def test_a_foreign_pickle_is_not_run(tmp_path, checkpoint):
    saved = saved_with(tmp_path, checkpoint, [2], "2")
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    (saved.dir(2) / ".metadata").write_bytes(evil)
    assert "os.system" in (saved.problem(2) or "")
    assert not (tmp_path / "ran").exists()


def test_complete_needs_the_tracker_to_have_moved(tmp_path, checkpoint):
    saved = saved_with(tmp_path, checkpoint, [2, 4], "2")
    assert saved.complete(2)
    assert not saved.complete(4)  # every file is there, and another rank may still be writing
