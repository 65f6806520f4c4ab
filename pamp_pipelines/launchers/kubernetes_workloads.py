"""What a worker is on Kubernetes: an Indexed Job and its Service, or one TrainJob of Kubeflow's Trainer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pamp_pipelines.errors import InputError
from pamp_pipelines.launchers.base import WorkerSpec
from pamp_pipelines.launchers.kubernetes_api import Cluster, call
from pamp_pipelines.launchers.kubernetes_manifests import (
    TRAINER_GROUP,
    TRAINER_VERSION,
    job_manifest,
    service_manifest,
    train_job_manifest,
    train_runtime_manifest,
)

_FOREGROUND = {"propagationPolicy": "Foreground"}
"""The object stays until all that belongs to it is gone."""
_ENDS = ("Complete", "Failed")
_KINDS = ("trainjobs", "trainingruntimes")


@dataclass(frozen=True)
class Condition:
    """Why a job is over: ``type`` is Complete or Failed."""

    type: str
    reason: str


@dataclass(frozen=True)
class Found:
    """A job that is there.

    ``active``: pods that it counts. ``failed``: indices whose pod failed, as Kubernetes lists them: ``1,3-5``.
    """

    active: int
    ended: Condition | None
    failed: str = ""


class Workload(Protocol):
    """One kind of job."""

    name: ClassVar[str]
    """In the handle of a worker."""
    title: ClassVar[str]
    """For people."""

    def objects(self, spec: WorkerSpec, token: str, log_dir: Path, name: str) -> list[dict[str, Any]]:
        """All that is created, in that order."""

    def create(self, cluster: Cluster, spec: WorkerSpec, token: str, log_dir: Path, name: str) -> None: ...

    def read(self, cluster: Cluster, name: str, namespace: str) -> Found | None: ...

    def delete(self, cluster: Cluster, name: str, namespace: str) -> None:
        """The job and all that belongs to it; one that is gone is no error."""


class IndexedJob:
    """Kubernetes' own."""

    name: ClassVar[str] = "job"
    title: ClassVar[str] = "Kubernetes job"

    def objects(self, spec: WorkerSpec, token: str, log_dir: Path, name: str) -> list[dict[str, Any]]:
        return [job_manifest(spec, token, log_dir, name), service_manifest(spec, name, "UID")]

    def create(self, cluster: Cluster, spec: WorkerSpec, token: str, log_dir: Path, name: str) -> None:
        namespace = spec.profile.kubernetes.namespace
        job = call(cluster.batch.create_namespaced_job, namespace, job_manifest(spec, token, log_dir, name))
        call(cluster.core.create_namespaced_service, namespace, service_manifest(spec, name, job.metadata.uid))

    def read(self, cluster: Cluster, name: str, namespace: str) -> Found | None:
        job = call(cluster.batch.read_namespaced_job, name, namespace, absent=None)
        if job is None:
            return None
        ended = (Condition(c.type, c.reason or "") for c in job.status.conditions or [] if _over(c.type, c.status))
        return Found(job.status.active or 0, next(ended, None), job.status.failed_indexes or "")

    def delete(self, cluster: Cluster, name: str, namespace: str) -> None:
        call(cluster.batch.delete_namespaced_job, name, namespace, body=_FOREGROUND, absent=None)


class TrainJob:
    """Kubeflow's, with the TrainingRuntime of the same name, which belongs to it and goes with it."""

    name: ClassVar[str] = "train_job"
    title: ClassVar[str] = "Kubeflow TrainJob"

    def objects(self, spec: WorkerSpec, token: str, log_dir: Path, name: str) -> list[dict[str, Any]]:
        return [train_runtime_manifest(spec, token, log_dir, name), train_job_manifest(spec, name)]

    def create(self, cluster: Cluster, spec: WorkerSpec, token: str, log_dir: Path, name: str) -> None:
        where = (TRAINER_GROUP, TRAINER_VERSION, spec.profile.kubernetes.namespace)
        runtime, job = self.objects(spec, token, log_dir, name)
        # Strict: a version of the Trainer that does not know a field refuses it instead of leaving it out
        create, strict = cluster.custom.create_namespaced_custom_object, {"field_validation": "Strict"}
        call(create, *where, "trainingruntimes", runtime, **strict)
        uid = call(create, *where, "trainjobs", job, **strict)["metadata"]["uid"]
        owner = {"apiVersion": job["apiVersion"], "kind": "TrainJob", "name": name, "uid": uid}
        patch = {"metadata": {"ownerReferences": [owner]}}
        call(cluster.custom.patch_namespaced_custom_object, *where, "trainingruntimes", name, patch)

    def read(self, cluster: Cluster, name: str, namespace: str) -> Found | None:
        get = cluster.custom.get_namespaced_custom_object
        job = call(get, TRAINER_GROUP, TRAINER_VERSION, namespace, "trainjobs", name, absent=None)
        if job is None:
            return None
        status = job.get("status", {})
        conditions = status.get("conditions") or []
        ended = (Condition(c["type"], c.get("reason", "")) for c in conditions if _over(c["type"], c["status"]))
        return Found(sum(part.get("active", 0) for part in status.get("jobsStatus") or []), next(ended, None))

    def delete(self, cluster: Cluster, name: str, namespace: str) -> None:
        delete = cluster.custom.delete_namespaced_custom_object
        for kind in _KINDS:
            call(delete, TRAINER_GROUP, TRAINER_VERSION, namespace, kind, name, body=_FOREGROUND, absent=None)


WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in (IndexedJob(), TrainJob())}


def declared(spec: WorkerSpec) -> Workload:
    """What the profile asks for; a Job where it leaves that to the cluster. A single process is always a Job."""
    train = spec.processes is not None and spec.profile.kubernetes.workload == "train_job"
    return WORKLOADS["train_job" if train else "job"]


def choose(cluster: Cluster, spec: WorkerSpec) -> Workload:
    """What the profile asks for; for `auto`, what the cluster knows.

    Raises:
        InputError: a TrainJob is asked for, and the cluster does not know any.
        LauncherError: the API server does not answer.
    """
    wanted = spec.profile.kubernetes.workload
    if spec.processes is None or wanted == "job":
        return WORKLOADS["job"]
    known = call(cluster.custom.get_api_resources, TRAINER_GROUP, TRAINER_VERSION, absent=None)
    names = {resource.name for resource in known.resources} if known is not None else set()
    if names.issuperset(_KINDS):
        return WORKLOADS["train_job"]
    if wanted == "train_job":
        raise InputError(
            f"kubernetes.workload: train_job: this cluster has no {' and '.join(_KINDS)} of {TRAINER_GROUP}/"
            f"{TRAINER_VERSION}; install Kubeflow's Trainer 2, or declare `workload: job`"
        )
    return WORKLOADS["job"]


def _over(type: str, status: str) -> bool:
    return type in _ENDS and status == "True"
