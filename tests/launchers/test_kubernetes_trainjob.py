"""TrainJobs of Kubeflow's Trainer: the objects, and the launcher against a fake API server that knows them."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubeflow_trainer_api import models

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InfrastructureFailed, InputError, WorkerFailed, WorkerPreempted
from pamp_pipelines.lake.events import Event, EventLog
from pamp_pipelines.launchers import find_worker, run_worker
from pamp_pipelines.launchers.base import WorkerSpec, read_handle
from pamp_pipelines.launchers.kubernetes import KubernetesLauncher
from pamp_pipelines.launchers.kubernetes_manifests import train_job_manifest, train_runtime_manifest
from tests.launchers.conftest import wait_for
from tests.launchers.fake_kubernetes import FakeKubernetes

SNAPSHOT = Path(__file__).parent / "snapshots/kubeflow.json"


def profile(**fields: object) -> ComputeProfile:
    options = {"image": "registry/pamp:1", "poll_s": 0.05, **fields}
    return ComputeProfile.model_validate(
        {"launcher": "kubernetes", "nodes": 2, "processes_per_node": 8, "grace_s": 30, "kubernetes": options}
    )


def manifests() -> list[dict[str, Any]]:
    compute = profile(
        claims={"lake": "/lake"},
        gpus=8,
        memory="1500Gi",
        secrets=["hub"],
        service_account="trainer",
        priority_class="high",
        node_selector={"gpu": "h100"},
        labels={"kueue.x-k8s.io/queue-name": "llm"},
    )
    run_dir = Path("/lake/runs/m/c/v0001")
    spec = WorkerSpec("pkg.worker", run_dir / "job.json", run_dir, compute, 16, {"PRICE": "$(HOME) $5"})
    runtime = train_runtime_manifest(spec, "c0ffee", run_dir / "logs/start", "pamp-c0ffee")
    return [runtime, train_job_manifest(spec, "pamp-c0ffee")]


def test_the_whole_manifests() -> None:
    assert manifests() == json.loads(SNAPSHOT.read_text()), "changed on purpose? write the new ones to the snapshot"


def test_kubeflows_published_models_and_the_schema_of_a_pod_take_them() -> None:
    runtime, job = manifests()
    kinds = [(models.TrainerV1alpha1TrainingRuntime, runtime), (models.TrainerV1alpha1TrainJob, job)]
    for model, manifest in kinds:
        assert model.from_dict(manifest).to_dict() == manifest  # a field that they do not know would be gone
    wrong = {**job, "spec": {**job["spec"], "trainer": {"numNodess": 2}}}
    assert models.TrainerV1alpha1TrainJob.from_dict(wrong).to_dict() != wrong
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    template = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **replicated["template"]}
    kubernetes_validate.validate(template | {"metadata": {"name": "x"}}, "1.29", strict=True)


def test_pods_of_a_train_job_are_never_started_again_in_place() -> None:
    """Kubeflow's own runtime leaves Kubernetes' defaults: six restarts, without a look at the checkpoints."""
    (replicated,) = manifests()[0]["spec"]["template"]["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    (container,) = job["template"]["spec"]["containers"]
    assert (replicated["name"], container["name"]) == ("node", "node")  # where the Trainer looks for torchrun
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["PET_MASTER_ADDR"] == "pamp-c0ffee-node-0-0.pamp-c0ffee"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes(trainer=True)
    (tmp_path / "kubeconfig").write_text(fake.kubeconfig())
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "run").mkdir()
    yield fake
    fake.close()


def spec(tmp_path: Path, processes: int | None = 16, **fields: object) -> WorkerSpec:
    return WorkerSpec("pkg.worker", tmp_path / "job.json", tmp_path / "run", profile(**fields), processes)


@pytest.mark.parametrize(
    ("trainer", "workload", "processes", "kind"),
    [
        (True, "auto", 16, "trainjobs"),
        (True, "train_job", 16, "trainjobs"),
        (True, "job", 16, "jobs"),
        (False, "auto", 16, "jobs"),
        (True, "auto", None, "jobs"),  # nothing to meet
    ],
)
def test_a_train_job_where_the_cluster_knows_them(
    api: FakeKubernetes, tmp_path: Path, trainer: bool, workload: str, processes: int | None, kind: str
) -> None:
    api.trainer = trainer
    launcher = KubernetesLauncher()
    asked = spec(tmp_path, processes, workload=workload)
    kinds = [manifest["kind"] for manifest in json.loads(launcher.preview(asked))]
    assert kinds == (["TrainingRuntime", "TrainJob"] if kind == "trainjobs" else ["Job", "Service"])
    assert all(not stored for stored in api.objects.values())  # a preview creates nothing
    handle = launcher.submit(asked)
    assert [name for name in ("jobs", "trainjobs") if handle.id in api.objects[name]] == [kind]
    assert launcher.cancel(handle).reason == "canceled"
    assert all(not stored for stored in api.objects.values())


def test_a_cluster_without_the_trainer_is_told(api: FakeKubernetes, tmp_path: Path) -> None:
    api.trainer = False
    with pytest.raises(InputError, match="no trainjobs and trainingruntimes of trainer"):
        KubernetesLauncher().submit(spec(tmp_path, workload="train_job"))
    with pytest.raises(InputError, match="no trainjobs and trainingruntimes of trainer"):
        KubernetesLauncher().preview(spec(tmp_path, workload="train_job"))
    assert read_handle(tmp_path / "run") is None


@pytest.mark.parametrize("away", ["server", "kubeconfig"])
def test_a_preview_without_a_cluster_is_of_what_is_declared(api: FakeKubernetes, tmp_path: Path, away: str) -> None:
    api.down = away == "server"
    if away == "kubeconfig":
        (tmp_path / "kubeconfig").unlink()
    for workload, kind in (("train_job", "TrainJob"), ("auto", "Job")):
        preview = KubernetesLauncher().preview(spec(tmp_path, workload=workload))
        assert kind in [manifest["kind"] for manifest in json.loads(preview)]


def test_what_the_server_refuses_leaves_nothing(api: FakeKubernetes, tmp_path: Path) -> None:
    api.refusal = "trainingruntimes is forbidden"
    with pytest.raises(InputError, match="trainingruntimes is forbidden"):
        KubernetesLauncher().submit(spec(tmp_path))
    assert all(not stored for stored in api.objects.values())


def run(api: FakeKubernetes, tmp_path: Path, act: Callable[[str], object], **options: Any) -> None:
    """Run a worker while ``act`` is what the cluster does to its TrainJob."""

    def play() -> None:
        wait_for(
            lambda: any("ownerReferences" in r["metadata"] for r in api.objects["trainingruntimes"].values()), 20, "job"
        )
        act(next(iter(api.objects["trainjobs"])))

    player = threading.Thread(target=play)
    player.start()
    try:
        run_worker("pkg.worker", tmp_path / "job.json", tmp_path / "run", nproc=16, profile=profile(), **options)
    finally:
        player.join()


def test_a_good_end(api: FakeKubernetes, tmp_path: Path) -> None:
    seen: list[Event] = []

    def act(job: str) -> None:
        api.pod(f"{job}-node-0-0-x", "Running")
        EventLog(tmp_path / "run/events.jsonl").write("started")
        assert find_worker(tmp_path / "run") is not None
        api.end(job, "Complete")

    run(api, tmp_path, act, on_event=seen.append)
    assert [e.kind for e in seen] == ["submitted", "started"]
    (runtime,), (job,) = api.objects["trainingruntimes"].values(), api.objects["trainjobs"].values()
    (owner,) = runtime["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TrainJob", job["metadata"]["uid"])
    assert any("fieldValidation=Strict" in path for method, path in api.requests if method == "POST")
    assert find_worker(tmp_path / "run") is None


def test_a_failed_rank(api: FakeKubernetes, tmp_path: Path) -> None:
    def act(job: str) -> None:
        api.pod(f"{job}-node-0-1-x", "Failed", terminated={"exitCode": 137, "reason": "OOMKilled"})
        api.end(job, "Failed", "JobsFailed")

    with pytest.raises(WorkerFailed, match="killed by signal 9"):
        run(api, tmp_path, act)


def test_an_evicted_pod_is_preemption(api: FakeKubernetes, tmp_path: Path) -> None:
    def act(job: str) -> None:
        api.pod(f"{job}-node-0-1-x", "Failed", reason="Evicted", message="The node was low on resource: memory.")
        api.end(job, "Failed", "JobsFailed")

    with pytest.raises(WorkerPreempted, match="low on resource: memory"):
        run(api, tmp_path, act)


def test_a_deleted_train_job_is_not_waited_for(api: FakeKubernetes, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailed, match=r"Kubeflow TrainJob pamp-.* was deleted"):
        run(api, tmp_path, lambda job: api.objects["trainjobs"].pop(job))


def test_an_interrupt_deletes_it_with_all_that_belongs_to_it(api: FakeKubernetes, tmp_path: Path) -> None:
    def act(job: str) -> None:
        api.pod(f"{job}-node-0-0-x", "Running")
        EventLog(tmp_path / "run/events.jsonl").write("started")

    def interrupt(event: Event) -> None:
        if event.kind == "started":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(api, tmp_path, act, on_event=interrupt)
    assert all(not stored for stored in api.objects.values())
