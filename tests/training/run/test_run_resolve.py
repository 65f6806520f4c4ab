"""From declarations and real finished inputs to a training job."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog, load_catalog
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.training_config import Checkpointing, EvaluationCadence, Parallelism, TrainingConfig
from pamp_pipelines.errors import InputError, MissingInput, VerificationFailed
from pamp_pipelines.lake.artifact import read_manifest
from pamp_pipelines.lake.manifest import CheckResult, FileEntry, Manifest
from pamp_pipelines.lake.producer import producer
from pamp_pipelines.lake.publish import utc_now
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.kept import record_import, record_saved
from pamp_pipelines.training.outcome import KIND
from pamp_pipelines.training.overrides import apply_overrides
from pamp_pipelines.training.resolve import export_job, resolved_parameters, train_job
from pamp_pipelines.training.resume import ResumeRefused, require_same_run


@pytest.fixture(scope="module")
def catalog(tiny_project: Project) -> Catalog:
    return load_catalog(tiny_project)


@pytest.fixture(scope="module")
def inputs(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with shards and converted models, and no run."""
    lake = Lake(tmp_path_factory.mktemp("resolve") / "lake")
    for corpus in catalog.corpora:
        scan_corpus(corpus_job(catalog, lake, corpus))
    for model in catalog.models:
        for corpus in catalog.corpora:
            tokenize(tokenize_job(catalog, lake, corpus, model))
        import_hf(import_job(catalog, lake, model))
    return lake


@pytest.fixture
def lake(inputs: Lake, tmp_path: Path) -> Lake:
    """The same inputs, with runs of its own."""
    for folder in inputs.root.iterdir():
        if folder.name != "runs":
            (tmp_path / folder.name).symlink_to(folder)
    return Lake(tmp_path)


def changed(catalog: Catalog, name: str, **changes) -> Catalog:
    config = catalog.training_configs[name].model_copy(update=changes)
    return dataclasses.replace(catalog, training_configs={**catalog.training_configs, name: config})


def test_a_job_of_an_import_names_weights_shards_and_lineage(catalog, lake):
    job = train_job(catalog, lake, "imported", "both")
    assert job.name == "imported/both/v0001"
    assert job.run_dir == lake.root / "runs/imported/both/v0001"
    assert job.pretrained_checkpoint is not None
    assert (job.pretrained_checkpoint / "latest_checkpointed_iteration.txt").read_text() == "release"
    assert [(shards.prefix.name, shards.weight) for shards in job.train] == [("train", 0.25), ("train", 0.75)]
    assert [shards.corpus for shards in job.heldout] == ["plays", "sonnets"]
    for shards in (*job.train, *job.heldout):
        assert shards.prefix.with_suffix(".idx").is_file()
    assert job.vocab_size == 2048
    assert job.hf_config["hidden_size"] == 32
    assert (job.iterations, job.cadence, job.world_size) == (8, (4, 8), 1)
    assert [ref.kind for ref in job.inputs] == ["tokenized_shards", "tokenized_shards", "megatron_checkpoint"]
    assert set(job.declaration) == {"model", "training_config", "resolved", "remainder_tokens"}
    assert job.profile == catalog.profile("local")


def test_a_model_from_scratch_has_an_architecture_and_no_weights(catalog, lake):
    job = train_job(catalog, lake, "scratch", "both")
    assert job.pretrained_checkpoint is None
    assert job.hf_config["model_type"] == "llama"


def test_missing_inputs_are_named_as_the_ui_names_them(catalog, lake, tmp_path):
    with pytest.raises(MissingInput) as error:
        train_job(catalog, Lake(tmp_path / "empty"), "imported", "both")
    assert (error.value.asset, error.value.partition) == ("megatron_checkpoint", "imported")
    (lake.root / "shards").unlink()
    with pytest.raises(MissingInput) as error:
        train_job(catalog, lake, "imported", "both")
    assert (error.value.asset, error.value.partition) == ("tokenized_shards", "plays|imported")
    (lake.root / "corpora").unlink()
    with pytest.raises(MissingInput) as error:
        train_job(catalog, lake, "imported", "both")
    assert (error.value.asset, error.value.partition) == ("raw_corpus", "plays")
    assert not (lake.root / "runs").exists()  # nothing was claimed


def test_an_input_that_failed_a_blocking_check_is_refused(catalog, inputs, tmp_path):
    shutil.copytree(inputs.root, tmp_path / "lake", symlinks=True)
    job = import_job(catalog, Lake(tmp_path / "lake"), "imported")
    manifest = read_manifest(job.output / "manifest.json")
    bad = CheckResult(name="coverage", passed=False, description="one tensor is left over")
    (job.output / "manifest.json").write_text(manifest.model_copy(update={"checks": (bad,)}).model_dump_json())
    with pytest.raises(VerificationFailed, match="coverage: one tensor is left over"):
        train_job(catalog, Lake(tmp_path / "lake"), "imported", "both")


def test_a_pair_that_is_not_declared_names_the_file(catalog, lake):
    with pytest.raises(InputError, match=r"sonnets-only\.yaml: models: 'imported' is not listed"):
        train_job(catalog, lake, "imported", "sonnets-only")


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"description": "other words", "owners": ("team:x",), "cron": None, "profile": "local"}, True),
        ({"micro_batch_size": 1, "recompute": "full", "log_interval": 2}, True),
        ({"parallelism": Parallelism(distributed_optimizer=False)}, True),
        ({"checkpoint": Checkpointing(interval=2, keep_last=5)}, True),
        ({"iterations": None, "tokens": 8 * 4 * 64}, True),  # the same length in the other unit
        ({"corpora": {"sonnets": 6.0, "plays": 2.0}}, True),  # the same shares
        ({"corpora": {"sonnets": 1.0, "plays": 1.0}}, False),
        ({"corpora": {"sonnets": 1.0}}, False),
        ({"iterations": 9}, False),
        ({"seed": 2}, False),
        ({"data_seed": 2}, False),
        ({"precision": "bf16"}, False),
        ({"sequence_length": 32}, False),
        ({"global_batch_size": 8}, False),
        ({"evaluation": EvaluationCadence(every=8)}, False),
        ({"megatron_args": {"init-method-std": 0.01}}, False),
        ({"max_epochs": {"plays": 1e6}}, True),  # nothing is exhausted
        ({"max_epochs": {"plays": 1e-3}, "on_exhausted": "repeat"}, True),
        ({"document_attention": "masked"}, False),
    ],
)
def test_identity_is_what_decides_the_weights(catalog, lake, changes, same):
    first = train_job(catalog, lake, "scratch", "both", claim=False)
    second = train_job(changed(catalog, "both", **changes), lake, "scratch", "both", claim=False)
    assert (first.id == second.id) is same


def test_a_run_ends_where_a_corpus_is_exhausted_or_does_not_begin(catalog, lake):
    whole = train_job(catalog, lake, "scratch", "both", claim=False)
    size = whole.tokens_per_iteration
    plays = lake_tokens(catalog, lake, "plays")
    half = {"max_epochs": {"plays": 4.5 * size * 0.25 / plays}}
    with pytest.raises(InputError, match=r"both\.yaml: max_epochs: 8 iterations .* 4 iterations stay within"):
        train_job(changed(catalog, "both", **half), lake, "scratch", "both", claim=False)
    shorter = train_job(changed(catalog, "both", **half, on_exhausted="stop"), lake, "scratch", "both", claim=False)
    assert (shorter.iterations, shorter.decay_iterations, shorter.cadence) == (4, 4, (4,))
    assert shorter.id != whole.id
    assert shorter.declaration["training_config"]["both"]["iterations"] == 8
    assert shorter.declaration["resolved"]["iterations"] == 4
    assert [shards.corpus for shards in shorter.train] == ["plays", "sonnets"]


@pytest.fixture
def finish():
    """Writes the manifest of a job, as at its end."""

    def write(job, *names):
        sizes = {name: (job.run_dir / name).stat().st_size for name in names}
        files = tuple(FileEntry(path=name, bytes=size, sha256="0" * 64) for name, size in sizes.items())
        manifest = Manifest(
            kind=KIND, id=job.id, content="0" * 64, created=utc_now(), inputs=job.inputs, declaration=job.declaration,
            producer=producer(), files=files, stats={}, checks=(),
        )  # fmt: skip
        (job.run_dir / "manifest.json").write_text(manifest.model_dump_json())

    return write


def test_a_finished_run_is_gone_on_with_up_to_its_horizon(catalog, lake, finish):
    def job(length, horizon=None, **options):
        declared = changed(catalog, "both", iterations=length, horizon=horizon, evaluation=EvaluationCadence(every=4))
        return train_job(declared, lake, "scratch", "both", **options)

    first = job(4, 16)
    assert (first.extends, first.horizon, first.decay_iterations, first.scheduled_samples) == (None, 16, 16, 64)
    finish(first)
    longer = job(8, 16)
    assert longer.extends == first.run_dir
    assert longer.run_dir != first.run_dir
    finish(longer)
    assert job(12, 16).extends == longer.run_dir
    assert job(12, 16, fresh=True).extends is None
    with pytest.raises(InputError, match="the order of its data was made for a horizon of 16 steps"):
        job(12, 20)
    with pytest.raises(InputError, match=f"{longer.run_dir} is this run, finished at step 8 of the 12 .* --fresh"):
        job(12)
    assert job(12, claim=False).extends is job(12, fresh=True).extends is None
    assert job(12).extends is None, "one that was begun anew goes on by itself"
    with pytest.raises(ValueError, match="horizon: 8 is less than the 12 of the run"):
        TrainingConfig.model_validate(catalog.training_configs["both"].model_dump() | {"iterations": 12, "horizon": 8})


def phased(catalog, lake, schedule=None):
    schedule = schedule or {"decay_style": "constant"}
    optimizer = catalog.training_configs["both"].optimizer.model_copy(update=schedule)

    def job(length, **options):
        cadence = {"checkpoint": Checkpointing(interval=2), "evaluation": EvaluationCadence(every=2)}
        declared = changed(catalog, "both", iterations=length, optimizer=optimizer, **cadence)
        return train_job(declared, lake, "scratch", "both", **options)

    return job


@pytest.mark.parametrize("schedule", [{"decay_style": "constant"}, {"decay_style": "WSD", "decay_iterations": 12}])
def test_a_finished_run_without_a_horizon_goes_on_in_a_new_data_phase(catalog, lake, finish, checkpoint, schedule):
    job = phased(catalog, lake, schedule)
    first = job(4)
    assert (first.phases, first.extends) == ((), None)
    finish(first)
    second = job(8, claim=False)
    assert second.extends == first.run_dir
    assert [(p.first_sample, p.samples) for p in second.phases] == [(0, 16), (16, 16)]
    assert second.phases[0].seed == second.data_seed != second.phases[1].seed
    assert second.decay_iterations == first.decay_iterations
    assert second.declaration["resolved"]["phases"] == [list(p.model_dump().values()) for p in second.phases]
    assert job(8).id == second.id != job(8, claim=False, fresh=True).id
    finish(job(8))
    third = job(10)
    assert third.extends == second.run_dir
    assert third.phases[:2] == second.phases
    assert len({phase.seed for phase in third.phases}) == 3
    assert job(8).run_dir == second.run_dir, "found again"
    manifest = first.run_dir / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text("{")
    assert job(8).run_dir == second.run_dir, "what it went on with does not matter any more"
    manifest.write_text(whole)
    (second.run_dir / "job.json").write_text(second.model_dump_json())
    checkpoint(second.checkpoints_dir / "iter_0000004")
    with pytest.raises(ResumeRefused, match="data phases"):
        require_same_run(second.model_copy(update={"phases": ()}))


def test_a_run_that_was_begun_keeps_its_data_phases(catalog, lake, finish):
    job = phased(catalog, lake)
    finish(job(4))
    begun = job(8)
    finish(job(6))
    assert job(8).run_dir == begun.run_dir
    assert [p.first_sample for p in job(10).phases] == [0, 16, 24], "a new one goes on with the longest"
    anew = job(10, fresh=True)
    assert (anew.phases, job(10).run_dir) == ((), anew.run_dir)


def test_a_decay_that_has_ended_begins_no_data_phase(catalog, lake, finish):
    for number, schedule in enumerate(
        ({"decay_style": "WSD"}, {"decay_style": "cosine"}, {"decay_style": "inverse-square-root"})
    ):
        job = phased(catalog, lake, schedule)
        finish(job(4))
        with pytest.raises(InputError, match=rf"v000{number + 1} is this run, .*end of its decay .* at step 4\. Train"):
            job(8)


def test_a_trial_is_not_gone_on_with(catalog, lake, finish):
    job = phased(catalog, lake)
    finish(job(8, overrides=["iterations=4"]))
    assert (job(8).phases, job(8).extends) == ((), None)


def test_data_phases_lie_one_after_the_other(catalog, lake, finish):
    job = phased(catalog, lake)
    finish(job(4))
    longer = job(8, claim=False)
    gap = [longer.phases[0], longer.phases[1].model_copy(update={"first_sample": 20})]
    for phases in (gap, longer.phases[:1]):
        with pytest.raises(ValueError, match="are not one after the other up to sample 32"):
            TrainJob.model_validate({**longer.model_dump(), "phases": phases})


def test_damage_of_another_version_is_named_and_passed_over(catalog, lake, finish):
    def job(length, on_event=lambda event: None):
        declared = changed(catalog, "both", iterations=length, horizon=16)
        return train_job(declared, lake, "scratch", "both", on_event=on_event)

    first, events = job(4), []
    finish(first)
    second = job(6)
    (second.run_dir / "manifest.json").write_text("{")
    longer = job(8, events.append)
    assert [str(second.run_dir / "manifest.json") in event.data["message"] for event in events] == [True]
    assert longer.declaration["follows"]["version"] == first.run_dir.name
    assert longer.extends == first.run_dir
    assert job(12).declaration["follows"]["version"] == first.run_dir.name


def test_a_damaged_run_is_not_gone_on_with(catalog, lake, finish):
    declared = changed(catalog, "both", iterations=4, horizon=16)
    first = train_job(declared, lake, "scratch", "both")
    (first.run_dir / "metrics.jsonl").write_text("{}")
    finish(first, "metrics.jsonl")
    (first.run_dir / "metrics.jsonl").unlink()
    declared = changed(catalog, "both", iterations=8, horizon=16)
    with pytest.raises(VerificationFailed, match=r"(?s)metrics.jsonl: missing\n.*v0001: the run to go on .*--fresh"):
        train_job(declared, lake, "scratch", "both")
    assert train_job(declared, lake, "scratch", "both", fresh=True).extends is None


@pytest.mark.parametrize(
    ("schedule", "refusal"),
    [
        ({"decay_style": "cosine", "decay_iterations": 4}, r"the end of its decay \(cosine\) at step 4"),
        ({"decay_style": "WSD", "decay_iterations": 3}, r"the end of its decay \(WSD\) at step 3"),
        ({"decay_style": "cosine"}, None),
        ({"decay_style": "WSD"}, None),
        ({"decay_style": "constant", "decay_iterations": 4}, None),
    ],
)
def test_a_schedule_that_is_over_is_not_gone_on_with(catalog, lake, finish, schedule, refusal):
    def job(length):
        optimizer = catalog.training_configs["both"].optimizer.model_copy(update=schedule)
        declared = changed(catalog, "both", iterations=length, horizon=16, optimizer=optimizer)
        return train_job(declared, lake, "scratch", "both")

    first = job(4)
    finish(first)
    if refusal is None:
        assert job(8).extends == first.run_dir
        return
    with pytest.raises(InputError, match=refusal):
        job(8)


def test_a_trial_does_not_stand_in_the_way_of_the_run(catalog, lake, finish):
    trial = train_job(catalog, lake, "scratch", "both", overrides=["iterations=4"])
    finish(trial)
    assert trial.declaration["overrides"] == ["iterations=4"]
    whole = train_job(catalog, lake, "scratch", "both")
    assert (whole.iterations, whole.extends) == (8, None)
    assert "overrides" not in whole.declaration
    finish(train_job(changed(catalog, "both", iterations=5), lake, "scratch", "both"))
    with pytest.raises(InputError, match="finished at step 5 of the 9"):
        train_job(changed(catalog, "both", iterations=9), lake, "scratch", "both")


def lake_tokens(catalog, lake, corpus):
    """Training tokens of a corpus for the model from scratch."""
    job = tokenize_job(catalog, lake, corpus, "scratch")
    return read_manifest(job.output / "manifest.json").stats["train"]["tokens"]


def test_groups_of_experts_are_part_of_the_identity(catalog):
    """Optimizer state does not move between them, so such a change cannot be resumed."""
    config = catalog.training_configs["both"]
    two = config.model_copy(update={"parallelism": Parallelism(expert=2)})
    assert resolved_parameters(config) != resolved_parameters(two)


def test_identity_is_the_content_of_the_inputs_not_the_names(catalog, lake):
    assert (
        train_job(catalog, lake, "scratch", "both", claim=False).id
        != train_job(catalog, lake, "imported", "both", claim=False).id
    )


def test_versions_are_resumed_or_begun(catalog, lake):
    first = train_job(catalog, lake, "scratch", "both")
    assert train_job(catalog, lake, "scratch", "both").run_dir == first.run_dir
    assert train_job(catalog, lake, "scratch", "both", fresh=True).name == "scratch/both/v0002"
    assert train_job(catalog, lake, "scratch", "both", overrides=["seed=7"]).name == "scratch/both/v0003"
    assert train_job(catalog, lake, "scratch", "both", claim=False, fresh=True).name == "scratch/both/v0004"
    assert lake.versions("scratch", "both") == [1, 2, 3]


def test_a_profile_gives_the_processes_and_must_fit(catalog, lake):
    profiles = {
        **catalog.profiles,
        "two": ComputeProfile(processes_per_node=2),
        "three": ComputeProfile(processes_per_node=3),
    }
    catalog = dataclasses.replace(catalog, profiles=profiles)
    job = train_job(catalog, lake, "scratch", "both", profile="two")
    assert (job.world_size, job.data_parallel) == (2, 2)
    with pytest.raises(InputError, match=r"both\.yaml:\d+: global_batch_size: 4 .*profile 'three'"):
        train_job(catalog, lake, "scratch", "both", profile="three")
    with pytest.raises(InputError, match=r"no profile 'tow' is declared.*two"):
        train_job(catalog, lake, "scratch", "both", profile="tow")


def test_a_profile_may_lay_a_run_out_without_making_it_another(catalog, lake):
    laid = ComputeProfile(
        processes_per_node=4, parallelism=Parallelism(tensor=2, sequence_parallel=True), micro_batch_size=1
    )
    catalog = dataclasses.replace(catalog, profiles={**catalog.profiles, "laid": laid})
    plain = train_job(catalog, lake, "scratch", "both", claim=False)
    job = train_job(catalog, lake, "scratch", "both", profile="laid", claim=False)
    assert (job.parallelism.tensor, job.micro_batch_size, job.data_parallel) == (2, 1, 2)
    assert (plain.parallelism.tensor, plain.micro_batch_size) == (1, 2)
    assert (job.id, job.run_dir, job.declaration) == (plain.id, plain.run_dir, plain.declaration)
    bigger = changed(catalog, "both", global_batch_size=8)
    assert train_job(bigger, lake, "scratch", "both", profile="laid", claim=False).id != plain.id


def test_an_override_that_the_profile_would_undo_is_refused(catalog, lake):
    profiles = {**catalog.profiles, "laid": ComputeProfile(parallelism=Parallelism())}
    catalog = dataclasses.replace(catalog, profiles=profiles)
    with pytest.raises(
        InputError, match=r"--set parallelism\.tensor=2 has no effect: .*resources/laid\.yaml sets parallel"
    ):
        train_job(catalog, lake, "scratch", "both", profile="laid", overrides=["parallelism.tensor=2"])
    train_job(catalog, lake, "scratch", "both", profile="laid", overrides=["micro_batch_size=1"], claim=False)


def test_overrides(catalog):
    config = catalog.training_configs["both"]

    def over(*overrides):
        return apply_overrides(config, overrides, "both.yaml")

    assert over() is config
    assert over("optimizer.lr=1e-4", "precision=bf16").optimizer.lr == 1e-4
    assert over("parallelism.tensor=2").parallelism.tensor == 2
    assert (over("tokens=1024").iterations, over("tokens=1024").tokens) == (None, 1024)
    assert over('megatron_args={"init-method-std": 0.01}').megatron_args == {"init-method-std": 0.01}
    assert over('models=["scratch"]').models == over("models=[scratch]").models == ("scratch",)
    for bad, message in {
        "optimizer.lr": "expected key=value",
        "optimizer.lrr=1": r"both\.yaml with --set optimizer\.lrr=1: optimizer\.lrr: unknown field. Did you mean 'lr'",
        "sequence_length=long": "sequence_length: Input should be a valid integer",
        "seed.x=1": "'seed' has no fields",
        "models=[": "models=.*is not YAML",
        "iterations=010": "`010` is octal in YAML 1.1 and decimal in YAML 1.2: drop the leading zeros",
        "retrain_on_new_data=yes": "write true or false",
        'corpora={"sonnets": 1, "sonnets": 2}': "sonnets: duplicate key, first given on line 1: keep one",
        "corpora={sonnets: 1, plays: 010}": "plays: `010` is octal",
        f"corpora={'[' * 5000}{']' * 5000}": "nested too deeply",
        f"corpora={'[' * 100}{']' * 100}": "nested too deeply",
        f"seed={'9' * 5000}": "has too many digits",
        "cron=0 0 30 2 *": "cron: .*never comes",
        "megatron_args={hiden-dropout: 0.1}": "has no argument `hiden-dropout`",
    }.items():
        with pytest.raises(InputError, match=message):
            over(bad)


def test_what_needs_a_gpu_is_refused_before_a_version_is_claimed(catalog, lake, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for override, message in {
        "offload.optimizer=0.5": r"both\.yaml: offload: offload needs a CUDA device",
        "precision=fp8_delayed": "needs a CUDA device; without one use bf16",
    }.items():
        with pytest.raises(InputError, match=message):
            train_job(catalog, lake, "scratch", "both", overrides=[override])
        # what only looks asks nothing of this machine
        train_job(catalog, lake, "scratch", "both", overrides=[override], claim=False)
    assert lake.versions("scratch", "both") == []


def test_export_of_a_kept_checkpoint(catalog, lake, checkpoint):
    job = train_job(catalog, lake, "imported", "both")
    assert job.pretrained_checkpoint is not None
    checkpoint(job.checkpoints_dir / "iter_0000004")
    record_saved(job, 4)
    record_import(job, job.pretrained_checkpoint / "release", job.inputs[-1])
    trained = export_job(catalog, lake, CheckpointKey("imported", "both", 1, 4))
    assert Path(os.path.normpath(trained.checkpoint)) == job.checkpoints_dir / "iter_0000004"
    assert trained.template.samefile(job.template_dir)
    assert [ref.kind for ref in trained.inputs] == ["checkpoint"]
    before = export_job(catalog, lake, CheckpointKey("imported", "both", 1, 0))
    assert before.checkpoint.samefile(job.pretrained_checkpoint / "release")
    with pytest.raises(MissingInput):
        export_job(catalog, lake, CheckpointKey("imported", "both", 1, 5))
    (job.checkpoints_dir / "iter_0000004/__0_0.distcp").unlink()
    with pytest.raises(VerificationFailed, match="missing"):
        export_job(catalog, lake, CheckpointKey("imported", "both", 1, 4))
