"""The verdict on a run, by its metrics."""

import json

import pytest

from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.training.metrics import cut_metrics, read_metrics
from pamp_pipelines.training.outcome import ends


@pytest.mark.parametrize(
    ("plan", "failed"),
    [
        ({}, set()),
        ({"losses": {"4": None}}, {"loss_finite", "loss_fell"}),  # the worker writes null for NaN
        ({"losses": {str(i): 5.0 + i for i in range(1, 11)}, "validation_loss": 12.0}, {"loss_fell"}),
        ({"losses": {str(i): 5.0 for i in range(1, 11)}, "validation_loss": 5.0}, {"loss_fell"}),
        ({"validation_loss": 7.0 * 1.2}, {"validation_gap"}),
        ({"validation_loss": None}, {"loss_finite", "loss_fell"}),
    ],
)
def test_checks(bench, plan, failed):
    bench.plan(**plan)
    manifest = bench.train().manifest
    assert {check.name for check in manifest.checks if not check.passed} == failed
    # only a warning lets what follows go on
    assert {check.name for check in manifest.failed_checks} == failed - {"validation_gap"}


@pytest.mark.parametrize(("step", "severity"), [(5, "WARN"), (10, "ERROR")])
def test_a_kept_checkpoint_that_is_damaged_is_not_passed_over(bench, step, severity):
    trainer = bench.root / "modules/fake_trainer.py"
    line = '    chunk = StoredChunk((0,), (16,), "__0_0.distcp", 0, length)'
    damage = f'    os.truncate(directory / "__0_0.distcp", 5 if step == {step} else length)'
    text = trainer.read_text()
    assert line in text
    trainer.write_text(text.replace(line, f"{damage}\n{line}"))
    manifest = bench.train().manifest
    (check,) = [check for check in manifest.checks if check.name == "kept_saved"]
    assert (check.passed, check.severity, check.metadata) == (False, severity, {"missing": [step]})


def test_a_run_without_metrics_has_not_shown_that_it_learnt(bench):
    modules = bench.root / "modules/fake_trainer.py"
    modules.write_text(modules.read_text().replace('stream.write(json.dumps(record) + "\\n")', "pass"))
    manifest = bench.train().manifest
    assert {check.name for check in manifest.failed_checks} == {"loss_finite", "loss_fell"}


def test_ends_average_over_entries_that_do_not_overlap():
    assert ends([4.0]) == (4.0, 4.0)
    assert ends([4.0, 2.0]) == (4.0, 2.0)
    assert ends([4.0, 3.0, 2.0]) == (4.0, 2.0)
    assert ends([float(i) for i in range(100)]) == (4.5, 94.5)


def test_content_depends_on_the_curve_and_the_checkpoints_not_on_the_time(bench, monkeypatch):
    first = bench.train().manifest
    again = bench.job(name="model/config/v0002", run_dir=bench.job().run_dir.parent / "v0002")
    second = bench.train(again).manifest
    assert second.content == first.content
    assert second.created != first.created or second.stats["seconds"] != first.stats["seconds"]
    bench.plan(losses={"4": 7.61})
    third = bench.train(bench.job(name="model/config/v0003", run_dir=bench.job().run_dir.parent / "v0003")).manifest
    assert third.content != first.content


def test_cut_metrics_drops_later_and_unfinished_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"iteration": i, "loss": 1.0} for i in (1, 2, 3)]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines) + '{"iteration": 4, "lo')
    cut_metrics(path, 2)
    assert path.read_text() == "".join(json.dumps(line) + "\n" for line in lines[:2])
    assert read_metrics(path) == lines[:2]
    cut_metrics(tmp_path / "absent.jsonl", 2)
    assert not (tmp_path / "absent.jsonl").exists()
