"""The objects of a worker on Kubernetes, as a pure function of its spec.

An Indexed Job gives each pod a number, its node rank; a headless Service gives the first one a name that the others
meet at. Kubeflow's Trainer makes both of a TrainJob, and of the TrainingRuntime that says what its pods are. That one
is the run's own and not the cluster's `torch-distributed`, whose pods are started again in place up to six times.

Each pod runs one torchrun agent. Its output goes to a file on the lake's volume as well as to the pod's log: logs of
pods are cut after hours and end with the pod. The group may read what is written there,
whatever the image's umask.
"""

import math
import re
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.launchers.base import RUN_TOKEN, TASK, TASKS, WorkerSpec
from pamp_pipelines.launchers.environment import THREADS

PORT = 29_500
START = "start0"
LABEL = "pamp-run"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_KEEP_S = 7 * 24 * 3600
TRAINER_GROUP, TRAINER_VERSION = "trainer.kubeflow.org", "v1alpha1"
_NODE = "node"
"""Kubeflow's name for the replicated job and for the container that torchrun runs in (pkg/constants/constants.go)."""
_TEE = 'umask g+rx; mkdir -p "$PET_LOG_DIR" && exec "$@" > >(exec tee -a "$PET_LOG_DIR/worker.log") 2>&1'
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def job_manifest(spec: WorkerSpec, token: str, log_dir: Path, name: str) -> dict[str, Any]:
    """The Indexed Job of a worker.

    Raises:
        InputError: the profile names no image, or the ranks do not fit the pods.
    """
    options = spec.profile.kubernetes
    count = spec.tasks or (1 if spec.processes is None else spec.profile.nodes)
    labels = _labels(spec, name)
    pod = {"subdomain": name, **_pod(spec, token, log_dir, "worker", f"{name}-0.{name}", count)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": options.namespace, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            # ranks end together; a task of an array does not take the others with it
            **({"backoffLimit": 0} if spec.tasks is None else {"backoffLimitPerIndex": 0}),
            "ttlSecondsAfterFinished": _KEEP_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def service_manifest(spec: WorkerSpec, name: str, owner: str) -> dict[str, Any]:
    """The headless Service; ``owner`` is the job's uid, with which it is deleted."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": spec.profile.kubernetes.namespace,
            "labels": {LABEL: name},
            "ownerReferences": [reference],
        },
        # a pod must find the first one before that is ready
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: name}},
    }


def train_runtime_manifest(spec: WorkerSpec, token: str, log_dir: Path, name: str) -> dict[str, Any]:
    """The TrainingRuntime of a run: a JobSet of one Job that starts no pod a second time.

    Raises:
        InputError: as `job_manifest`.
    """
    labels = _labels(spec, name)
    count = spec.profile.nodes
    pod = _pod(spec, token, log_dir, _NODE, f"{name}-{_NODE}-0-0.{name}", count)
    job = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    return {
        "apiVersion": f"{TRAINER_GROUP}/{TRAINER_VERSION}",
        "kind": "TrainingRuntime",
        "metadata": {
            "name": name,
            "namespace": spec.profile.kubernetes.namespace,
            "labels": {**labels, "trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {
            "mlPolicy": {"numNodes": count, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": _NODE, "template": job}]}},
        },
    }


def train_job_manifest(spec: WorkerSpec, name: str) -> dict[str, Any]:
    """The TrainJob that runs the TrainingRuntime of its name."""
    trainer = {"numNodes": spec.profile.nodes, "numProcPerNode": (spec.processes or 1) // spec.profile.nodes}
    return {
        "apiVersion": f"{TRAINER_GROUP}/{TRAINER_VERSION}",
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "namespace": spec.profile.kubernetes.namespace,
            "labels": _labels(spec, name),
        },
        "spec": {
            "runtimeRef": {"apiGroup": TRAINER_GROUP, "kind": "TrainingRuntime", "name": name},
            "trainer": trainer,
        },
    }


def _labels(spec: WorkerSpec, name: str) -> dict[str, str]:
    return {**spec.profile.kubernetes.labels, "app.kubernetes.io/managed-by": "pamp", LABEL: name}


def _pod(spec: WorkerSpec, token: str, log_dir: Path, container_name: str, first: str, count: int) -> dict[str, Any]:
    """``first`` is the name at which the first pod is reached."""
    options = spec.profile.kubernetes
    if not options.image:
        raise InputError("a profile with `launcher: kubernetes` needs `kubernetes.image`")
    amounts = {
        "cpu": options.cpu,
        "memory": options.memory,
        "nvidia.com/gpu": str(options.gpus) if options.gpus else None,
    }
    limits = {key: value for key, value in amounts.items() if value is not None}
    mounts = [{"name": f"claim-{i}", "mountPath": path} for i, path in enumerate(options.claims.values())]
    volumes: list[dict[str, Any]] = [
        {"name": f"claim-{i}", "persistentVolumeClaim": {"claimName": claim}} for i, claim in enumerate(options.claims)
    ]
    container: dict[str, Any] = {
        "name": container_name,
        "image": options.image,
        "command": ["bash", "-c", _TEE, "bash", *(_literal(part) for part in _command(spec, count))],
        "workingDir": str(spec.run_dir),
        "env": _environment(spec, token, log_dir, first),
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [*mounts, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if options.image_pull_policy:
        container["imagePullPolicy"] = options.image_pull_policy
    if options.secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in options.secrets]
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shared_memory}}
    optional = {
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
        "nodeSelector": options.node_selector,
        "tolerations": list(options.tolerations),
        "imagePullSecrets": [{"name": secret} for secret in options.image_pull_secrets],
    }
    return {
        "restartPolicy": "Never",
        # SIGTERM, training saves, SIGKILL
        "terminationGracePeriodSeconds": math.ceil(spec.profile.grace_s) + 5,
        "containers": [container],
        "volumes": [*volumes, shm],
        **{key: value for key, value in optional.items() if value},
    }


def _command(spec: WorkerSpec, count: int) -> list[str]:
    python = spec.profile.kubernetes.python
    worker = ["-m", spec.module, str(spec.job)]
    if spec.processes is None:
        return [python, *worker]
    each, rest = divmod(spec.processes, count)
    if rest:
        raise InputError(f"{spec.processes} processes cannot be shared out evenly over `nodes: {count}`")
    agent = ["-m", "pamp_pipelines.launchers.elastic", f"--nnodes={count}", f"--nproc-per-node={each}"]
    return [python, *agent, "--max-restarts=0", f"--master-port={PORT}", "--redirects=3", *worker]


def _environment(spec: WorkerSpec, token: str, log_dir: Path, first: str) -> list[dict[str, Any]]:
    declared = {
        **dict.fromkeys(THREADS, str(spec.profile.threads_per_process or 1)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(math.ceil(spec.profile.grace_s)),
        **spec.profile.env,
        **spec.env,
        RUN_TOKEN: token,
    }
    bad = [key for key in declared if not _VARIABLE.fullmatch(key)]
    if bad:
        raise InputError(f"env: {bad} are no names of environment variables")
    return [
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        *_task(spec),
        {"name": "PET_LOG_DIR", "value": f"{_literal(str(log_dir / START))}/node$(PET_NODE_RANK)"},
        {"name": "PET_MASTER_ADDR", "value": first},
        *({"name": key, "value": _literal(value)} for key, value in declared.items()),
    ]


def _task(spec: WorkerSpec) -> list[dict[str, Any]]:
    """The tasks of an array are the indices of the job."""
    if spec.tasks is None:
        return []
    number = {"name": TASK, "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    return [number, {"name": TASKS, "value": str(spec.tasks)}]


def _literal(text: str) -> str:
    """Kubernetes replaces ``$(NAME)`` in commands and values; ``$$`` is a dollar."""
    return text.replace("$(", "$$(")
