"""CheckpointBackups and what is seen of them, for tests: every function takes only what the test is about."""

from typing import Any

import msgspec

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Node, Pod
from holdfast.checkpointbackup.actions import Action
from holdfast.checkpointbackup.decision import decide
from holdfast.checkpointbackup.mode import BackedUpPod
from holdfast.checkpointbackup.snapshot import TIMING, CheckpointBackupSnapshot
from tests.trainingjobs import UID, at, stamp

JSON = dict[str, Any]
NODE, POD_UID = "gpu-3", "uid-of-trainer"
# A run that has just begun, at second 0.
BEGUN = {"run": 1, "startTime": stamp(0), "nodeName": NODE, "podUID": POD_UID, "mode": "container"}
IMAGE = {"containerName": "main", "imageName": "registry.example.com/checkpoints/trainer:1"}


def backup(spec: JSON | None = None, status: JSON | None = None, *, generation: int = 3) -> CheckpointBackup:
    """A CheckpointBackup `ml/save` of pod trainer, made a minute ago, with whatever else is given."""
    body: JSON = {
        "metadata": {
            "name": "save",
            "namespace": "ml",
            "uid": UID,
            "generation": generation,
            "resourceVersion": "7",
            "creationTimestamp": stamp(-60),
        },
        "spec": {
            "schedule": "immediately",
            "podRef": {"name": "trainer"},
            "registry": {"url": "registry.example.com", "repository": "checkpoints/trainer"},
            **(spec or {}),
        },
    }
    if status is not None:
        body["status"] = {"observedGeneration": generation, **status}
    return msgspec.convert(body, CheckpointBackup)


def scheduled(schedule: str = "*/30 * * * *", status: JSON | None = None, **spec: Any) -> CheckpointBackup:
    return backup({"schedule": schedule, **spec}, status)


def pod(phase: str = "Running", *, uid: str = POD_UID, on: str = NODE, **more: Any) -> Pod:
    metadata = {"name": "trainer", "namespace": "ml", "uid": uid, **more.pop("metadata", {})}
    spec = {"nodeName": on, "containers": [{"name": "main"}], **more.pop("spec", {})}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase, **more}}, Pod)


def details(*, containers: list[JSON] | None = None, uid: str = POD_UID, on: str = NODE, **spec: Any) -> BackedUpPod:
    """The same pod as it is read when a run begins."""
    body = {
        "metadata": {"name": "trainer", "namespace": "ml", "uid": uid},
        "spec": {"nodeName": on, "containers": containers or [{"name": "main"}], **spec},
    }
    return msgspec.convert(body, BackedUpPod)


def node(*, ready: bool = True, name: str = NODE) -> Node:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
    return msgspec.convert({"metadata": {"name": name}, "status": {"conditions": [condition]}}, Node)


def seen(it: CheckpointBackup, **facts: Any) -> CheckpointBackupSnapshot:
    """It, with a pod that runs on a ready node with an agent, unless something else is given."""
    usual = {"pod": pod(), "details": details(), "node": node(), "has_ready_agent": True}
    return CheckpointBackupSnapshot(backup=it, **{**usual, **facts})


def course(observed: CheckpointBackupSnapshot, seconds: float = 10) -> Action:
    """The one action that is decided on."""
    (action,) = decide(observed, at(seconds), TIMING)
    return action
