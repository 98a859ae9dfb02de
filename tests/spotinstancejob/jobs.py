"""SpotInstanceJobs and what is seen of them, for tests: every function takes only what the test is about."""

from typing import Any

import msgspec

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Pod
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.checkpoints.images.newest import OwnedImage
from holdfast.checkpoints.images.reference import run_tag
from holdfast.spotinstancejob import names
from tests.trainingjobs import UID, at, stamp

JSON = dict[str, Any]
REPOSITORY = "registry.example.com/team/checkpoints"
OTHER_UID = "99999999-2222-3333-4444-555555555555"
GPU_CONTAINER: JSON = {
    "name": "training",
    "image": "registry.example.com/training:1",
    "command": ["python", "train.py"],
    "resources": {"requests": {"nvidia.com/gpu": 1}},
}
CPU_CONTAINER: JSON = {"name": "main", "image": "registry.example.com/training:1"}


def spot_job(
    *containers: JSON,
    spec: JSON | None = None,
    checkpoints: JSON | None = None,
    job_spec: JSON | None = None,
    pod_spec: JSON | None = None,
    template_metadata: JSON | None = None,
    status: JSON | None = None,
) -> SpotInstanceJob:
    """A SpotInstanceJob `ml/bert` of two replicas with one GPU each, with whatever else is given."""
    template: JSON = {"spec": {"containers": [*(containers or (GPU_CONTAINER,))], **(pod_spec or {})}}
    if template_metadata is not None:
        template["metadata"] = template_metadata
    body: JSON = {
        "metadata": {"name": "bert", "namespace": "ml", "uid": UID, "generation": 3, "resourceVersion": "7"},
        "spec": {
            "jobTemplate": {"spec": {"template": template, **(job_spec or {})}},
            "checkpointConfig": {
                "checkpointImageRepo": REPOSITORY,
                "checkpointInterval": "30m",
                **(checkpoints or {}),
            },
            "spotInstanceVMRef": {"name": "vm"},
            "gcpCredentialsSecretRef": {"name": "gcp-credentials"},
            **(spec or {}),
        },
    }
    if status is not None:
        body["status"] = status
    return msgspec.convert(body, SpotInstanceJob)


def replica_pod(replica: int, *, attempt: int = 0, labels: JSON | None = None, **more: Any) -> Pod:
    """The running pod of a replica's attempt."""
    job = names.job_name("bert", replica, attempt)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"uid-of-{job}", "controller": True}
    metadata = {
        "name": f"{job}-abcde",
        "namespace": "ml",
        "uid": f"uid-of-pod-{job}",
        "labels": {**names.replica_labels("bert", replica, attempt), **(labels or {})},
        "ownerReferences": [owner],
    }
    spec = {"nodeName": more.pop("node", "gpu-1")}
    return msgspec.convert(
        {"metadata": metadata, "spec": spec, "status": {"phase": more.pop("phase", "Running"), **more}}, Pod
    )


def finished_backup(
    number: int,
    replica: int = 0,
    *,
    containers: tuple[str, ...] = ("training",),
    built: tuple[str, ...] | None = None,
    phase: str = "Completed",
    mode: str = "application",
    owner: str = UID,
    name: str = "",
) -> CheckpointBackup:
    """A CheckpointBackup of the job that has ended. built: the containers whose images are pushed; all by default."""
    images = [{"name": each, "image": image(number, replica, each)} for each in containers]
    pushed = [
        {"containerName": each, "imageName": image(number, replica, each), "digest": digest(number, each)}
        for each in (containers if built is None else built)
    ]
    reference = {
        "apiVersion": "training.training.dcnlab.com/v1alpha1",
        "kind": "SpotInstanceJob",
        "name": "bert",
        "uid": owner,
        "controller": True,
    }
    body = {
        "metadata": {
            "name": name or names.backup_name("bert", replica, number),
            "namespace": "ml",
            "uid": f"uid-of-backup-{number}",
            "labels": names.replica_labels("bert", replica, 0),
            "ownerReferences": [reference],
        },
        "spec": {
            "schedule": "immediately",
            "podRef": {"name": "pod"},
            "registry": {"url": "registry.example.com", "repository": "team/checkpoints"},
            "containers": images,
            "mode": mode,
        },
        "status": {
            "run": 1,
            "phase": phase,
            "mode": mode,
            "lastCheckpointTime": stamp(number),
            "builtImages": pushed,
        },
    }
    return msgspec.convert(body, CheckpointBackup)


def image(number: int, replica: int = 0, container: str = "training", *, uid: str = UID) -> str:
    return f"{REPOSITORY}:{tag(number, replica, container, uid=uid)}"


def tag(number: int, replica: int = 0, container: str = "training", *, uid: str = UID) -> str:
    return run_tag(f"{uid}-r{replica}", container, number, at(number))


def digest(number: int, container: str = "training") -> str:
    return f"sha256:{number:062x}{len(container):02x}"


def owned_image(
    number: int,
    replica: int = 0,
    container: str = "training",
    *,
    uid: str = UID,
    mode: str = "application",
    **more: Any,
) -> OwnedImage:
    """An image of the job as its repository lists it."""
    labels = {"replica": str(replica), **more.pop("labels", {})}
    return OwnedImage(
        tag=more.pop("tag", "") or tag(number, replica, container, uid=uid),
        digest=more.pop("digest", "") or digest(number, container),
        owner_uid=more.pop("owner_uid", uid),
        container=container,
        run=1,
        mode=mode,
        labels=labels,
    )
