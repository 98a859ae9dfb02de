"""The short-lived pod that does the work where only a pod can mount the volume: on pvc and nfs of a real cluster."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import KIND, CheckpointStorage, PodTemplate, TrainingJob
from holdfast.workloads.trainingjob import checkpoints, names
from holdfast.workloads.trainingjob.scheduling import scheduling
from holdfast.workloads.trainingjob.security import container_security, pod_security

CONTAINER = "checkpoints"
# Not the workers' own label: the operator and the job's Services would take it for one.
LABEL = "holdfast.dev/checkpoints-of"
LONGEST_S = 6 * 3600


def address_of(job: TrainingJob, kept: CheckpointStorage) -> str:
    """Where the job's folder is, for people."""
    volume = (
        f"pvc/{kept.pvc_name or names.claim_name(job)}" if kept.type == "pvc" else f"{kept.nfs_server}:{kept.nfs_path}"
    )
    return f"{volume}/{checkpoints.prefix(job, kept)}"


def pod(
    job: TrainingJob, kept: CheckpointStorage, *, name: str, image: str, command: list[str], writes: bool
) -> dict[str, Any]:
    """It goes with the job, and ends by itself should nobody be left to delete it."""
    owner = {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
    }
    template = job.spec.pod_template or PodTemplate()
    where = {field: value for field, value in scheduling(job).items() if field in ("nodeSelector", "tolerations")}
    pull = {"imagePullSecrets": msgspec.to_builtins(template.image_pull_secrets)} if template.image_pull_secrets else {}
    return {
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {LABEL: job.metadata.name},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(job),
            "containers": [_container(job, kept, image, command, writes=writes)],
            "volumes": [checkpoints.volume(job, kept)],
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_beside_workers(job)]}},
            **pull,
            **where,
        },
    }


def _container(
    job: TrainingJob, kept: CheckpointStorage, image: str, command: list[str], *, writes: bool
) -> dict[str, Any]:
    mount = checkpoints.mount(job, kept)
    return {
        "name": CONTAINER,
        "image": image,
        "command": command,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}},
        "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount if writes else {**mount, "readOnly": True}],
    }


def _beside_workers(job: TrainingJob) -> dict[str, Any]:
    """A volume that one node alone can mount is on the workers' node."""
    term = {
        "labelSelector": {"matchLabels": {names.JOB_LABEL: job.metadata.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"weight": 100, "podAffinityTerm": term}
