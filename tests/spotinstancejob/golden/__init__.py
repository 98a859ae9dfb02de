"""The golden files: the objects of a replica's attempt, as a person has read them.

`python -m tests.spotinstancejob.golden` writes them anew; read the difference before you keep it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.manifests import documents
from holdfast.api.schema.validation import validate_object
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.pods.template import Defaults
from holdfast.spotinstancejob.images import checkpoints_in_registry
from holdfast.spotinstancejob.replica_job import ReplicaAttempt, base_image_pod, replica_job, reports_config_map
from tests.spotinstancejob.jobs import CPU_CONTAINER, owned_image, spot_job
from tests.trainingjobs import UID

FOLDER = Path(__file__).parent
MANIFEST = Path(__file__).parents[2] / "fixtures/manifests/spotinstancejob.yaml"
DEFAULTS = Defaults(image="holdfast:1", holdfast_image="holdfast:1")
BASE = "registry.example.com/training@sha256:" + "b" * 64


def fixture() -> SpotInstanceJob:
    """The fixture's manifest as the API server would store it."""
    (document,) = documents(MANIFEST.read_text())
    job = msgspec.convert(validate_object(document), SpotInstanceJob)
    return structs.replace(job, metadata=structs.replace(job.metadata, namespace="default", uid=UID))


def first_attempt() -> list[dict[str, Any]]:
    """The fixture's replica 1, on any node."""
    job = fixture()
    attempt = ReplicaAttempt(replica=1, attempt=0, mode="application")
    return [replica_job(job, attempt, DEFAULTS), reports_config_map(job, '{"url": "https://10.0.0.9:8082"}\n')]


def restored_application() -> list[dict[str, Any]]:
    """A lost replica goes on from its survivor's image, on a machine of its own; an object store keeps its saves."""
    job = spot_job(
        checkpoints={
            "checkpointRepoCredentialRef": {"name": "registry"},
            "checkpointStorage": {"type": "gcs", "bucket": "trainings", "secretRef": {"name": "store"}},
        },
        pod_spec={"securityContext": {"runAsUser": 1000}, "imagePullSecrets": [{"name": "own"}]},
    )
    (checkpoint,) = checkpoints_in_registry(job, [owned_image(7, 1)])
    attempt = ReplicaAttempt(
        replica=0, attempt=3, mode="application", node="holdfast-1", checkpoint=checkpoint, reservation="bert-r0-3"
    )
    return [replica_job(job, attempt, DEFAULTS)]


def restored_container() -> list[dict[str, Any]]:
    """Two containers without GPUs go on from their memory, once their base image is on the node."""
    job = spot_job(
        CPU_CONTAINER,
        {"name": "logger", "image": "registry.example.com/logger:2"},
        checkpoints={"mode": "container", "checkpointImageRepo": "gcr.io/my-project/checkpoints"},
        job_spec={"backoffLimit": 3, "activeDeadlineSeconds": 86400},
    )
    labels = {"base-image": BASE, "runtime": "containerd 2.2.9", "cpu-flags": "avx sse"}
    images = [owned_image(7, 0, name, mode="container", labels=labels) for name in ("main", "logger")]
    (checkpoint,) = checkpoints_in_registry(job, images)
    attempt = ReplicaAttempt(
        replica=0, attempt=1, mode="container", node="gpu-7", checkpoint=checkpoint, pull_secret="bert-pull"
    )
    pod = base_image_pod(job, attempt, DEFAULTS)
    assert pod is not None
    return [pod, replica_job(job, attempt, DEFAULTS)]


EXAMPLES: Mapping[str, Any] = {
    "first-attempt": first_attempt,
    "restored-application": restored_application,
    "restored-container": restored_container,
}


def golden(name: str) -> Path:
    return FOLDER / f"{name}.yaml"
