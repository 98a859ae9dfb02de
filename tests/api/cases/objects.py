"""The smallest valid object of every kind, and how cases are made of them."""

from copy import deepcopy
from typing import Any, NamedTuple

JSON = dict[str, Any]


class Case(NamedTuple):
    """`document` is accepted, or refused at `field` with a message that holds `says`."""

    title: str
    document: JSON
    field: str = ""
    says: str = ""


class Change(NamedTuple):
    """`document` in `status` is updated with `patch` (RFC 7386)."""

    title: str
    document: JSON
    status: JSON
    patch: JSON
    field: str = ""
    says: str = ""


class Report(NamedTuple):
    """A TrainingJob's status is accepted, or refused at `field`."""

    title: str
    status: JSON
    field: str = ""


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: what a merge patch makes of a value."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def training_job(spec: JSON | None = None, *, name: str = "bert") -> JSON:
    minimal = {"model": "bert-base", "dataset": "wiki text", "numWorkers": 2}
    return _object("ml.example.com/v1", "TrainingJob", name, merged(minimal, spec or {}))


def gpu_workload(spec: JSON | None = None, *, name: str = "inference") -> JSON:
    return _object(
        "gpu.warp.dev/v1alpha1", "GPUWorkload", name, merged({"modelName": "llama", "gpuCount": 2}, spec or {})
    )


def spot_job(spec: JSON | None = None, *, name: str = "spot") -> JSON:
    minimal = {
        "spotInstanceVMRef": {"name": "t4"},
        "gcpCredentialsSecretRef": {"name": "gcp-credentials", "namespace": "default"},
        "checkpointConfig": {"checkpointImageRepo": "gcr.io/my-project/checkpoints", "checkpointInterval": "30m"},
        "jobTemplate": {
            "spec": {
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            {"name": "training", "image": "training:1", "resources": {"limits": {"cpu": 1}}}
                        ],
                    }
                }
            }
        },
    }
    return _object("training.training.dcnlab.com/v1alpha1", "SpotInstanceJob", name, merged(minimal, spec or {}))


def spot_vm(spec: JSON | None = None) -> JSON:
    gcp = {"project": "my-gcp-project", "zone": "us-central1-a", "machineType": "n1-standard-4"}
    minimal = {"vmImage": "projects/cos-cloud/global/images/cos-stable", "gcp": gcp}
    return _object("training.training.dcnlab.com/v1alpha1", "SpotInstanceVM", "t4", merged(minimal, spec or {}))


def instance(spec: JSON | None = None) -> JSON:
    return _object(
        "training.training.dcnlab.com/v1alpha1",
        "ProvisionedInstance",
        "t4-0",
        merged({"vmRef": {"name": "t4"}, "zone": "us-central1-a"}, spec or {}),
    )


def backup(spec: JSON | None = None, *, version: str = "v1") -> JSON:
    minimal = {
        "schedule": "*/30 * * * *",
        "podRef": {"name": "trainer-0", "namespace": "ml-training"},
        "registry": {"url": "gcr.io", "repository": "my-project/checkpoints"},
    }
    return _object(f"migration.dcnlab.com/{version}", "CheckpointBackup", "hourly", merged(minimal, spec or {}))


def _object(api_version: str, kind: str, name: str, spec: JSON) -> JSON:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def variable(key: str = "GREETING") -> JSON:
    return {"name": key, "value": "hello"}
