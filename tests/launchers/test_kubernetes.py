"""The Kubernetes launcher: its manifests, and the official client against a fake API server over HTTP."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InfrastructureFailed, InputError, LauncherError, WorkerFailed, WorkerPreempted
from pamp_pipelines.lake.events import Event, EventLog
from pamp_pipelines.launchers import find_worker, run_worker
from pamp_pipelines.launchers import kubernetes as module
from pamp_pipelines.launchers.base import WorkerSpec, read_handle
from pamp_pipelines.launchers.kubernetes import KubernetesLauncher
from pamp_pipelines.launchers.kubernetes_manifests import job_manifest, service_manifest
from tests.launchers.conftest import wait_for
from tests.launchers.fake_kubernetes import FakeKubernetes

SNAPSHOT = Path(__file__).parent / "snapshots/kubernetes.json"


def profile(**fields: object) -> ComputeProfile:
    options = {"image": "registry/pamp:1", "poll_s": 0.05, **fields}
    return ComputeProfile.model_validate(
        {"launcher": "kubernetes", "nodes": 2, "processes_per_node": 8, "grace_s": 30, "kubernetes": options}
    )


def manifests() -> list[dict[str, object]]:
    compute = profile(
        claims={"lake": "/lake"},
        gpus=8,
        cpu="96",
        memory="1500Gi",
        secrets=["hub"],
        image_pull_policy="IfNotPresent",
        image_pull_secrets=["registry"],
        service_account="trainer",
        priority_class="high",
        node_selector={"gpu": "h100"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        labels={"kueue.x-k8s.io/queue-name": "llm"},
    )
    run_dir = Path("/lake/runs/m/c/v0001")
    spec = WorkerSpec("pkg.worker", run_dir / "job.json", run_dir, compute, 16, {"PRICE": "$(HOME) $5"})
    job = job_manifest(spec, "c0ffee", run_dir / "logs/start", "pamp-c0ffee")
    return [job, service_manifest(spec, "pamp-c0ffee", "u-i-d")]


def test_the_whole_manifests() -> None:
    assert manifests() == json.loads(SNAPSHOT.read_text()), "changed on purpose? write the new ones to the snapshot"


def array_manifest() -> dict[str, object]:
    run_dir = Path("/lake/run")
    spec = WorkerSpec("pkg.worker", Path("/lake/plan.json"), run_dir, profile(claims={"lake": "/lake"}), tasks=16)
    return job_manifest(spec, "c0ffee", run_dir / "logs/start", "pamp-c0ffee")


def test_the_tasks_of_an_array_are_the_indices_of_one_job() -> None:
    manifest = array_manifest()
    assert (manifest["spec"]["completions"], manifest["spec"]["parallelism"]) == (16, 16)
    assert manifest["spec"]["backoffLimitPerIndex"] == 0  # the others go on where one fails
    assert "backoffLimit" not in manifest["spec"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry for entry in container["env"]}
    assert env["PAMP_TASK"]["valueFrom"] == env["PET_NODE_RANK"]["valueFrom"]
    assert env["PAMP_TASKS"]["value"] == "16"
    assert container["command"][-3:] == ["-m", "pkg.worker", "/lake/plan.json"]


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
def test_the_published_schemas_take_the_manifests(version: str) -> None:
    for manifest in [*manifests(), array_manifest()]:
        kubernetes_validate.validate(manifest, version, strict=True)
    wrong = array_manifest()
    wrong["spec"]["paralelism"] = 16
    with pytest.raises(kubernetes_validate.ValidationError, match="paralelism"):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_an_image_is_needed() -> None:
    with pytest.raises(ValueError, match=r"kubernetes\.image"):
        ComputeProfile.model_validate({"launcher": "kubernetes"})


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes()
    (tmp_path / "kubeconfig").write_text(fake.kubeconfig())
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "run").mkdir()
    yield fake
    fake.close()


def submit(tmp_path: Path, processes: int | None = None) -> tuple[KubernetesLauncher, str]:
    launcher = KubernetesLauncher()
    spec = WorkerSpec("pkg.worker", tmp_path / "job.json", tmp_path / "run", profile(), processes)
    return launcher, launcher.submit(spec).id


class Play:
    """Does something to the cluster once the job is there."""

    def __init__(self, api: FakeKubernetes, act: object) -> None:
        self.thread = threading.Thread(target=self._play, args=(api, act))
        self.thread.start()

    def _play(self, api: FakeKubernetes, act: object) -> None:
        wait_for(lambda: bool(api.objects["services"]), 20, "job and service")
        act(next(iter(api.objects["jobs"])))


def run(api: FakeKubernetes, tmp_path: Path, act: object, nproc: int | None = None, **options: object) -> None:
    play = Play(api, act)
    try:
        run_worker("pkg.worker", tmp_path / "job.json", tmp_path / "run", nproc=nproc, profile=profile(), **options)
    finally:
        play.thread.join()


def test_a_good_end(api: FakeKubernetes, tmp_path: Path) -> None:
    seen = []

    def act(job: str) -> None:
        api.pod(f"{job}-0-x", "Running")
        EventLog(tmp_path / "run/events.jsonl").write("started")
        api.end(job, "Complete")

    run(api, tmp_path, act, nproc=16, on_event=seen.append)
    assert [e.kind for e in seen] == ["submitted", "started"]
    (service,) = api.objects["services"].values()
    (job,) = api.objects["jobs"].values()
    assert seen[0].data == {"launcher": "kubernetes", "job": job["metadata"]["name"]}
    assert service["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


def test_a_failed_rank(api: FakeKubernetes, tmp_path: Path) -> None:
    def act(job: str) -> None:
        api.pod(f"{job}-0-x", "Failed", terminated={"exitCode": 137, "reason": "OOMKilled"})
        log = read_handle(tmp_path / "run").log_dir / "start0/node0/worker.log"
        log.parent.mkdir(parents=True)
        log.write_text("the last line\n")
        api.end(job, "Failed", "BackoffLimitExceeded")

    with pytest.raises(WorkerFailed, match="killed by signal 9") as error:
        run(api, tmp_path, act)
    assert error.value.last_lines == ("the last line",)


def test_the_first_failed_task_of_an_array_is_named(api: FakeKubernetes, tmp_path: Path) -> None:
    def act(job: str) -> None:
        api.pod(f"{job}-3-x", "Failed", terminated={"exitCode": 2, "reason": "Error"})
        log = read_handle(tmp_path / "run").log_dir / "start0/node3/worker.log"
        log.parent.mkdir(parents=True)
        log.write_text("said by 3\n")
        api.end(job, "Failed", "FailedIndexes", failedIndexes="3,5-7")

    with pytest.raises(WorkerFailed, match=r"pkg\.worker task 3: exit status 2") as error:
        run(api, tmp_path, act, tasks=8)
    assert (error.value.exit_code, error.value.last_lines) == (2, ("said by 3",))


def test_an_evicted_pod_is_preemption(api: FakeKubernetes, tmp_path: Path) -> None:
    def act(job: str) -> None:
        api.pod(f"{job}-1-x", "Failed", reason="Evicted", message="The node was low on resource: memory.")
        api.end(job, "Failed", "BackoffLimitExceeded")

    with pytest.raises(WorkerPreempted, match="low on resource: memory"):
        run(api, tmp_path, act)


def test_a_deleted_pod_is_infrastructure(api: FakeKubernetes, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailed, match="BackoffLimitExceeded: a pod was deleted"):
        run(api, tmp_path, lambda job: api.end(job, "Failed", "BackoffLimitExceeded"))


def test_a_deleted_job_is_not_waited_for(api: FakeKubernetes, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailed, match="was deleted and left no exit status"):
        run(api, tmp_path, lambda job: api.objects["jobs"].pop(job))


def test_an_image_that_cannot_be_pulled(api: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMAGE_S", 0.3)

    def act(job: str) -> None:
        api.pod(f"{job}-0-x", "Pending", waiting={"reason": "ErrImagePull", "message": "manifest unknown"})

    with pytest.raises(InputError, match="ErrImagePull: manifest unknown"):
        run(api, tmp_path, act)
    assert api.objects["jobs"] == {}  # nothing is left pulling


def test_what_the_server_refuses(api: FakeKubernetes, tmp_path: Path) -> None:
    api.refusal = "quota exceeded: requests.nvidia.com/gpu=16"
    with pytest.raises(InputError, match="quota exceeded"):
        submit(tmp_path)


def test_a_silent_server_ends_nothing_and_nothing_is_submitted_twice(api: FakeKubernetes, tmp_path: Path) -> None:
    launcher, job = submit(tmp_path)
    api.pod(f"{job}-0-x", "Running")
    handle = read_handle(tmp_path / "run")
    api.down = True
    assert (launcher.poll(handle).reason, "does not answer" in launcher.poll(handle).detail) == ("running", True)
    with pytest.raises(LauncherError, match="does not answer"):
        launcher.find(tmp_path / "run")
    api.down = False
    assert find_worker(tmp_path / "run")[1] == handle
    api.end(job, "Complete")
    assert find_worker(tmp_path / "run") is None


def test_a_token_that_ran_out_ends_nothing(api: FakeKubernetes, tmp_path: Path) -> None:
    launcher, _ = submit(tmp_path)
    handle = read_handle(tmp_path / "run")
    api.expired = True
    assert (launcher.poll(handle).reason, "401" in launcher.poll(handle).detail) == ("running", True)
    with pytest.raises(LauncherError, match=r"handle\.json: it may still run kubernetes worker .*401"):
        find_worker(tmp_path / "run")  # for a retry to ask again
    api.expired = False
    assert find_worker(tmp_path / "run")[1] == handle


@pytest.mark.parametrize("text", ["", "apiVersion: v1\nclus", "api"])
def test_a_kubeconfig_that_is_being_written_ends_nothing(api: FakeKubernetes, tmp_path: Path, text: str) -> None:
    launcher, job = submit(tmp_path)
    handle = read_handle(tmp_path / "run")
    whole = (tmp_path / "kubeconfig").read_text()
    (tmp_path / "kubeconfig").write_text(text)
    assert (launcher.poll(handle).reason, "no Kubernetes cluster" in launcher.poll(handle).detail) == ("running", True)
    (tmp_path / "kubeconfig").write_text(whole)
    api.end(job, "Complete")
    assert KubernetesLauncher().poll(handle).exit_code == 0


def test_an_interrupt_deletes_the_job(api: FakeKubernetes, tmp_path: Path) -> None:
    def act(job: str) -> None:
        api.pod(f"{job}-0-x", "Running")
        EventLog(tmp_path / "run/events.jsonl").write("started")

    def interrupt(event: Event) -> None:
        if event.kind == "started":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(api, tmp_path, act, on_event=interrupt)
    assert api.objects["jobs"] == {}
    assert any(method == "DELETE" for method, _ in api.requests)


def test_logs_go_on_from_an_offset_when_the_pod_is_gone(api: FakeKubernetes, tmp_path: Path) -> None:
    launcher, job = submit(tmp_path)
    handle = read_handle(tmp_path / "run")
    assert launcher.logs(handle) == ("", 0)
    log = handle.log_dir / "start0/node0/worker.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    text, offset = launcher.logs(handle)
    api.objects["pods"].clear()
    with log.open("a") as stream:
        stream.write("two\n")
    assert (text, launcher.logs(handle, offset)) == ("one\n", ("two\n", 8))
    assert job in api.objects["jobs"]
