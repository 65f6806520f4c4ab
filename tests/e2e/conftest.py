"""A running `dagster dev` on a tiny project of its own, driven over GraphQL as the UI drives it."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from pamp_pipelines.launchers.base import RUN_TOKEN
from pamp_pipelines.orchestration.instance import ensure_home
from pamp_pipelines.project import Project

TOKEN = "PAMP_TEST_TOKEN"
NO_TAGS: Mapping[str, str] = {}
START_S, STOP_S, RUN_S = 300, 60, 900
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}

LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message stack }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}"""

RUN = """
query Run($id: ID!) {
  runOrError(runId: $id) {
    ... on Run {
      status
      assetMaterializations { assetKey { path } partition tags { key value } }
      eventConnection { events { __typename ... on MessageEvent { message } ... on ErrorEvent { error { message } } } }
    }
  }
}"""

TERMINATE = """
mutation Terminate($id: String!, $policy: TerminateRunPolicy) {
  terminateRun(runId: $id, terminatePolicy: $policy) { __typename ... on TerminateRunFailure { message } }
}"""

PARTITIONS = """
query Partitions($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    ... on AssetNode {
      partitionKeys
      assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions } }
    }
  }
}"""

BACKFILL = """
mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message stack }
  }
}"""

REPOSITORY = {"repositoryLocationName": "pamp", "repositoryName": "__repository__"}


class DagsterDev:
    """One `dagster dev` in a session of its own."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.port = _free_port()
        self.token = secrets.token_hex(8)
        self.log = project.root / f"dagster-dev-{self.token}.log"
        command = [
            *(sys.executable, "-m", "dagster", "dev", "-w", str(project.root / "workspace.yaml")),
            *("--port", str(self.port), "--host", "127.0.0.1"),
        ]
        environment = {
            **os.environ,
            "DAGSTER_HOME": str(ensure_home(project)),
            "PAMP_PROJECT": str(project.root),
            "PAMP_LAKE": str(project.data / "lake"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            TOKEN: self.token,
        }
        self._process = subprocess.Popen(
            command,
            cwd=project.root,
            env=environment,
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # a background shell starts its children with SIGINT ignored, and every process below would inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self._wait_until_ready()

    def query(self, query: str, **variables: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error  # GraphQL errors come as HTTP 500 with a body
        assert "errors" not in answer, answer
        return answer["data"]

    def launch(
        self,
        assets: list[str],
        partition: str | None,
        run_tags: Mapping[str, str] = NO_TAGS,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Start a run as the button "Materialize" does, ``config`` as written in its launchpad; returns its id."""
        selector = {
            **REPOSITORY,
            "pipelineName": "__ASSET_JOB",
            "assetSelection": [{"path": asset.split("/")} for asset in assets],
        }
        tags = [{"key": "dagster/partition", "value": partition}] if partition else []
        tags += [{"key": key, "value": value} for key, value in run_tags.items()]
        params = {"selector": selector, "mode": "default", "executionMetadata": {"tags": tags}}
        if config:
            params["runConfigData"] = {"ops": {assets[0]: {"config": dict(config)}}}
        launched = self.query(LAUNCH, params=params)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def wait(self, run_id: str) -> dict[str, Any]:
        """The run, once it has ended."""
        deadline = time.monotonic() + RUN_S
        while time.monotonic() < deadline:
            run = self.query(RUN, id=run_id)["runOrError"]
            if run["status"] in ENDED:
                return run
            time.sleep(0.5)
        raise AssertionError(f"run {run_id} did not end in {RUN_S} s:\n{self.log.read_text()[-3000:]}")

    def materialize(
        self, assets: list[str], partition: str | None, config: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """Run assets to success; returns data versions by asset."""
        run = self.wait(self.launch(assets, partition, config=config))
        errors = [e.get("error") or e["message"] for e in run["eventConnection"]["events"] if "Fail" in e["__typename"]]
        assert run["status"] == "SUCCESS", errors
        versions = {}
        for event in run["assetMaterializations"]:
            tags = {tag["key"]: tag["value"] for tag in event["tags"]}
            versions["/".join(event["assetKey"]["path"])] = tags["dagster/data_version"]
        return versions

    def until(self, condition: Callable[[], bool], what: str, within_s: float = RUN_S) -> None:
        """Wait until ``condition`` holds; ``what`` is the message when it never does."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.2)

    def status(self, run_id: str) -> str:
        return str(self.query(RUN, id=run_id)["runOrError"]["status"])

    def messages(self, run_id: str) -> list[str]:
        """The log of a run."""
        events = self.query(RUN, id=run_id)["runOrError"]["eventConnection"]["events"]
        return [event["message"] for event in events if event.get("message")]

    def materializations(self, asset: str) -> int:
        """How often an asset has been materialised."""
        query = """
            query M($key: AssetKeyInput!) {
              assetNodeOrError(assetKey: $key) { ... on AssetNode { assetMaterializations { runId } } }
            }"""
        return len(self.query(query, key={"path": asset.split("/")})["assetNodeOrError"]["assetMaterializations"])

    def switch(self, sensor: str, on: bool) -> None:
        """Flip the switch of a sensor that ships stopped."""
        mutation = f"""
            mutation Switch($sensor: SensorSelector!) {{
              answer: {"startSensor" if on else "resetSensor"}(sensorSelector: $sensor) {{ __typename }}
            }}"""
        answer = self.query(mutation, sensor={**REPOSITORY, "sensorName": sensor})["answer"]
        assert answer["__typename"] == "Sensor", answer

    def message_of(self, sensor: str) -> str:
        """What the newest finished tick of a sensor says."""
        query = """
            query Ticks($sensor: SensorSelector!) {
              sensorOrError(sensorSelector: $sensor) {
                ... on Sensor { sensorState { ticks(limit: 5) { status skipReason } } }
              }
            }"""
        state = self.query(query, sensor={**REPOSITORY, "sensorName": sensor})["sensorOrError"]["sensorState"]
        return next((t["skipReason"] or "" for t in state["ticks"] if t["status"] != "STARTED"), "")

    def reload(self) -> None:
        """Press "Reload definitions"."""
        mutation = """
            mutation { reloadRepositoryLocation(repositoryLocationName: "pamp") {
              ... on WorkspaceLocationEntry { locationOrLoadError { __typename ... on PythonError { message } } }
            } }"""
        loaded = self.query(mutation)["reloadRepositoryLocation"]["locationOrLoadError"]
        assert loaded["__typename"] == "RepositoryLocation", loaded

    def backfill(self, asset: str, partitions: list[str]) -> list[dict[str, Any]]:
        """Launch a backfill of chosen partitions; returns its runs, one for each, all successful."""
        params = {"assetSelection": [{"path": asset.split("/")}], "partitionNames": partitions}
        launched = self.query(BACKFILL, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        query = """
            query Backfill($id: String!) {
              partitionBackfillOrError(backfillId: $id) {
                ... on PartitionBackfill { numPartitions runs { runId status stepStats { startTime endTime } } }
              }
            }"""

        def look() -> dict[str, Any]:
            return self.query(query, id=launched["backfillId"])["partitionBackfillOrError"]  # type: ignore[no-any-return]

        def all_ended() -> bool:
            runs = look()["runs"]
            return len(runs) == len(partitions) and {run["status"] for run in runs} <= ENDED

        self.until(all_ended, f"the backfill of {asset} goes on")
        backfill = look()
        assert backfill["numPartitions"] == len(partitions)
        assert {run["status"] for run in backfill["runs"]} == {"SUCCESS"}
        return list(backfill["runs"])

    def runs(self, tag: str, value: str) -> list[dict[str, Any]]:
        """Runs with a tag, the newest first: job, status, and the assets that were asked for."""
        query = """
            query Runs($filter: RunsFilter!) {
              runsOrError(filter: $filter) {
                ... on Runs { results { runId pipelineName status assetSelection { path } } }
              }
            }"""
        found = self.query(query, filter={"tags": [{"key": tag, "value": value}]})["runsOrError"]["results"]
        return list(found)

    def kill(self) -> None:
        """``kill -9`` of everything that is Dagster, as when the machine's memory runs out; workers are left to die."""
        workers = {process.pid for process in self.workers()}
        for process in self.processes():
            if process.pid not in workers:
                process.kill()

    def terminate(self, run_id: str, force: bool = False) -> None:
        """Press "Terminate", or "Force termination immediately"."""
        policy = "MARK_AS_CANCELED_IMMEDIATELY" if force else "SAFE_TERMINATE"
        answer = self.query(TERMINATE, id=run_id, policy=policy)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def workers(self) -> list[psutil.Process]:
        """Living processes of a worker: supervisor, torchrun, ranks."""
        return [p for p in self.processes() if _variable(p, RUN_TOKEN)]

    def partitions(self, asset: str) -> list[str]:
        return self.query(PARTITIONS, key={"path": asset.split("/")})["assetNodeOrError"]["partitionKeys"]

    def filled(self, asset: str) -> set[str]:
        """Partitions of a one-dimensional asset that the UI shows as materialised."""
        node = self.query(PARTITIONS, key={"path": asset.split("/")})["assetNodeOrError"]
        return set(node["assetPartitionStatuses"]["materializedPartitions"])

    def stale(self, partitions: Mapping[str, str]) -> set[str]:
        """Assets whose given partition the UI shows as out of date."""
        query = """
            query Stale($key: AssetKeyInput!, $partition: String) {
              assetNodeOrError(assetKey: $key) { ... on AssetNode { staleStatus(partition: $partition) } }
            }"""
        status = {
            asset: self.query(query, key={"path": asset.split("/")}, partition=partition)["assetNodeOrError"]
            for asset, partition in partitions.items()
        }
        return {asset for asset, node in status.items() if node["staleStatus"] != "FRESH"}

    def stop(self) -> list[psutil.Process]:
        """Ctrl-C in the terminal: SIGINT to the whole group. Returns what is alive a minute later, then ends it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        deadline = time.monotonic() + STOP_S
        while (left := self.processes()) and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(0.2)
        for process in left:
            process.kill()
        self._process.wait()
        return left

    def processes(self) -> list[psutil.Process]:
        """Every living process that descends from this `dagster dev`, found by a token in its environment."""
        return [p for p in psutil.process_iter() if _variable(p, TOKEN) == self.token]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_info", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        text = self.log.read_text()[-3000:]
        self.stop()
        raise AssertionError(f"dagster dev did not start:\n{text}")


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name) if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Browser:
    """Headless Chromium that looks at pages; PAMP_PICTURES=DIR keeps what it saw."""

    def __init__(self, page: Any, pictures: Path) -> None:
        self._page, self._pictures = page, pictures

    def see(self, url: str, *texts: str, click: str | None = None, within_s: float = 60) -> None:
        """Open a page, click on a text, and wait until all ``texts`` are to be seen."""
        self._page.goto(url)
        if click:
            self._page.get_by_text(click, exact=True).first.click(timeout=within_s * 1000)
        for text in texts:
            self._page.get_by_text(text, exact=True).first.wait_for(timeout=within_s * 1000)
        name = "".join(c if c.isalnum() else "-" for c in url.partition("://")[2].partition("/")[2])[-80:]
        self._page.screenshot(path=self._pictures / f"{name}.png")

    def count(self, selector: str) -> int:
        return int(self._page.locator(selector).count())


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser | None]:
    """None, after a message, where Chromium is not installed; in CI it has to be."""
    program = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if program is None:
        assert not os.environ.get("CI"), "chromium is missing: install it (.ci/run does)"
        print("chromium is missing: nobody looks at the UI")
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        yield Browser(page, Path(os.environ.get("PAMP_PICTURES") or tmp_path))
        chromium.close()


@pytest.fixture
def dagster_dev_of() -> Iterator[Callable[[Project], DagsterDev]]:
    """Starts `dagster dev` of a project; all are stopped in the end."""
    started: list[DagsterDev] = []

    def start(project: Project) -> DagsterDev:
        started.append(DagsterDev(project))
        return started[-1]

    yield start
    assert [left for dev in started for left in dev.stop()] == []
