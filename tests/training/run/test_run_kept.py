"""Records of kept checkpoints."""

import json
import shutil

import pytest

from pamp_pipelines.errors import InputError, MissingInput, VerificationFailed
from pamp_pipelines.lake.artifact import read_manifest
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.training.kept import read_kept, record_saved, recorded_steps

KEY = CheckpointKey("model", "config", 1, 5)


@pytest.fixture
def lake(bench, checkpoint):
    job = bench.job()
    checkpoint(job.checkpoints_dir / "iter_0000005")
    job.metrics_path.write_text(json.dumps({"iteration": 5, "loss": 7.5, "validation_loss": 7.6}) + "\n")
    record_saved(job, 5)
    return Lake(bench.root / "lake")


def test_a_record_is_a_manifest_with_hashes_stats_and_lineage(bench, lake):
    manifest = read_kept(lake, KEY)
    assert manifest.kind == "checkpoint"
    assert manifest.location == str(bench.job().checkpoints_dir / "iter_0000005")
    assert [f.path for f in manifest.files] == [
        "checkpoints/iter_0000005/.metadata",
        "checkpoints/iter_0000005/__0_0.distcp",
        "checkpoints/iter_0000005/metadata.json",
    ]
    assert manifest.stats == {"step": 5, "tokens": 5 * 4 * 8, "loss": 7.5, "validation_loss": 7.6}
    assert manifest.inputs == bench.job().inputs
    assert manifest.declaration == bench.job().declaration
    assert list(lake.kept_checkpoints()) == [KEY]


def test_files_that_are_no_records_are_no_steps(bench, lake):
    kept = bench.job().run_dir / "kept"
    for name in ("5.json", "00000005.json", "notes.json"):
        (kept / name).write_text("{}")
    (kept / "0000009.json").symlink_to("nowhere")
    assert recorded_steps(bench.job().run_dir) == [5]


def test_equal_checkpoints_of_two_versions_have_equal_content_and_other_ids(bench, lake, checkpoint):
    second = bench.job(name="model/config/v0002", run_dir=bench.job().run_dir.parent / "v0002")
    checkpoint(second.checkpoints_dir / "iter_0000005")
    manifest = record_saved(second, 5)
    first = read_kept(lake, KEY)
    assert manifest.content == first.content
    assert manifest.id != first.id


def test_other_weights_and_another_step_have_other_content(bench, lake, checkpoint):
    second = bench.job(name="model/config/v0002", run_dir=bench.job().run_dir.parent / "v0002")
    checkpoint(second.checkpoints_dir / "iter_0000005", value=2)
    checkpoint(second.checkpoints_dir / "iter_0000010")
    contents = {record_saved(second, step).content for step in (5, 10)}
    assert len(contents | {read_kept(lake, KEY).content}) == 3


def test_what_lies_beside_the_tensors_does_not_count_but_is_recorded(bench, lake, checkpoint):
    """Megatron's arguments, absolute paths among them, lie in the same file."""
    second = bench.job(name="model/config/v0002", run_dir=bench.job().run_dir.parent / "v0002")
    directory = second.checkpoints_dir / "iter_0000005"
    checkpoint(directory)
    with (directory / "__0_0.distcp").open("ab") as stream:
        stream.write(b"/another/lake/tensorboard")
    first, manifest = read_kept(lake, KEY), record_saved(second, 5)
    assert manifest.content == first.content
    assert [new == old for new, old in zip(manifest.files, first.files, strict=True)] == [True, False, True]


def test_a_copied_lake_explains_itself(bench, lake):
    moved = bench.root / "elsewhere"
    shutil.copytree(lake.root, moved)
    shutil.rmtree(lake.root)
    assert read_kept(Lake(moved), KEY).location == str(moved / "runs/model/config/v0001/checkpoints/iter_0000005")


def test_a_missing_checkpoint_names_those_that_there_are(lake):
    with pytest.raises(MissingInput, match=r"model\|config.*kept steps: 5"):
        read_kept(lake, CheckpointKey("model", "config", 1, 6))


def test_damage_is_found(bench, lake):
    (bench.job().checkpoints_dir / "iter_0000005/__0_0.distcp").write_bytes(b"short")
    with pytest.raises(VerificationFailed, match=r"5 bytes, the manifest says \d{3,}"):
        read_kept(lake, KEY)


def test_a_record_without_location_is_refused(bench, lake):
    record = lake.kept_record(KEY)
    record.write_text(read_manifest(record).model_copy(update={"location": None}).model_dump_json())
    with pytest.raises(InputError, match="names no location"):
        read_kept(lake, KEY)
