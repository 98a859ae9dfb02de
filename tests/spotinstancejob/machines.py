"""SpotInstanceVMs and ProvisionedInstances, for tests of the kind that orders machines."""

from typing import Any

import msgspec

from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.spotinstancejob import names
from tests.trainingjobs import UID, stamp

JSON = dict[str, Any]


def template(*zones: str, notice: str = "", gpus: int = 1, status: JSON | None = None) -> SpotInstanceVM:
    """A SpotInstanceVM `ml/vm` in us-central1-a, with these zones beside it."""
    gcp: JSON = {"project": "my-project", "zone": "us-central1-a", "machineType": "n1-standard-4"}
    if notice:
        gcp["preemptionNotice"] = notice
    body: JSON = {
        "metadata": {"name": "vm", "namespace": "ml", "uid": "uid-vm", "generation": 1},
        "spec": {
            "vmImage": "projects/p/global/images/i",
            "gpu": {"type": "nvidia-tesla-t4", "count": gpus},
            "gcp": gcp,
            "zones": list(zones),
        },
    }
    if status is not None:
        body["status"] = status
    return msgspec.convert(body, SpotInstanceVM)


def machine(
    replica: int = 0, *, attempt: int = 0, number: int = 0, deleted: bool = False, **status: Any
) -> ProvisionedInstance:
    """What was ordered for an attempt of `ml/bert`."""
    name = names.machine_object_name("bert", replica, attempt, number)
    owner = {
        "apiVersion": "training.training.dcnlab.com/v1alpha1",
        "kind": "SpotInstanceJob",
        "name": "bert",
        "uid": UID,
    }
    metadata: JSON = {
        "name": name,
        "namespace": "ml",
        "uid": f"uid-{name}",
        "labels": names.replica_labels("bert", replica, attempt),
        "ownerReferences": [owner],
    }
    if deleted:
        metadata["deletionTimestamp"] = stamp(0)
    body = {"metadata": metadata, "spec": {"vmRef": {"name": "vm"}, "zone": "us-central1-a"}, "status": status}
    return msgspec.convert(body, ProvisionedInstance)


def condition(kind: str, status: str, reason: str, message: str = "") -> JSON:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(0)}


READY = [condition(kind, "True", "Ready") for kind in ("Launched", "Joined", "GPUReady")]
