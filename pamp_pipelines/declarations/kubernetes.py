"""What a compute profile asks of Kubernetes."""

from typing import Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, StringConstraints

from pamp_pipelines.declarations.base import Declaration

ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Name of a Kubernetes object (RFC 1123)."""

AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f]*$")]

Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")]


class KubernetesOptions(Declaration):
    """Where a job goes and what each of its pods gets: one pod is one node of the profile."""

    namespace: ObjectName = "default"
    """Namespace of all objects."""
    context: str | None = None
    """Context of the kubeconfig; default: its current one, inside a cluster the pod's service account."""
    workload: Literal["auto", "job", "train_job"] = "auto"
    """What a worker of several processes is: ``train_job``, one of Kubeflow's Trainer 2; ``job``, an Indexed Job with a
    headless Service; ``auto``, a TrainJob where the cluster knows them. All other workers are Jobs."""
    image: str = ""
    """Image with pamp_pipelines installed; required."""
    image_pull_policy: str | None = None
    """Always, IfNotPresent or Never; default: the cluster's."""
    image_pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets for the registry."""
    python: str = "python"
    """Python inside the image."""
    claims: dict[ObjectName, AbsolutePath] = {}
    """Persistent volume claims by mount path. The lake must be at the same path here, in the pods and for Dagster."""
    gpus: NonNegativeInt = 0
    """GPUs of a pod (``nvidia.com/gpu``)."""
    cpu: Quantity | None = None
    """Cores of a pod."""
    memory: Quantity | None = None
    """Memory of a pod."""
    shared_memory: Quantity = "16Gi"
    """Size of /dev/shm, which NCCL and data loaders use."""
    secrets: tuple[ObjectName, ...] = ()
    """Secrets whose entries become environment variables."""
    service_account: ObjectName | None = None
    """Service account of the pods."""
    priority_class: ObjectName | None = None
    """Priority class of the pods."""
    node_selector: dict[str, str] = {}
    """Labels that the nodes must have."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Tolerations, as a pod has them."""
    labels: dict[str, str] = {}
    """Labels of the job, e.g. ``kueue.x-k8s.io/queue-name``."""
    poll_s: PositiveFloat = 15.0
    """Seconds between two questions to the API server."""
