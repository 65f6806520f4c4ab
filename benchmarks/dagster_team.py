"""A shared instance under load: ``python benchmarks/dagster_team.py sqlite|postgres``.

On an instance of its own, in SQLite or in a PostgreSQL of its own (the distribution's programs, a temporary folder):

* 20 models and 25 training configs; a backfill over all 500 pairs, left in the queue of Dagster's daemon;
* checkpoints with exports and scores, reported as rows;
* the time to load the definitions, and every GraphQL query that the UI sends for its pages, backfill page included
  (both as in `dagster_scale.py`);
* four runs at once with 200 observations each, and how many of them are there afterwards.

Prints one JSON object; exits with 1 when a limit is passed or an event is missing.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from sqlalchemy import text

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import dagster_scale
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.declarations import observe
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.project import Project
from tests.orchestration import observing_run
from tests.postgres_server import PostgresServer

MODELS, CONFIGS, EVALUATIONS = 20, 25, 3
RUNS, OBSERVATIONS = 4, 200
FIRST_S, ENQUEUE_S = 600.0, 60.0
_VERSION = {"dagster/data_version": "content"}
_COLUMNS = "event, run_id, dagster_event_type, timestamp, step_key, asset_key"
TRAINING = dg.AssetKey("pretrained_checkpoint")

BACKFILL = """
mutation Backfill($names: [String!]!) {
  launchPartitionBackfill(
    backfillParams: {assetSelection: [{path: ["pretrained_checkpoint"]}], partitionNames: $names}
  ) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""


def fill(project: Project, checkpoints: int) -> list[str]:
    """Report checkpoints with exports and scores; returns the keys of all trainings."""
    catalog = ProjectResource(root=str(project.root)).catalog
    runs = [f"{model}|{config}" for model, config in catalog.pairs()]
    keys = [
        str(CheckpointKey(*run.split("|"), 1, 100 * step))
        for run in runs
        for step in range(1, checkpoints // len(runs) + 1)
    ]
    scores = [dg.AssetKey(["eval_scores", name]) for name in catalog.evaluations]
    checkpoint, export = dg.AssetKey("checkpoint"), dg.AssetKey("hf_export")
    with open_instance(project) as instance:
        observe(instance, catalog, instance.report_runless_asset_event)
        instance.add_dynamic_partitions("checkpoint", keys)
        report = instance.report_runless_asset_event
        report(dg.AssetMaterialization(TRAINING, partition=runs[0], tags=_VERSION))
        report(dg.AssetObservation(checkpoint, partition=keys[0], tags=_VERSION))
        for asset in (checkpoint, export, *scores):
            report(dg.AssetMaterialization(asset, partition=keys[0], metadata={"score": 0.5}, tags=_VERSION))
        report(dg.AssetMaterialization("leaderboard", metadata={"rows": len(keys)}, tags=_VERSION))
        repeat(instance, [TRAINING], runs)
        repeat(instance, [checkpoint, export, *scores], keys)
    return runs


def repeat(instance: dg.DagsterInstance, assets: list[dg.AssetKey], partitions: list[str]) -> None:
    """Copy the events of the first partition for all others, as rows: Dagster itself takes 10 ms for each event."""
    first = json.dumps(partitions[0])
    with instance.event_log_storage.index_connection() as database:  # type: ignore[attr-defined]
        for asset in assets:
            rows = database.execute(
                text(f"SELECT {_COLUMNS} FROM event_logs WHERE asset_key = :a AND partition = :p ORDER BY id"),
                {"a": asset.to_string(), "p": partitions[0]},
            ).mappings()
            for row in list(rows):
                others = [
                    {**row, "event": row["event"].replace(first, json.dumps(key)), "partition": key}
                    for key in partitions[1:]
                ]
                names = [*_COLUMNS.split(", "), "partition"]
                values = ", ".join(f":{name}" for name in names)
                database.execute(text(f"INSERT INTO event_logs ({', '.join(names)}) VALUES ({values})"), others)
        # tags of an event, for all that are copies of it
        database.execute(
            text(
                "INSERT INTO asset_event_tags (event_id, asset_key, key, value, event_timestamp) "
                "SELECT e.id, t.asset_key, t.key, t.value, t.event_timestamp FROM event_logs e JOIN event_logs f ON "
                "f.asset_key = e.asset_key AND f.dagster_event_type = e.dagster_event_type AND f.partition = :p "
                "JOIN asset_event_tags t ON t.event_id = f.id WHERE e.id <> f.id AND e.timestamp = f.timestamp"
            ),
            {"p": partitions[0]},
        )


def queue(project: Project, partitions: list[str]) -> dict[str, Any]:
    """A backfill whose runs all wait in the queue: made by the daemon, and after ``ENQUEUE_S`` copied as rows."""
    port = dagster_scale._free_port()
    environment = {**os.environ, "PAMP_PROJECT": str(project.root), "DAGSTER_HOME": str(project.dagster_home)}
    workspace = ["-w", str(project.root / "workspace.yaml")]
    folder = Path(sys.executable).parent
    with (project.root / "backfill.log").open("wb") as log, contextlib.ExitStack() as stack:
        for command in (
            [str(folder / "dagster-webserver"), *workspace, "-p", str(port)],
            [str(folder / "dagster-daemon"), "run", *workspace],
        ):
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        wait_for(f"http://127.0.0.1:{port}/server_info")
        launched = ask(port, BACKFILL, names=partitions)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        id = launched["backfillId"]
        with open_instance(project) as instance:
            of_backfill = dg.RunsFilter(tags={"dagster/backfill": id}, statuses=[dg.DagsterRunStatus.QUEUED])
            asked = time.perf_counter()
            while not (count := instance.get_runs_count(of_backfill)):
                assert time.perf_counter() - asked < FIRST_S, f"no run of the backfill after {FIRST_S} s"
                time.sleep(1)
            start = time.perf_counter()
            while count < len(partitions) and time.perf_counter() - start < ENQUEUE_S:
                time.sleep(1)
                count = instance.get_runs_count(of_backfill)
            seconds = time.perf_counter() - start
    with open_instance(project) as instance:
        made = instance.get_runs(of_backfill)
        there = {run.tags["dagster/partition"] for run in made}
        copy_runs(instance, made[0], [key for key in partitions if key not in there])
        count = instance.get_runs_count(of_backfill)
        assert count == len(partitions), count
    return {"backfill": id, "runs": count, "made_by_the_daemon": len(made), "seconds": round(seconds, 1)}


def copy_runs(instance: dg.DagsterInstance, run: dg.DagsterRun, partitions: list[str]) -> None:
    """Rows of a queued run for other partitions."""
    old = dict(zip(("model", "training_config"), run.tags["dagster/partition"].split("|"), strict=True))
    with instance.run_storage.connect() as database:  # type: ignore[attr-defined]
        of_run = {"run": run.run_id}
        row = dict(database.execute(text("SELECT * FROM runs WHERE run_id = :run"), of_run).mappings().one())
        del row["id"]
        tags = list(database.execute(text("SELECT key, value FROM run_tags WHERE run_id = :run"), of_run))
        for partition in partitions:
            own = dict(zip(("model", "training_config"), partition.split("|"), strict=True))
            changed = {f"dagster/partition/{name}": value for name, value in own.items()}
            changed["dagster/partition"] = partition
            id, body = str(uuid.uuid4()), row["run_body"]
            for tag, value in {"dagster/partition": run.tags["dagster/partition"], **_tags_of(old)}.items():
                body = body.replace(f'"{tag}": "{value}"', f'"{tag}": "{changed[tag]}"')
            copy = {**row, "run_id": id, "run_body": body.replace(run.run_id, id)}
            copy |= {"partition": partition} if row.get("partition") else {}
            values = ", ".join(f":{name}" for name in copy)
            database.execute(text(f"INSERT INTO runs ({', '.join(copy)}) VALUES ({values})"), copy)
            database.execute(
                text("INSERT INTO run_tags (run_id, key, value) VALUES (:run, :key, :value)"),
                [{"run": id, "key": key, "value": changed.get(key, value)} for key, value in tags],
            )


def _tags_of(keys: dict[str, str]) -> dict[str, str]:
    return {f"dagster/partition/{name}": value for name, value in keys.items()}


def wait_for(url: str) -> None:
    """A machine that does much else may take minutes to start a webserver."""
    end = time.monotonic() + FIRST_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def ask(port: int, query: str, **variables: Any) -> dict[str, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return dict(json.load(response)["data"])


def replay(project: Project, sent: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Seconds of each of the UI's operations in this process, the slowest of its queries.

    ``first`` with Dagster's cache of partition statuses empty, ``later`` right after; CPU of this process, without that
    of a PostgreSQL server, and wall.
    """
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster_graphql.schema import create_schema

    schema = create_schema()

    def seconds(context: Any, query: dict[str, Any]) -> tuple[float, float]:
        async def answer() -> Any:
            return await schema.execute_async(
                query["query"],
                variable_values=query.get("variables"),
                operation_name=query.get("operationName"),
                context_value=context.create_request_context(),
            )

        cpu, wall = time.process_time(), time.perf_counter()
        answered = asyncio.run(answer())
        assert not answered.errors, answered.errors
        return time.process_time() - cpu, time.perf_counter() - wall

    os.environ["PAMP_PROJECT"] = str(project.root)
    found = {}
    target = WorkspaceFileTarget([str(project.root / "workspace.yaml")])
    with open_instance(project) as instance, WorkspaceProcessContext(instance, target) as context:
        for operation, queries in sorted(sent.items()):
            first, later = [], []
            for query in queries:
                with instance.event_log_storage.index_connection() as database:  # type: ignore[attr-defined]
                    database.execute(text("UPDATE asset_keys SET cached_status_data = NULL"))
                first.append(seconds(context, query))
                later.append(seconds(context, query))
            worst = {"first": max(first), "later": max(later)}
            found[operation] = {
                f"{name}_{kind}_s": round(value, 3)
                for name, values in worst.items()
                for kind, value in zip(("cpu", "wall"), values, strict=True)
            }
    return found


def observe_at_once(project: Project) -> dict[str, float]:
    """Observations that are there after four processes have reported them, and the time they took."""
    start = time.perf_counter()
    command = [sys.executable, "-W", "ignore", observing_run.__file__, str(project.root)]
    environment = {**os.environ, "DAGSTER_HOME": str(project.dagster_home)}
    processes = [
        subprocess.Popen([*command, f"run-{n}", str(OBSERVATIONS)], env=environment, stdout=subprocess.DEVNULL)
        for n in range(RUNS)
    ]
    assert [process.wait() for process in processes] == [0] * RUNS
    seconds = time.perf_counter() - start
    found = 0
    with open_instance(project) as instance:
        for n in range(RUNS):
            wanted = dg.AssetRecordsFilter(observing_run.ASSET, asset_partitions=[f"run-{n}"])
            records = instance.fetch_observations(wanted, limit=2 * OBSERVATIONS).records
            found += len({r.asset_observation.metadata["step"].value for r in records if r.asset_observation})
    return {"sent": RUNS * OBSERVATIONS, "there": found, "seconds": round(seconds, 1)}


@contextlib.contextmanager
def storage(kind: str) -> Iterator[None]:
    """Choose the instance's storage by the environment."""
    if kind == "sqlite":
        yield
        return
    server = PostgresServer()
    os.environ.update({"PAMP_INSTANCE": "team", **server.environment})
    try:
        yield
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("storage", choices=["sqlite", "postgres"])
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--queued", type=int, default=MODELS * CONFIGS)
    arguments = parser.parse_args()
    for name in ("DAGSTER_HOME", "PAMP_LAKE", "PAMP_INSTANCE"):
        os.environ.pop(name, None)
    dagster_scale._wait_for = wait_for
    dagster_scale.MODELS, dagster_scale.CONFIGS, dagster_scale.EVALUATIONS = MODELS, CONFIGS, EVALUATIONS
    with tempfile.TemporaryDirectory() as temporary, storage(arguments.storage):
        project = dagster_scale.declare(Path(temporary) / "project")
        start = time.perf_counter()
        runs = fill(project, arguments.checkpoints)
        filled = time.perf_counter() - start
        settings = project.dagster_home / "dagster.yaml"
        limit = "max_concurrent_runs: "
        kept, _, rest = settings.read_text().partition(limit)
        settings.write_text(kept + limit + "0\n" + rest.partition("\n")[2])  # nothing leaves the queue
        queued = queue(project, runs[: arguments.queued])
        dagster_scale.PAGES |= {"backfill": f"/runs/b/{queued['backfill']}", "backfills": "/runs/backfills"}
        definitions = dagster_scale.load(
            project, "from pamp_pipelines.definitions import defs; defs.get_repository_def()"
        )
        pages, sent = dagster_scale.look(project)
        queries = replay(project, sent)
        observed = observe_at_once(project)
    slowest = max((times["first_cpu_s"], name) for name, times in queries.items())
    result = {
        "storage": arguments.storage,
        "checkpoints": arguments.checkpoints,
        "fill_s": round(filled, 1),
        "queued": queued,
        "definitions": definitions,
        "slowest_query": {"name": slowest[1], "cpu_s": slowest[0]},
        "observations": observed,
        "load_average": os.getloadavg()[0],
        "queries": queries,
        "pages_wall_s": pages,
    }
    print(json.dumps(result, indent=1))
    failed = definitions["cpu_s"] > dagster_scale.LOAD_LIMIT_S or slowest[0] > dagster_scale.QUERY_LIMIT_S
    sys.exit(failed or observed["sent"] != observed["there"])


if __name__ == "__main__":
    main()
