"""One damaged or foreign file in the lake hides nothing else; it is named, and the exit status says so."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from pamp_pipelines import cli
from pamp_pipelines.errors import PampError
from pamp_pipelines.evaluation.export_cache import evicted_exports
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.checkpoints import CHECKPOINT, announce_unknown, showable
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.orchestration.versions import recorded_version
from pamp_pipelines.project import Project

GOOD = "scratch/both/v0001/0000004"
KEPT = Callable[[str, float], None]


@pytest.fixture
def lake(own_project: Project) -> Lake:
    return Lake(own_project.lake)


def export(lake: Lake, key: str, *, passed: bool = True) -> Path:
    final = lake.export_dir(CheckpointKey.parse(key))
    with publish(final, kind="hf_export", id=f"export of {key}") as draft:
        (draft.dir / "config.json").write_text("{}")
        draft.checks += [CheckResult(name="coverage", passed=passed)]
    return final


def damages(lake: Lake) -> Iterator[tuple[Path, Path]]:
    """Each kind of damage to a copy of a good export or record: what is damaged, and the file that has to be named."""
    record = lake.kept_record(CheckpointKey.parse(GOOD))

    def copy(step: int) -> Path:
        folder = lake.export_dir(CheckpointKey.parse(GOOD)).with_name(f"{step:07d}")
        return Path(shutil.copytree(export(lake, GOOD), folder))

    (manifest := copy(101) / "manifest.json").write_text("{ not JSON")
    yield manifest, manifest
    (manifest := copy(102) / "manifest.json").write_text('{"name": "of another program"}')
    yield manifest, manifest
    (manifest := copy(103) / "manifest.json").unlink()
    manifest.mkdir()
    yield manifest, manifest
    (config := copy(104) / "config.json").unlink()  # half copied
    yield config.with_name("manifest.json"), config
    manifest = copy(105) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"created": "yesterday"}))
    yield manifest, manifest.parent
    (manifest := copy(106) / "manifest.json").write_text("[" * 100_000)
    yield manifest, manifest
    evicted = lake.export_dir(CheckpointKey.parse(GOOD)).with_name(".0000107.evicted.json")
    evicted.write_text("{")
    yield evicted, evicted
    for name, text in {"4.json": "{}", "0000108.json": "{", "notes.json": "{}"}.items():
        (file := record.with_name(name)).write_text(text)
        yield file, file
    (link := record.with_name("0000109.json")).symlink_to(lake.root / "nowhere")
    yield link, link
    (folder := record.with_name("0000110.json")).mkdir()
    yield folder, folder
    (version := record.parents[2] / "v1/kept").mkdir(parents=True)
    (file := version / "0000004.json").write_text(record.read_text())
    yield file, file


def test_what_is_damaged_is_named_and_the_rest_is_shown(
    own_project: Project, lake: Lake, kept_checkpoint: KEPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    kept_checkpoint(GOOD, 0)
    for step in (101, 102, 103, 104, 105, 106, 107):
        kept_checkpoint(GOOD.replace("0000004", f"{step:07d}"), 0)
    export(lake, GOOD)
    named = [name for _, name in damages(lake)]
    done = CliRunner().invoke(cli.pamp, ["reindex", "--project", str(own_project.root), "--json"])
    answer = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 1, done.output
    told = json.dumps(answer["left_out"])
    assert [str(name) for name in named if str(name) not in told] == []
    assert len(answer["left_out"]) == len(named)
    reported = {(one["asset"], one["partition"]) for one in answer["partitions"]}
    assert reported >= {("checkpoint", GOOD), ("hf_export", GOOD)}
    assert {asset for asset, _ in reported} == {"checkpoint", "hf_export"}
    with open_instance(own_project) as instance:
        assert recorded_version(instance, dg.AssetKey("hf_export"), GOOD) is not None
    text = CliRunner().invoke(cli.pamp, ["reindex", "--project", str(own_project.root)])
    assert text.exit_code == 1
    assert text.stdout.count("left out: ") == len(named)


def lose_files(lake: Lake, key: str) -> None:
    parsed = CheckpointKey.parse(key)
    shutil.rmtree(lake.kept_record(parsed).parents[1] / f"checkpoints/iter_{parsed.step:07d}")


def test_a_checkpoint_whose_files_are_gone_is_shown_as_long_as_something_was_made_of_it(
    lake: Lake, kept_checkpoint: KEPT, instance: dg.DagsterInstance
) -> None:
    exported, scored, useless = (f"scratch/both/v0001/{step:07d}" for step in (4, 8, 12))
    for key in (exported, scored, useless):
        kept_checkpoint(key, 0)
        lose_files(lake, key)
    export(lake, exported)
    with publish(lake.scores_dir(CheckpointKey.parse(scored), "sums"), kind="eval_scores", id="s") as draft:
        (draft.dir / "file").write_text("")
    announced = announce_unknown(instance, lake)
    assert instance.get_dynamic_partitions("checkpoint") == [exported, scored] == list(announced.added)
    assert set(announced.left_out) == {str(lake.kept_record(CheckpointKey.parse(useless)))}
    assert "iter_0000012" in str(announced.left_out)


def test_nothing_is_launched_for_a_checkpoint_that_is_gone(
    own_project: Project, lake: Lake, kept_checkpoint: KEPT
) -> None:
    kept_checkpoint(GOOD, 0)
    lose_files(lake, GOOD)
    events: list[str] = []
    done = materialize(
        own_project,
        "hf_export",
        None,
        all_partitions=True,
        on_event=lambda e: events.append(str(e.data.get("message"))),
    )
    assert done == []
    assert [message for message in events if "iter_0000004" in message]
    with pytest.raises(PampError, match="iter_0000004"):
        materialize(own_project, "hf_export", GOOD)


def test_a_partition_that_was_deleted_comes_back(
    lake: Lake, kept_checkpoint: KEPT, instance: dg.DagsterInstance
) -> None:
    kept_checkpoint(GOOD, 0)
    announce_unknown(instance, lake)
    instance.delete_dynamic_partition("checkpoint", GOOD)
    assert announce_unknown(instance, lake).added == (GOOD,)
    assert instance.get_dynamic_partitions("checkpoint") == [GOOD]
    assert len(instance.fetch_materializations(CHECKPOINT, limit=10).records) == 1


def test_checkpoints_are_registered_in_the_order_in_which_they_were_made(
    lake: Lake, kept_checkpoint: KEPT, instance: dg.DagsterInstance
) -> None:
    late, early = "a/b/v0001/0000004", "c/d/v0001/0000004"
    kept_checkpoint(late, 0)
    kept_checkpoint(early, 0)
    record = lake.kept_record(CheckpointKey.parse(early))
    record.write_text(record.read_text().replace("2026-01-01", "2025-01-01"))
    assert announce_unknown(instance, lake).added == (early, late)


def test_the_database_is_no_damage_of_the_lake(
    lake: Lake, kept_checkpoint: KEPT, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    def away(*_: object) -> None:
        raise OperationalError("select", {}, Exception("gone"))

    kept_checkpoint(GOOD, 0)
    monkeypatch.setattr("pamp_pipelines.orchestration.checkpoints._events", away)
    with pytest.raises(OperationalError):
        announce_unknown(instance, lake)


def test_keys_of_exports_are_those_of_checkpoints_that_can_be_shown(lake: Lake, kept_checkpoint: KEPT) -> None:
    kept_checkpoint(GOOD, 0)
    (lake.kept_record(CheckpointKey.parse(GOOD)).with_name("0000008.json")).write_text("{")
    assert [str(key) for key in showable(lake, {})] == [GOOD]


def test_a_damaged_record_of_an_evicted_export_hides_no_other(lake: Lake) -> None:
    whole, cut = export(lake, GOOD), lake.export_dir(CheckpointKey.parse(GOOD.replace("0000004", "0000008")))
    for path, text in ((whole, (whole / "manifest.json").read_text()), (cut, "{")):
        path.with_name(f".{path.name}.evicted.json").write_text(text)
    shutil.rmtree(whole)
    assert [manifest.id for _, manifest in evicted_exports(lake)] == [f"export of {GOOD}"]
