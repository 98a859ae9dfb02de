"""A job's TensorBoard: a Deployment and a Service beside the workers, deleted with the job."""

from typing import Any

import msgspec

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate
from holdfast.pods.checkpoints import VOLUME, StoreAccess, store_access
from holdfast.pods.template import SIDECAR_CONTAINER, Defaults, container_security, escape_dollar
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.job import pod_security, tolerations
from holdfast.trainingjob.objects.services import enabled_monitoring
from holdfast.trainingjob.objects.storage import (
    TENSORBOARD,
    checkpoint_storage,
    is_volume,
    prefix,
    store_url,
    volume,
)

PORT = 6006
FOLDER = "/tensorboard"
EVENTS_VOLUME = "events"


def has_tensorboard(job: TrainingJob) -> bool:
    """Whether the job has a TensorBoard. It shows events stored beside the checkpoints, so it needs checkpoints."""
    monitoring = enabled_monitoring(job)
    return monitoring is not None and monitoring.tensorboard_enabled and checkpoint_storage(job) is not None


def tensorboard_deployment(job: TrainingJob, defaults: Defaults) -> dict[str, Any]:
    """For a job that wants TensorBoard."""
    labels = names.tensorboard_labels(job)
    return {
        "metadata": names.metadata(job, names.tensorboard(job), labelled=labels),
        "spec": {
            "replicas": 1,
            # The old pod releases the volume before the new pod mounts it.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _selector(job)},
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(job, defaults)},
        },
    }


def tensorboard_service(job: TrainingJob) -> dict[str, Any]:
    """For a job that wants TensorBoard."""
    port = {"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}
    return {
        "metadata": names.metadata(job, names.tensorboard(job), labelled=names.tensorboard_labels(job)),
        "spec": {"selector": _selector(job), "ports": [port]},
    }


def _selector(job: TrainingJob) -> dict[str, str]:
    return {names.TENSORBOARD_LABEL: job.metadata.name}


def _pod_spec(job: TrainingJob, defaults: Defaults) -> dict[str, Any]:
    storage = checkpoint_storage(job) or CheckpointStorage()
    template = job.spec.pod_template or PodTemplate()
    spec: dict[str, Any] = {
        "serviceAccountName": names.service_account(job),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(job),
        **(_on_volume(job, storage, defaults) if is_volume(storage) else _in_bucket(job, storage, defaults)),
    }
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = msgspec.to_builtins(template.image_pull_secrets)
    if storage.type == "pvc" and job.spec.num_workers == 1:
        spec |= _worker_affinity(job)
    return spec


def _on_volume(job: TrainingJob, storage: CheckpointStorage, defaults: Defaults) -> dict[str, Any]:
    events = {"name": VOLUME, "mountPath": FOLDER, "subPath": f"{prefix(job, storage)}/{TENSORBOARD}", "readOnly": True}
    return {"containers": [_container(events, defaults)], "volumes": [volume(job, storage)]}


def _in_bucket(job: TrainingJob, storage: CheckpointStorage, defaults: Defaults) -> dict[str, Any]:
    """A sidecar downloads the events. TensorBoard's image can't read every store, and gets no credentials."""
    access = store_access(storage)
    events = {"name": EVENTS_VOLUME, "mountPath": FOLDER}
    return {
        "initContainers": [_sidecar(job, storage, defaults, access, events)],
        "containers": [_container({**events, "readOnly": True}, defaults)],
        "volumes": [{"name": EVENTS_VOLUME, "emptyDir": {}}, *access.volumes],
    }


def _container(events: dict[str, Any], defaults: Defaults) -> dict[str, Any]:
    """`events` is the mount of the folder with the events."""
    resources = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    return {
        "name": TENSORBOARD,
        "image": defaults.tensorboard_image,
        "command": ["tensorboard", "--logdir", FOLDER, "--bind_all", "--port", str(PORT)],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}},
        "resources": resources if defaults.sidecar_reserves else {},
        "securityContext": container_security(),
        "volumeMounts": [events],
    }


def _sidecar(
    job: TrainingJob, storage: CheckpointStorage, defaults: Defaults, access: StoreAccess, events: dict[str, Any]
) -> dict[str, Any]:
    own = {"HOLDFAST_STORE": escape_dollar(store_url(job, storage)), "TENSORBOARD_DIR": FOLDER}
    resources = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    return {
        "name": SIDECAR_CONTAINER,
        "image": defaults.holdfast_image,
        "command": ["holdfast", "tensorboard-sidecar"],
        "restartPolicy": "Always",
        "env": [*({"name": name, "value": value} for name, value in own.items()), *access.env],
        "resources": resources if defaults.sidecar_reserves else {},
        "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [events, *access.mounts],
    }


def _worker_affinity(job: TrainingJob) -> dict[str, Any]:
    """The claim of a single worker may be mountable on one node only: TensorBoard follows the worker to its node.

    The selector has the attempt, so every new attempt moves TensorBoard: it must not block the next worker's mount.
    """
    worker = {names.JOB_LABEL: job.metadata.name, names.ATTEMPT_LABEL: str(names.attempt(job))}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": worker}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"affinity": affinity, "tolerations": tolerations(job)}
