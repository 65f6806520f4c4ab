"""Workers as Jobs or TrainJobs of a Kubernetes cluster whose pods mount the lake at this machine's path."""

import contextlib
import datetime
import json
import re
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.kubernetes import KubernetesOptions
from pamp_pipelines.errors import InputError, LauncherError, PampError
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.sharing import share
from pamp_pipelines.launchers.base import EVENTS, Handle, Status, WorkerSpec, read_handle, size_of, write_handle
from pamp_pipelines.launchers.kubernetes_api import Cluster, call, connect
from pamp_pipelines.launchers.kubernetes_manifests import LABEL, START
from pamp_pipelines.launchers.kubernetes_workloads import WORKLOADS, Condition, Found, Workload, choose, declared
from pamp_pipelines.launchers.logs import Failure, failure_of_nodes, last_lines, main_log

IMAGE_S = 120.0
"""Seconds for which an image may fail to be pulled: registries have bad minutes."""
_DELETED_S = 60.0
"""Seconds over the grace time after which a deleted job that is still there counts as an error."""
_PAUSE_S = 0.5
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


class KubernetesLauncher:
    """Implements ``Launcher`` with the official client (extra ``kubernetes``)."""

    outlives_caller = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, Status]] = {}
        self._pulling_since: dict[str, float] = {}
        self._failed: dict[str, str] = {}

    def preview(self, spec: WorkerSpec) -> str:
        """Asks a cluster that can be reached what it knows; where there is none, the objects are those declared, for
        ``workload: auto`` those of a Job.

        Raises:
            InputError: the cluster does not know the workload that is declared.
        """
        workload = declared(spec)
        try:
            cluster = connect(spec.profile.kubernetes)
        except InputError:
            pass  # no cluster
        else:
            with contextlib.suppress(LauncherError):
                workload = choose(cluster, spec)
        return json.dumps(workload.objects(spec, "TOKEN", spec.run_dir / "logs" / "START", "pamp-token"), indent=2)

    def submit(self, spec: WorkerSpec) -> Handle:
        """Create the job, and what its pods need beside it.

        Raises:
            InputError: the API server refuses the objects, with its words; or it does not know TrainJobs.
            LauncherError: the client is not installed, or the API server does not answer.
        """
        token = secrets.token_hex(8)
        name = f"pamp-{token}"
        now = datetime.datetime.now(datetime.UTC)
        log_dir = spec.run_dir / "logs" / f"{now:%Y%m%dT%H%M%S}-{token[:4]}"
        options = spec.profile.kubernetes
        cluster = connect(options)
        workload = choose(cluster, spec)
        workload.objects(spec, token, log_dir, name)  # what cannot be asked for is refused before anything is written
        log_dir.mkdir(parents=True)
        share(spec.run_dir, log_dir.parent, log_dir)
        handle = Handle(
            launcher="kubernetes",
            token=token,
            host=socket.gethostname(),
            id=name,
            submitted=now.isoformat(timespec="seconds"),
            log_dir=log_dir,
            details={
                "module": spec.module,
                "processes": spec.processes,
                "tasks": spec.tasks,
                "workload": workload.name,
                "job_sha256": sha256_file(spec.job),
                "events_offset": size_of(spec.run_dir / EVENTS),
                "grace_s": spec.profile.grace_s,
                "options": options.model_dump(mode="json", include={"namespace", "context", "poll_s"}),
            },
        )
        write_handle(spec.run_dir, handle)  # before: the name finds the job whatever happens
        try:
            workload.create(cluster, spec, token, log_dir, name)
        except BaseException:
            with contextlib.suppress(PampError):  # what went wrong first is what people must hear
                self.cancel(handle)
            raise
        return handle

    def poll(self, handle: Handle) -> Status:
        """Asks every ``poll_s`` seconds. While there is no answer the job counts as running: it does run on.

        Also where the question is refused: a token runs out, a kubeconfig is written anew.
        """
        options = _options(handle)
        now = self._clock()
        seen = self._seen.get(handle.id)
        if seen is None or (seen[1].running and now - seen[0] >= options.poll_s):
            seen = self._seen[handle.id] = (now, self._ask(handle))
        return seen[1]

    def logs(self, handle: Handle, offset: int = 0) -> tuple[str, int]:
        """From the file on the lake's volume that the first pod writes: it is whole when the pod is gone."""
        try:
            with main_log(handle.log_dir / START / "node0").open("rb") as stream:
                stream.seek(offset)
                data = stream.read()
        except FileNotFoundError:
            return "", offset
        return data.decode(errors="replace"), offset + len(data)

    def failure(self, handle: Handle, lines: int) -> Failure:
        """Of an array: the first task that failed."""
        start = handle.log_dir / START
        if handle.details.get("tasks") is None:
            return failure_of_nodes(start, handle.details.get("processes"), lines)
        first = re.match(r"\d+", self._failed.get(handle.id, ""))
        if first is None:
            return Failure(None, None, [])
        return Failure(None, None, last_lines(main_log(start / f"node{first[0]}"), lines), int(first[0]))

    def cancel(self, handle: Handle) -> Status:
        """Delete the job; its pods get SIGTERM and their grace. Returns when job and pods are gone."""
        options = _options(handle)
        cluster, workload = connect(options), _workload(handle)
        workload.delete(cluster, handle.id, options.namespace)
        deadline = self._clock() + float(handle.details["grace_s"]) + _DELETED_S
        while self._clock() < deadline:
            job = workload.read(cluster, handle.id, options.namespace)
            if job is None and not _pods(cluster, handle.id, options.namespace):
                return Status(reason="canceled", detail=f"{workload.title} {handle.id} was deleted")
            time.sleep(_PAUSE_S)
        raise LauncherError(f"{workload.title} {handle.id} in {options.namespace} is still there after its deletion")

    def find(self, run_dir: Path) -> Handle | None:
        """The job of ``run_dir`` that has not ended.

        Raises:
            LauncherError: the API server does not answer, so that a second job could be started beside a first one.
        """
        handle = read_handle(run_dir)
        if handle is None or handle.launcher != "kubernetes":
            return None
        options = _options(handle)
        job = _workload(handle).read(connect(options), handle.id, options.namespace)
        return handle if job is not None and job.ended is None else None

    def _ask(self, handle: Handle) -> Status:
        options = _options(handle)
        try:
            cluster = connect(options)
            job = _workload(handle).read(cluster, handle.id, options.namespace)
            pods = _pods(cluster, handle.id, options.namespace) if job is not None else []
        except PampError as error:
            return Status(reason="running", detail=str(error))
        what = f"{_workload(handle).title} {handle.id}"
        if job is None:
            return Status(reason="lost", detail=f"{what} was deleted and left no exit status")
        self._failed[handle.id] = job.failed
        if job.ended is not None:
            return _ended(what, job.ended, pods)
        return self._unfinished(handle.id, what, job, pods)

    def _unfinished(self, name: str, what: str, job: Found, pods: list[Any]) -> Status:
        waiting = [(pod, state) for pod in pods if (state := _waiting(pod)) is not None]
        for pod, state in waiting:
            said = f"{what}: pod {pod.metadata.name}: {state.reason}: {state.message or ''}".rstrip(": ")
            since = self._pulling_since.setdefault(name, self._clock())
            if state.reason in _CONFIG or self._clock() - since >= IMAGE_S:
                return Status(reason="refused", detail=said)
            return Status(reason="queued", detail=said)
        self._pulling_since.pop(name, None)
        if not any(pod.status.phase == "Running" for pod in pods):
            return Status(reason="queued", detail=f"{what} waits for its pods")
        return Status(reason="running", detail=f"{what}: {job.active} pods")


def _ended(what: str, condition: Condition, pods: list[Any]) -> Status:
    if condition.type == "Complete":
        return Status(reason="exited", exit_code=0)
    for pod in pods:
        disrupted = any(c.type == "DisruptionTarget" and c.status == "True" for c in pod.status.conditions or [])
        if pod.status.reason in ("Evicted", "Preempting", "NodeShutdown", "Terminated") or disrupted:
            said = pod.status.message or pod.status.reason or "disrupted"
            return Status(reason="preempted", detail=f"{what}: pod {pod.metadata.name}: {said}")
    ends = [state for pod in pods if (state := _terminated(pod)) is not None and state.exit_code != 0]
    if ends:
        first = min(ends, key=lambda state: state.finished_at or datetime.datetime.max.replace(tzinfo=datetime.UTC))
        code = first.exit_code if first.exit_code <= 128 else 128 - first.exit_code
        return Status(reason="exited", exit_code=code, detail=f"{what}: {first.reason or 'Error'}")
    return Status(reason="infrastructure", detail=f"{what}: {condition.reason}: a pod was deleted or never ran")


def _waiting(pod: Any) -> Any:
    states = (c.state.waiting for c in pod.status.container_statuses or [] if c.state and c.state.waiting)
    return next((state for state in states if state.reason in _IMAGE | _CONFIG), None)


def _terminated(pod: Any) -> Any:
    return next(
        (c.state.terminated for c in pod.status.container_statuses or [] if c.state and c.state.terminated), None
    )


def _options(handle: Handle) -> KubernetesOptions:
    return KubernetesOptions.model_validate(handle.details["options"])


def _workload(handle: Handle) -> Workload:
    return WORKLOADS[handle.details.get("workload", "job")]


def _pods(cluster: Cluster, name: str, namespace: str) -> list[Any]:
    return list(call(cluster.core.list_namespaced_pod, namespace, label_selector=f"{LABEL}={name}").items)
