"""The Jobs of replicas as they go over the wire, and parts of them, for tests."""

import json
from typing import Any

import msgspec

from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.spotinstancejob.images import CheckpointImages, checkpoints_in_registry
from holdfast.spotinstancejob.replica_job import ReplicaAttempt, replica_job
from tests.spotinstancejob.golden import DEFAULTS
from tests.spotinstancejob.jobs import JSON, owned_image


def made(job: SpotInstanceJob, mode: Any = "container", **more: Any) -> JSON:
    """The Job as it goes over the wire."""
    attempt = ReplicaAttempt(**{"replica": 0, "attempt": 0, "mode": mode, **more})
    plain: JSON = json.loads(msgspec.json.encode(replica_job(job, attempt, DEFAULTS)))
    return plain


def pod_spec(job: SpotInstanceJob, mode: Any = "container", **more: Any) -> JSON:
    spec: JSON = made(job, mode, **more)["spec"]["template"]["spec"]
    return spec


def trainer(job: SpotInstanceJob, **more: Any) -> JSON:
    found: JSON = next(
        each for each in pod_spec(job, "application", **more)["containers"] if each["name"] == "training"
    )
    return found


def sidecar(job: SpotInstanceJob, **more: Any) -> JSON:
    *_, found = pod_spec(job, "application", **more)["initContainers"]
    assert found["name"] == "holdfast-sidecar"
    return dict(found)


def variables(container: JSON) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def checkpoint(job: SpotInstanceJob, *containers: str, mode: str = "container", **labels: str) -> CheckpointImages:
    images = [owned_image(7, 1, name, mode=mode, labels=labels) for name in containers or ("training",)]
    (found,) = checkpoints_in_registry(job, images)
    return found
