"""A job's TensorBoard: a Deployment and a Service that stand beside the workers and go with the job."""

from typing import Any

import msgspec

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate
from holdfast.pods.template import Defaults, container_security, escape_dollar
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.monitoring import enabled_monitoring
from holdfast.trainingjob.objects.object_store import StoreAccess, store_access, store_url
from holdfast.trainingjob.objects.pod import tolerations
from holdfast.trainingjob.objects.security import pod_security
from holdfast.trainingjob.objects.sidecar import CONTAINER as SIDECAR
from holdfast.trainingjob.objects.storage import TENSORBOARD, VOLUME, checkpoint_storage, is_volume, prefix, volume

PORT = 6006
FOLDER = "/tensorboard"
EVENTS_VOLUME = "events"


def has_tensorboard(job: TrainingJob) -> bool:
    """Whether the job has one; it shows what lies beside the checkpoints, so without them there is nothing to show."""
    watched = enabled_monitoring(job)
    return watched is not None and watched.tensorboard_enabled and checkpoint_storage(job) is not None


def tensorboard_deployment(job: TrainingJob, defaults: Defaults) -> dict[str, Any]:
    """For a job that wants TensorBoard."""
    labels = names.tensorboard_labels(job)
    return {
        "metadata": names.metadata(job, names.tensorboard(job), labelled=labels),
        "spec": {
            "replicas": 1,
            # The old pod lets go of the volume before the new one takes it.
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
    kept = checkpoint_storage(job) or CheckpointStorage()
    overlay = job.spec.pod_template or PodTemplate()
    spec: dict[str, Any] = {
        "serviceAccountName": names.service_account(job),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(job),
        **(_on_volume(job, kept, defaults) if is_volume(kept) else _in_bucket(job, kept, defaults)),
    }
    if overlay.image_pull_secrets:
        spec["imagePullSecrets"] = msgspec.to_builtins(overlay.image_pull_secrets)
    if kept.type == "pvc" and job.spec.num_workers == 1:
        spec |= _worker_affinity(job)
    return spec


def _on_volume(job: TrainingJob, kept: CheckpointStorage, defaults: Defaults) -> dict[str, Any]:
    events = {"name": VOLUME, "mountPath": FOLDER, "subPath": f"{prefix(job, kept)}/{TENSORBOARD}", "readOnly": True}
    return {"containers": [_container(events, defaults)], "volumes": [volume(job, kept)]}


def _in_bucket(job: TrainingJob, kept: CheckpointStorage, defaults: Defaults) -> dict[str, Any]:
    """A sidecar downloads the events. TensorBoard's image can't read every store, and is given no credentials."""
    access = store_access(kept)
    events = {"name": EVENTS_VOLUME, "mountPath": FOLDER}
    return {
        "initContainers": [_sidecar(job, kept, defaults, access, events)],
        "containers": [_container({**events, "readOnly": True}, defaults)],
        "volumes": [{"name": EVENTS_VOLUME, "emptyDir": {}}, *access.volumes],
    }


def _container(events: dict[str, Any], defaults: Defaults) -> dict[str, Any]:
    """`events` is the mount of the folder to show."""
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
    job: TrainingJob, kept: CheckpointStorage, defaults: Defaults, access: StoreAccess, events: dict[str, Any]
) -> dict[str, Any]:
    own = {"HOLDFAST_STORE": escape_dollar(store_url(job, kept)), "TENSORBOARD_DIR": FOLDER}
    resources = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    return {
        "name": SIDECAR,
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
    """One worker's claim may be one that a single node at a time can mount: TensorBoard follows the worker there.

    The attempt is in the selector, so that every new one moves it: it must not keep the volume from the next worker.
    """
    worker = {names.JOB_LABEL: job.metadata.name, names.ATTEMPT_LABEL: str(names.attempt(job))}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": worker}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"affinity": affinity, "tolerations": tolerations(job)}
