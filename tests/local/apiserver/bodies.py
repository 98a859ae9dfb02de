"""The smallest objects that are accepted, and the kinds that the tests read whole."""

from typing import Any

from holdfast.cluster.protocol import JSON
from tests.contract.kinds import resource

SECRETS = resource("", "v1", "Secret", "secrets")
CLAIMS = resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENTS = resource("", "v1", "Event", "events")
LEASES = resource("coordination.k8s.io", "v1", "Lease", "leases")
TRAINING_JOBS = resource("ml.example.com", "v1", "TrainingJob", "trainingjobs")
BACKUPS = resource("migration.dcnlab.com", "v1", "CheckpointBackup", "checkpointbackups")
OLD_BACKUPS = resource("migration.dcnlab.com", "v1alpha1", "CheckpointBackup", "checkpointbackups")

CONTAINER = {"name": "main", "image": "registry.invalid/main:1"}


def pod(name: str = "one", *, labels: dict[str, str] | None = None, **spec: Any) -> JSON:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": [CONTAINER], **spec}}


def job(name: str = "one", *, pods: JSON | None = None, labels: dict[str, str] | None = None, **spec: Any) -> JSON:
    template = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER], **(pods or {})}}
    return {
        "metadata": {"name": name},
        "spec": {"template": {"metadata": {"labels": labels or {}}, **template}, **spec},
    }


def service(name: str = "one", **spec: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def training_job(name: str = "one", **spec: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": {"model": "mlp", "dataset": "digits", "numWorkers": 2, **spec}}
