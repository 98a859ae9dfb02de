"""From a MachineSpec to the body of instances.insert, and from an instance to a Machine. Pure."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from holdfast.api.spotinstancevm import InstanceState
from holdfast.providers.errors import InvalidMachine
from holdfast.providers.protocol import Machine, MachineSpec
from holdfast.times import parse_optional_time

CLUSTER_LABEL = "holdfast-cluster"
INSTANCE_LABEL = "holdfast-instance"
JOB_LABEL = "holdfast-job"
LONGEST_LABEL = 63
# What the machine's own service account may do is for IAM to say, as Google advises.
MACHINE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

STATES: Mapping[str, InstanceState] = {
    "PENDING": "PROVISIONING",
    "PROVISIONING": "PROVISIONING",
    "STAGING": "STAGING",
    "REPAIRING": "STAGING",
    "RUNNING": "RUNNING",
    "PENDING_STOP": "STOPPING",
    "STOPPING": "STOPPING",
    "SUSPENDING": "STOPPING",
    "DEPROVISIONING": "STOPPING",
    "STOPPED": "TERMINATED",
    "SUSPENDED": "TERMINATED",
    "TERMINATED": "TERMINATED",
}


class _AccessConfig(Struct, frozen=True):
    nat_ip: str = field(name="natIP", default="")


class _NetworkInterface(Struct, frozen=True, rename="camel"):
    network_ip: str = field(name="networkIP", default="")
    access_configs: tuple[_AccessConfig, ...] = ()


class Instance(Struct, frozen=True, rename="camel"):
    name: str
    id: str = ""
    zone: str = ""
    status: str = ""
    creation_timestamp: str = ""
    labels: Mapping[str, str] = {}
    network_interfaces: tuple[_NetworkInterface, ...] = ()


# The same for a list: startup scripts of all machines in it would be many megabytes.
INSTANCE_FIELDS = "name,id,zone,status,creationTimestamp,labels,networkInterfaces(networkIP,accessConfigs/natIP)"


class Accelerator(Struct, frozen=True):
    """GPUs that a machine type brings."""

    type: str = field(name="guestAcceleratorType", default="")
    count: int = field(name="guestAcceleratorCount", default=0)


class MachineType(Struct, frozen=True):
    name: str = ""
    accelerators: tuple[Accelerator, ...] = ()


def to_machine(instance: Instance) -> Machine:
    interface = instance.network_interfaces[0] if instance.network_interfaces else _NetworkInterface()
    return Machine(
        name=instance.name,
        zone=instance.zone.rpartition("/")[2],
        id=instance.id,
        state=STATES.get(instance.status),
        internal_ip=interface.network_ip,
        external_ip=interface.access_configs[0].nat_ip if interface.access_configs else "",
        created_at=parse_optional_time(instance.creation_timestamp),
        uid=instance.labels.get(INSTANCE_LABEL, ""),
        cluster_uid=instance.labels.get(CLUSTER_LABEL, ""),
    )


def check_gpus(spec: MachineSpec, machine_type: MachineType) -> None:
    """A type that brings GPUs must bring those of the template; raises `InvalidMachine`."""
    if not machine_type.accelerators:
        return
    brought = machine_type.accelerators[0]
    what = f"machine type {spec.machine_type} brings {brought.count} {brought.type}"
    if not spec.gpu_count:
        raise InvalidMachine(f"{what}, and the template has no gpu: write type and count there", field="gpu")
    if brought.type != spec.gpu_type:
        raise InvalidMachine(f"{what}, and gpu.type is {spec.gpu_type}: correct one of the two", field="gpu.type")
    if brought.count != spec.gpu_count:
        raise InvalidMachine(f"{what}, and gpu.count is {spec.gpu_count}: correct one of the two", field="gpu.count")


def insert_body(spec: MachineSpec, project: str, machine_type: MachineType) -> dict[str, Any]:
    zone = f"projects/{project}/zones/{spec.zone}"
    body: dict[str, Any] = {
        "name": spec.name,
        "machineType": f"{zone}/machineTypes/{spec.machine_type}",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": _image(spec.image, project),
                    "diskSizeGb": str(spec.disk_size_gb),
                    "diskType": f"{zone}/diskTypes/{spec.disk_type}",
                },
            }
        ],
        "networkInterfaces": [_network_interface(spec, project)],
        "labels": labels(spec),
        "scheduling": _scheduling(spec),
    }
    if spec.network_tags:
        body["tags"] = {"items": list(spec.network_tags)}
    if spec.metadata:
        body["metadata"] = {"items": [{"key": key, "value": spec.metadata[key]} for key in sorted(spec.metadata)]}
    if spec.service_account:
        body["serviceAccounts"] = [{"email": spec.service_account, "scopes": [MACHINE_SCOPE]}]
    if spec.min_cpu_platform:
        body["minCpuPlatform"] = spec.min_cpu_platform
    if spec.gpu_count and not machine_type.accelerators:
        accelerator = f"{zone}/acceleratorTypes/{spec.gpu_type}"
        body["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": spec.gpu_count}]
    return body


def labels(spec: MachineSpec) -> dict[str, str]:
    found = {CLUSTER_LABEL: spec.cluster_uid, INSTANCE_LABEL: spec.uid}
    if spec.job:
        found[JOB_LABEL] = label_value(spec.job)
    return found


def label_value(text: str) -> str:
    """The text as a label's value; where it does not fit, the end is a digest that tells it from others."""
    value = re.sub(r"[^a-z0-9_-]", "-", text.lower())
    if len(value) <= LONGEST_LABEL:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{value[: LONGEST_LABEL - len(digest) - 1]}-{digest}"


def _scheduling(spec: MachineSpec) -> dict[str, Any]:
    # A machine that failed is replaced, never repaired.
    scheduling: dict[str, Any] = {"provisioningModel": "STANDARD", "automaticRestart": False}
    if spec.preemptible:
        scheduling["provisioningModel"] = "SPOT"
        if spec.preemption_notice_s is not None:
            scheduling["preemptionNoticeDuration"] = _duration(spec.preemption_notice_s)
    if spec.preemptible or spec.gpu_count:
        # Google moves no machine with GPUs. For others on demand it is the usual thing, and some types must be moved.
        scheduling["onHostMaintenance"] = "TERMINATE"
    if spec.max_run_duration_s is not None:
        scheduling["maxRunDuration"] = _duration(spec.max_run_duration_s)
    if spec.preemptible or spec.max_run_duration_s is not None:
        # Google refuses it for a machine on demand that nothing ends.
        scheduling["instanceTerminationAction"] = "DELETE"
    return scheduling


def _duration(seconds: int) -> dict[str, str]:
    return {"seconds": str(seconds)}


def _image(image: str, project: str) -> str:
    """A bare name is an image of the project."""
    return image if "/" in image else f"projects/{project}/global/images/{image}"


def _network_interface(spec: MachineSpec, project: str) -> dict[str, Any]:
    interface: dict[str, Any] = {}
    if spec.network or not spec.subnetwork:
        interface["network"] = _of_project(spec.network or "default", project, "global/networks")
    if spec.subnetwork:
        region = spec.zone.rpartition("-")[0]
        interface["subnetwork"] = _of_project(spec.subnetwork, project, f"regions/{region}/subnetworks")
    if spec.external_ip:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return interface


def _of_project(name: str, project: str, collection: str) -> str:
    return name if "/" in name else f"projects/{project}/{collection}/{name}"


def unknown_states(instances: Sequence[Instance]) -> set[str]:
    return {instance.status for instance in instances if instance.status not in STATES}
