"""Materialising without a daemon, on an instance of the test's own; training and scoring are in tests/e2e."""

from pathlib import Path

import dagster as dg
import pytest

from pamp_pipelines.errors import InputError, MissingInput
from pamp_pipelines.lake.events import Event
from pamp_pipelines.orchestration.instance import ensure_home, open_instance
from pamp_pipelines.orchestration.materialize import MaterializedPartition, materialize
from pamp_pipelines.project import Project


def ran(done: list[MaterializedPartition]) -> list[str | None]:
    return [p.partition for p in done if p.run_id is not None]


def runs(project: Project) -> list[dg.DagsterRun]:
    with open_instance(project) as instance:
        return list(instance.get_runs())


@pytest.mark.slow
def test_every_partition_once_then_only_what_changed(own_project: Project) -> None:
    assert ran(materialize(own_project, "raw_corpus", None, all_partitions=True)) == ["plays", "sonnets"]
    keys = ["plays|imported", "plays|scratch", "sonnets|imported", "sonnets|scratch"]
    assert ran(materialize(own_project, "tokenized_shards", None, all_partitions=True)) == keys
    assert ran(materialize(own_project, "raw_corpus", None, all_partitions=True)) == []
    assert ran(materialize(own_project, "tokenized_shards", None, all_partitions=True)) == []

    text = own_project.data / "corpora/sonnets.jsonl"
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:50]))
    assert ran(materialize(own_project, "raw_corpus", None, all_partitions=True)) == ["sonnets"]
    assert ran(materialize(own_project, "tokenized_shards", None, all_partitions=True)) == keys[2:]
    assert {run.status for run in runs(own_project)} == {dg.DagsterRunStatus.SUCCESS}


def test_an_up_to_date_partition_has_the_same_version_and_place_as_its_run(own_project: Project) -> None:
    (first,) = materialize(own_project, "raw_corpus", "plays")
    again = materialize(own_project, "raw_corpus", None, all_partitions=True)[0]
    assert (again.asset, again.partition) == ("raw_corpus", "plays")
    assert (again.data_version, again.path) == (first.data_version, first.path)
    assert again.run_id is None


def test_an_edit_that_leaves_the_artifact_as_it_is_is_no_longer_shown_as_stale_afterwards(own_project: Project) -> None:
    materialize(own_project, "raw_corpus", None, all_partitions=True)
    plays = own_project.assets / "corpora/plays.yaml"
    plays.write_text(plays.read_text().replace("fraction: 0.3", "fraction: 0.4"))
    assert ran(materialize(own_project, "raw_corpus", None, all_partitions=True)) == ["plays"]
    assert ran(materialize(own_project, "raw_corpus", None, all_partitions=True)) == []


def test_a_lake_that_takes_no_record_does_not_fail_the_run(own_project: Project) -> None:
    own_project.lake.mkdir(parents=True)
    (own_project.lake / "recorded").write_text("in the way")
    (made,) = materialize(own_project, "raw_corpus", "plays")
    with open_instance(own_project) as instance:
        logs = [entry.user_message for entry in instance.all_logs(str(made.run_id))]
    assert [text for text in logs if "a lost Dagster home would not show this" in text]


def test_a_partition_asked_for_by_name_always_runs(own_project: Project) -> None:
    first, second = (materialize(own_project, "raw_corpus", "plays")[0] for _ in range(2))
    assert first.run_id != second.run_id
    assert first.data_version == second.data_version


def test_a_lost_home_is_filled_from_the_lake_without_making_anything_again(own_project: Project) -> None:
    (made,) = materialize(own_project, "raw_corpus", "plays")
    home = own_project.dagster_home
    home.rename(home.with_name("lost"))
    events: list[Event] = []
    found = materialize(own_project, "raw_corpus", None, all_partitions=True, on_event=events.append)[0]
    assert found.run_id is not None
    assert found.data_version == made.data_version
    stages = [e.data.get("corpus") for e in events if e.kind == "started" and "stage" in e.data]
    assert stages == ["sonnets"]


def test_the_run_shows_what_the_artifact_holds(own_project: Project) -> None:
    (made,) = materialize(own_project, "raw_corpus", "sonnets")
    with open_instance(own_project) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("raw_corpus"))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    assert metadata["dagster/uri"].value == str(made.path)
    assert metadata["dagster/row_count"].value == 60
    assert len(metadata["samples"].records) == 5  # type: ignore[attr-defined]
    assert str(metadata["lengths"].value).startswith("![lengths.png](data:image/png;base64,")


def test_what_is_missing_is_named(own_project: Project) -> None:
    with pytest.raises(MissingInput) as missing:
        materialize(own_project, "tokenized_shards", "plays|scratch")
    assert (missing.value.asset, missing.value.partition) == ("raw_corpus", "plays")
    assert [run.status for run in runs(own_project)] == [dg.DagsterRunStatus.FAILURE]


@pytest.mark.parametrize(
    ("asset", "partition", "message"),
    [
        ("raw_corpora", "plays", "Did you mean 'raw_corpus'"),
        ("checkpoint", None, "reported by training runs"),
        ("raw_corpus", "play", "no partition 'play'"),
        ("raw_corpus", None, "give --partition KEY or --all"),
        ("leaderboard", "plays", "has no partitions"),
        ("pretrained_checkpoint", "imported|sonnets-only", "sonnets-only.yaml"),
        ("eval_scores/perplexty", None, "perplexity"),
    ],
)
def test_wrong_names_are_refused_before_anything_runs(
    own_project: Project, asset: str, partition: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        materialize(own_project, asset, partition)
    assert not own_project.dagster_home.exists()


def test_an_undeclared_pair_fails_at_once_and_names_the_file(own_project: Project) -> None:
    """From the UI, where the grid is full, the run itself has to refuse."""
    from pamp_pipelines.orchestration.build import build_definitions

    job = build_definitions(own_project).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            asset_selection=[dg.AssetKey("pretrained_checkpoint")],
            partition_key="imported|sonnets-only",
            instance=instance,
            raise_on_error=False,
        )
    assert not result.success
    (failure,) = result.get_step_failure_events()
    assert "sonnets-only.yaml" in str(failure.step_failure_data.user_failure_data)
    assert not [e for e in result.all_events if e.event_type_value == "STEP_UP_FOR_RETRY"]


def test_a_settings_file_of_the_users_is_kept(own_project: Project) -> None:
    home = ensure_home(own_project)
    text = (home / "dagster.yaml").read_text()
    assert "free_slots_after_run_end_seconds" in text
    (home / "dagster.yaml").write_text(text.replace("default_limit: 1", "default_limit: 2"))
    ensure_home(own_project)
    assert "default_limit: 2" in (home / "dagster.yaml").read_text()
    with open_instance(own_project) as instance:
        assert instance.global_op_concurrency_default_limit == 2
    assert Path(instance.root_directory) == home
