"""The two kinds of instance: what is written, what is refused, and that nothing reported is lost."""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import dagster as dg
import pytest
import yaml

from pamp_pipelines.errors import InputError
from pamp_pipelines.orchestration.instance import TEMPLATES, ensure_home, open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.project import Project
from tests.orchestration import observing_run
from tests.postgres_server import PostgresServer

VARIABLES = ["DAGSTER_PG_DB", "DAGSTER_PG_HOST", "DAGSTER_PG_PASSWORD", "DAGSTER_PG_PORT", "DAGSTER_PG_USERNAME"]
RUNS, OBSERVATIONS = 4, 40
"""`benchmarks/dagster_team.py` has 200 each."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("DAGSTER_HOME", "PAMP_INSTANCE", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return Project(tmp_path)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_monitors_runs_and_forgets_ticks(template: str) -> None:
    file = files("pamp_pipelines.orchestration") / "instances" / f"{template}.yaml"
    settings = yaml.safe_load(file.read_text())
    assert settings["telemetry"]["enabled"] is settings["nux"]["enabled"] is False
    assert settings["run_monitoring"]["enabled"] is True
    assert settings["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
    assert settings["concurrency"]["pools"]["default_limit"] == 1
    assert settings["concurrency"]["runs"]["max_concurrent_runs"] > 1
    assert settings["retention"]["sensor"]["purge_after_days"]["skipped"] == 1
    assert ("storage" in settings) is (template == "team")


def test_a_team_needs_credentials_in_the_environment(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAMP_INSTANCE", "team")
    monkeypatch.setenv("DAGSTER_PG_HOST", "db.example.org")
    with pytest.raises(
        InputError, match="set DAGSTER_PG_DB, DAGSTER_PG_PASSWORD, DAGSTER_PG_PORT, DAGSTER_PG_USERNAME"
    ):
        ensure_home(project)


def test_settings_that_say_otherwise_are_not_passed_over(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_home(project)
    monkeypatch.setenv("PAMP_INSTANCE", "team")
    with pytest.raises(InputError, match=r"dagster\.yaml: PAMP_INSTANCE=team asks for PostgreSQL"):
        ensure_home(project)
    monkeypatch.setenv("PAMP_INSTANCE", "laptop")
    ensure_home(project)


def test_an_unknown_template_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAMP_INSTANCE", "tema")
    with pytest.raises(InputError, match="PAMP_INSTANCE=tema: there is no such template; use one of laptop, team"):
        ensure_home(project)
    assert not project.dagster_home.exists()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("storage: [", "cannot be read: while parsing"),
        ("a: \xff", "cannot be read: 'utf-8' codec"),
        ("- a", r"holds \['a'\]; write settings"),
        ("storage: postgres", "`storage` is 'postgres'; write"),
        ("storage: {nonsense: {}}", "unexpected config entry"),
        ("nonsense: 1", 'Received unexpected config entry "nonsense" at the root.$'),
        ("run_monitoring: {enabled: maybe}", 'Invalid scalar at path root:run_monitoring:enabled. Value "maybe"'),
        (
            "event_log_storage: {module: nowhere, class: X, config: {}}",
            "Dagster cannot use it: .* import module nowhere",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_named_once(project: Project, written: str, said: str) -> None:
    settings = project.dagster_home / "dagster.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_bytes(written.encode("latin-1"))
    with pytest.raises(InputError, match=said) as refused, open_instance(project):
        pass
    assert str(refused.value).startswith(f"{settings}: ")
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("name", ["history/runs.db", "history/runs/index.db", "schedules/schedules.db"])
def test_a_damaged_database_is_named_with_the_way_out(project: Project, name: str) -> None:
    with open_instance(project):
        file = project.dagster_home / name
    file.write_bytes(b"x" * 4096)
    with (
        pytest.raises(InputError, match=r"is damaged .*and run `pamp reindex`") as refused,
        open_instance(project) as instance,
    ):
        instance.event_log_storage.get_pool_limits()
    assert str(refused.value).startswith(f"{file}: ")


def test_a_database_with_damaged_pages_is_told(project: Project) -> None:
    with open_instance(project):
        file = project.dagster_home / "history/runs.db"
    written = file.read_bytes()
    file.write_bytes(written[:100] + b"x" * (len(written) - 100))
    with pytest.raises(InputError, match=r"is damaged .*malformed"), open_instance(project) as instance:
        instance.get_runs()


@pytest.mark.slow
def test_four_runs_at_once_lose_no_event_in_sqlite(project: Project) -> None:
    """The home is new: they also create its databases at once."""
    observe_at_once(project)


@pytest.mark.system
def test_four_runs_at_once_lose_no_event_in_postgres(project: Project, postgres: PostgresServer) -> None:
    observe_at_once(project)


@pytest.mark.system
def test_a_team_shares_one_history(own_project: Project, postgres: PostgresServer) -> None:
    """Two homes, as on two machines, see each other's runs; the settings hold no password."""
    (made,) = materialize(own_project, "raw_corpus", "plays")
    home = own_project.dagster_home
    assert postgres.password not in "".join(f.read_text() for f in home.rglob("*.yaml"))
    home.rename(home.with_name("on_another_machine"))
    found = materialize(own_project, "raw_corpus", None, all_partitions=True)
    assert [p.run_id is None for p in found if p.partition == "plays"] == [True]
    with open_instance(own_project) as instance:
        assert type(instance.event_log_storage).__name__ == "PostgresEventLogStorage"
        run = instance.get_run_by_id(str(made.run_id))
        assert run is not None
        assert run.status is dg.DagsterRunStatus.SUCCESS
        assert not list(home.rglob("*.db"))


def test_opening_an_instance_names_its_home_only_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two projects in one process: the second must not get the history of the first."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for name in ("one", "two"):
        project = Project(tmp_path / name)
        with open_instance(project) as instance:
            assert instance.root_directory == os.environ["DAGSTER_HOME"] == str(project.data / "dagster_home")
        assert "DAGSTER_HOME" not in os.environ
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "given"))
    with open_instance(Project(tmp_path / "one")) as instance:
        assert instance.root_directory == str(tmp_path / "given")
    assert os.environ["DAGSTER_HOME"] == str(tmp_path / "given")


@pytest.mark.system
def test_a_database_that_refuses_is_named(
    project: Project, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "wrong")
    with (
        pytest.raises(InputError, match=r"dagster\.yaml: the database does not answer: .*password") as refused,
        open_instance(project),
    ):
        pass
    assert "wrong" not in str(refused.value)


def observe_at_once(project: Project) -> None:
    command = [sys.executable, "-W", "ignore", observing_run.__file__, str(project.root)]
    processes = [
        subprocess.Popen(
            [*command, f"run-{n}", str(OBSERVATIONS)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for n in range(RUNS)
    ]
    errors = [process.communicate()[1][-6000:] for process in processes]
    assert [process.returncode for process in processes] == [0] * RUNS, "\n".join(errors)
    with open_instance(project) as instance:
        for run in range(RUNS):
            records = instance.fetch_observations(
                dg.AssetRecordsFilter(observing_run.ASSET, asset_partitions=[f"run-{run}"]), limit=2 * OBSERVATIONS
            ).records
            steps = [record.asset_observation.metadata["step"].value for record in records if record.asset_observation]
            assert sorted(steps) == list(range(OBSERVATIONS))
