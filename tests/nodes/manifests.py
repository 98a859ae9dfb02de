"""The few objects that the lab's own tests put on its nodes."""

from typing import Any

import yaml

from tests.nodes.images import HOLDFAST

# As the training pods of holdfast run.
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
FOREVER = "while true; do sleep 1; done"


def container(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": HOLDFAST, "command": ["sh", "-c", script], **more}


def pod(name: str, *containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> str:
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "securityContext": RESTRICTED, **spec}
    return _manifest("v1", "Pod", {"name": name, "labels": labels or {}}, {**whole, "containers": list(containers)})


def headless_service(name: str) -> str:
    """For the pods with its name as the label `team`, whether or not they are ready."""
    spec = {"clusterIP": "None", "selector": {"team": name}, "publishNotReadyAddresses": True}
    return _manifest("v1", "Service", {"name": name}, spec)


def deployment(name: str, *containers: dict[str, Any]) -> str:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers)},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return _manifest("apps/v1", "Deployment", {"name": name}, spec)


def _manifest(version: str, kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> str:
    body = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    return yaml.safe_dump(body, explicit_start=True)
