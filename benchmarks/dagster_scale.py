"""How the Dagster side scales: ``python benchmarks/dagster_scale.py [--checkpoints 2000] [--work DIR]``.

Declares 20 models, 20 training configs and 10 evaluations, reports checkpoints, exports and scores to an instance of
its own, and measures

* the time to load the definitions in a fresh process, beside that of ``import dagster`` alone, and
* every GraphQL query that the UI itself sends for the pages below, by operation name, with Chromium: wall seconds, and
* the same queries executed again in this process: CPU seconds, the first time with Dagster's caches emptied.

Prints one JSON object; exits with 1 when a limit is passed. Limits are of CPU seconds, which other load on the machine
does not change much; on an idle one wall seconds are about the same.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import dagster as dg

from pamp_pipelines.lake.manifest import CheckResult, Manifest
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.checks import CHECKS, check_evaluations
from pamp_pipelines.orchestration.declarations import observe
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.project import Project

REPOSITORY = Path(__file__).parent.parent
MODELS, CONFIGS, EVALUATIONS = 20, 20, 10
LOAD_LIMIT_S, QUERY_LIMIT_S = 5.0, 2.0
_VERSION = {"dagster/data_version": "content"}
PASSED = Manifest(
    kind="hf_export",
    id="id",
    content="content",
    created="2026-01-01T00:00:00Z",
    checks=[CheckResult(name=check.name, passed=True) for checks in CHECKS.values() for check in checks],
)
"""Verdicts for every declared check."""
_COLUMNS = "event, run_id, dagster_event_type, timestamp, step_key, asset_key"
PAGES = {
    "graph": "/asset-groups",
    "partitions grid": "/assets/pretrained_checkpoint?view=partitions",
    "checkpoints": "/assets/checkpoint?view=partitions",
    "scores": "/assets/eval_scores/evaluation-00?view=overview",
    "checks": "/assets/eval_scores/evaluation-00?view=checks",
    "leaderboard": "/assets/leaderboard?view=events",
    "runs": "/runs",
    "automation": "/automation",
}


def declare(root: Path) -> Project:
    """A project of many declarations, each a copy of those of the tests' project."""
    fixtures = REPOSITORY / "tests/fixtures/project"
    shutil.copytree(fixtures / "resources", root / "resources")
    shutil.copy(fixtures / "workspace.yaml", root)
    for folder, source, name, count in (
        ("corpora", "sonnets", "sonnets", 1),
        ("models", "scratch", "model", MODELS),
        ("training_configs", "both", "config", CONFIGS),
        ("evaluations", "sums", "evaluation", EVALUATIONS),
    ):
        text = (fixtures / "assets" / folder / f"{source}.yaml").read_text()
        text = text.replace("corpora: {sonnets: 3, plays: 1}", "corpora: {sonnets: 1}")
        (root / "assets" / folder).mkdir(parents=True)
        for number in range(count):
            stem = name if count == 1 else f"{name}-{number:02d}"
            (root / "assets" / folder / f"{stem}.yaml").write_text(text)
    return Project(root)


def fill(project: Project, checkpoints: int) -> float:
    """Report checkpoints with exports and scores; returns seconds."""
    start = time.perf_counter()
    catalog = ProjectResource(root=str(project.root)).catalog
    runs = [f"{model}|{config}" for model, config in catalog.pairs()]
    steps = checkpoints // len(runs)
    keys = [str(CheckpointKey(*run.split("|"), 1, 100 * step)) for run in runs for step in range(1, steps + 1)]
    scores = [dg.AssetKey(["eval_scores", name]) for name in catalog.evaluations]
    training, checkpoint = dg.AssetKey("pretrained_checkpoint"), dg.AssetKey("checkpoint")
    with open_instance(project) as instance:
        observe(instance, catalog, instance.report_runless_asset_event)
        instance.add_dynamic_partitions("checkpoint", keys)
        report = instance.report_runless_asset_event
        report(dg.AssetMaterialization(training, partition=runs[0], tags=_VERSION))
        report(dg.AssetObservation(checkpoint, partition=keys[0], tags=_VERSION))
        for asset in (checkpoint, dg.AssetKey("hf_export"), *scores):
            report(dg.AssetMaterialization(asset, partition=keys[0], metadata={"score": 0.5}, tags=_VERSION))
        for asset in (dg.AssetKey("hf_export"), *scores):
            for evaluation in check_evaluations(instance, asset.to_user_string(), keys[0], PASSED):
                report(evaluation)
        report(dg.AssetMaterialization("leaderboard", metadata={"rows": len(keys)}, tags=_VERSION))
    index = project.dagster_home / "history/runs/index.db"
    repeat(index, [training], runs)
    repeat(index, [checkpoint, dg.AssetKey("hf_export"), *scores], keys)
    repeat_checks(index, [dg.AssetKey("hf_export"), *scores], keys)
    return time.perf_counter() - start


def repeat(index: Path, assets: list[dg.AssetKey], partitions: list[str]) -> None:
    """Copy the events of the first partition for all others, as rows: Dagster itself takes 10 ms for each event."""
    with sqlite3.connect(index) as database:
        for asset in assets:
            key = asset.to_string()
            rows = database.execute(
                f"SELECT id, {_COLUMNS} FROM event_logs WHERE asset_key = ? AND partition = ? ORDER BY id",
                (key, partitions[0]),
            ).fetchall()
            assert rows, key
            for partition in partitions[1:]:
                for id, event, *rest in rows:
                    made = database.execute(
                        f"INSERT INTO event_logs ({_COLUMNS}, partition) VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (event.replace(json.dumps(partitions[0]), json.dumps(partition)), *rest, partition),
                    )
                    database.execute(
                        "INSERT INTO asset_event_tags (event_id, asset_key, key, value, event_timestamp) "
                        "SELECT ?, asset_key, key, value, event_timestamp FROM asset_event_tags WHERE event_id = ?",
                        (made.lastrowid, id),
                    )


def repeat_checks(index: Path, assets: list[dg.AssetKey], partitions: list[str]) -> None:
    """Copy what Dagster keeps of the checks of the first partition for all others, each of its own materialisation."""
    columns = "check_name, run_id, execution_status, evaluation_event_timestamp, evaluation_event_storage_id"
    first = json.dumps(partitions[0])
    with sqlite3.connect(index) as database:
        for asset in assets:
            key = asset.to_string()
            rows = database.execute(
                f"SELECT evaluation_event, {columns} FROM asset_check_executions WHERE asset_key = ? AND partition = ?",
                (key, partitions[0]),
            ).fetchall()
            assert rows, key
            made = dict(
                database.execute(
                    "SELECT partition, max(id) FROM event_logs WHERE asset_key = ? AND dagster_event_type = ? "
                    "GROUP BY partition",
                    (key, "ASSET_MATERIALIZATION"),
                )
            )
            database.executemany(
                "INSERT INTO asset_check_executions (asset_key, partition, materialization_event_storage_id, "
                f"evaluation_event, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (key, partition, made[partition], event.replace(first, json.dumps(partition)), *rest)
                    for partition in partitions[1:]
                    for event, *rest in rows
                ),
            )


def load(project: Project, statement: str) -> dict[str, float]:
    """Seconds, wall and CPU, of a fresh process that runs a statement; the best of three."""
    code = (
        f"import resource, time; s = time.perf_counter(); {statement}; r = resource.getrusage(resource.RUSAGE_SELF); "
    )
    code += "print(time.perf_counter() - s, r.ru_utime + r.ru_stime)"
    environment = {**os.environ, "PAMP_PROJECT": str(project.root)}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    wall, cpu = min(tuple(map(float, run.stdout.split())) for run in runs)
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def look(project: Project) -> tuple[dict[str, dict[str, float]], dict[str, list[dict[str, Any]]]]:
    """Seconds of the slowest answer to each of the UI's queries, by page and operation; and the queries themselves."""
    from playwright.sync_api import sync_playwright

    port = _free_port()
    environment = {**os.environ, "PAMP_PROJECT": str(project.root), "DAGSTER_HOME": str(project.dagster_home)}
    command = [str(Path(sys.executable).parent / "dagster-webserver"), "-w", str(project.root / "workspace.yaml")]
    log = (project.root / "webserver.log").open("wb")
    server = subprocess.Popen([*command, "-p", str(port)], env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"http://127.0.0.1:{port}/server_info")
        with sync_playwright() as playwright:
            program = os.environ.get("CHROMIUM", "/usr/bin/chromium")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            seen: dict[str, float] = defaultdict(float)
            sent: dict[str, list[dict[str, Any]]] = defaultdict(list)
            page.on("requestfinished", lambda request: _note(request, seen, sent))
            found = {}
            for name, path in PAGES.items():
                seen.clear()
                page.goto(f"http://127.0.0.1:{port}{path}")
                if name == "graph":
                    page.locator("foreignObject").first.wait_for(timeout=120_000)
                    page.keyboard.press("Alt+e")  # open all groups
                page.wait_for_timeout(12_000)
                found[name] = {operation: round(seconds, 3) for operation, seconds in sorted(seen.items())}
            browser.close()
        return found, sent
    finally:
        server.terminate()
        server.wait()


def _note(request: Any, seen: dict[str, float], sent: dict[str, list[dict[str, Any]]]) -> None:
    if not request.url.partition("?")[0].endswith("/graphql") or not request.post_data:
        return
    query = json.loads(request.post_data)
    operation = query.get("operationName") or "unnamed"
    seen[operation] = max(seen[operation], request.timing["responseEnd"] / 1000)
    if query not in sent[operation]:
        sent[operation].append(query)


_FORGOTTEN = "The instance is not available to load partitions"
"""Dagster 1.13.28 cannot tell the partitions of a check on dynamic ones (``AssetCheck.partitionStatuses``)."""


def replay(project: Project, sent: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """CPU seconds of each operation in this process: the slowest with empty caches, and the slowest right after."""
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster_graphql.schema import create_schema

    schema = create_schema()
    index = project.dagster_home / "history/runs/index.db"

    def cpu_s(context: Any, query: dict[str, Any]) -> float:
        async def answer() -> Any:
            return await schema.execute_async(
                query["query"],
                variable_values=query.get("variables"),
                operation_name=query.get("operationName"),
                context_value=context.create_request_context(),
            )

        start = time.process_time()
        answered = asyncio.run(answer())
        taken = time.process_time() - start
        assert all(_FORGOTTEN in str(error) for error in answered.errors or ()), answered.errors
        return taken

    os.environ["PAMP_PROJECT"] = str(project.root)
    found = {}
    with (
        open_instance(project) as instance,
        WorkspaceProcessContext(
            instance, WorkspaceFileTarget([str(project.root / "workspace.yaml")]), code_server_log_level="error"
        ) as context,
    ):
        for operation, queries in sorted(sent.items()):
            times = []
            for query in queries:
                with sqlite3.connect(index) as database:
                    database.execute("UPDATE asset_keys SET cached_status_data = NULL")
                times.append((cpu_s(context, query), cpu_s(context, query)))
            found[operation] = {
                "first_s": round(max(first for first, _ in times), 3),
                "later_s": round(max(later for _, later in times), 3),
            }
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(url: str) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("the webserver did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=2000)
    parser.add_argument("--work", type=Path, help="folder to keep; default: a temporary one")
    arguments = parser.parse_args()
    for name in ("DAGSTER_HOME", "PAMP_LAKE"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.work or Path(temporary) / "project"
        project = Project(root) if (root / "workspace.yaml").exists() else declare(root)
        filled = fill(project, arguments.checkpoints) if not project.dagster_home.exists() else 0.0
        definitions = load(project, "from pamp_pipelines.definitions import defs; defs.get_repository_def()")
        dagster = load(project, "import dagster")
        pages, sent = look(project)
        queries = replay(project, sent)
    slowest = max((times["first_s"], name) for name, times in queries.items())
    result = {
        "checkpoints": arguments.checkpoints,
        "fill_s": round(filled, 1),
        "definitions": definitions,
        "import_dagster": dagster,
        "load_average": os.getloadavg()[0],
        "slowest_query": {"name": slowest[1], "cpu_s": slowest[0]},
        "queries_cpu": queries,
        "pages_wall_s": pages,
    }
    print(json.dumps(result, indent=1))
    sys.exit(definitions["cpu_s"] > LOAD_LIMIT_S or slowest[0] > QUERY_LIMIT_S)


if __name__ == "__main__":
    main()
