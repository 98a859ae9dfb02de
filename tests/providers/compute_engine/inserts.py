"""What Compute Engine refuses of an insert beyond what its description says, at once and with these words."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tests.providers.compute_engine.catalog import ACCELERATORS, DISK_TYPES, MACHINE_TYPES, PUBLIC_IMAGES, Type
from tests.providers.compute_engine.refusals import Refused, forbidden, invalid, no_actor, not_found

LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
IMAGE = re.compile(
    r"(?:https://[^/]+/compute/v1/)?projects/([^/]+)/global/images/(?:family/)?[a-z]([-a-z0-9]*[a-z0-9])?"
)
LONGEST_METADATA_VALUE = 256 << 10
MOST_METADATA = 512 << 10

Body = Mapping[str, Any]


def require_permissions(body: Body, project: str, zone: str, permissions: Collection[str], user: str) -> None:
    """Those that an insert with this body needs."""
    machine = f"projects/{project}/zones/{zone}/instances/{body['name']}"
    for permission, resource in needed_permissions(body, project, zone, machine):
        if permission not in permissions:
            raise forbidden(permission, resource)
    for account in body.get("serviceAccounts", ()):
        if "iam.serviceAccounts.actAs" not in permissions:
            raise no_actor(account["email"], user)


def needed_permissions(body: Body, project: str, zone: str, machine: str) -> Iterator[tuple[str, str]]:
    yield "compute.instances.create", machine
    yield "compute.disks.create", f"projects/{project}/zones/{zone}/disks/{body['name']}"
    region = zone.rpartition("-")[0]
    interface = body["networkInterfaces"][0]
    subnetwork = interface.get("subnetwork", f"projects/{project}/regions/{region}/subnetworks/default")
    yield "compute.subnetworks.use", subnetwork
    if interface.get("accessConfigs"):
        yield "compute.subnetworks.useExternalIp", subnetwork
    for field, permission in (
        ("labels", "compute.instances.setLabels"),
        ("metadata", "compute.instances.setMetadata"),
        ("tags", "compute.instances.setTags"),
        ("serviceAccounts", "compute.instances.setServiceAccount"),
    ):
        if body.get(field):
            yield permission, machine
    image = body["disks"][0]["initializeParams"]["sourceImage"]
    found = IMAGE.fullmatch(image)
    if found and found[1] not in PUBLIC_IMAGES:
        yield "compute.images.useReadOnly", image


def require_sense(body: Body, project: str, zone: str, is_missing: Callable[[str], bool]) -> None:
    """is_missing: whether a resource, as in images/cos-109, is one that a test has taken away."""
    _require_resources(body, project, zone, is_missing)
    _require_scheduling(body)
    _require_gpus(body)
    for key, value in body.get("labels", {}).items():
        if not LABEL_KEY.fullmatch(key):
            raise invalid("resource.labels", key, "Label key must match " + LABEL_KEY.pattern)
        if not LABEL_VALUE.fullmatch(value):
            raise invalid("resource.labels", value, "Label value must match " + LABEL_VALUE.pattern)
    items = body.get("metadata", {}).get("items", ())
    for at, item in enumerate(items):
        if len(item["value"].encode()) > LONGEST_METADATA_VALUE:
            raise invalid(f"resource.metadata.items[{at}].value", item["value"], "Metadata value is too large.")
    if sum(len(item["key"]) + len(item["value"].encode()) for item in items) > MOST_METADATA:
        raise invalid("resource.metadata", "items", "Metadata is too large.")


def _require_resources(body: Body, project: str, zone: str, is_missing: Callable[[str], bool]) -> None:
    place = f"projects/{project}/zones/{zone}"
    kind = _name(body["machineType"], place, "machineTypes", "resource.machineType")
    if kind not in MACHINE_TYPES or is_missing(f"machineTypes/{kind}"):
        why = f"Machine type with name '{kind}' does not exist in zone '{zone}'."
        raise invalid("resource.machineType", body["machineType"], why)
    disk = body["disks"][0]["initializeParams"]
    disk_type = _name(disk["diskType"], place, "diskTypes", "resource.disks[0].initializeParams.diskType")
    if disk_type not in DISK_TYPES or is_missing(f"diskTypes/{disk_type}"):
        raise not_found(f"{place}/diskTypes/{disk_type}")
    if not IMAGE.fullmatch(disk["sourceImage"]):
        why = "The URL is malformed. Must be a valid image."
        raise invalid("resource.disks[0].initializeParams.sourceImage", disk["sourceImage"], why)
    if is_missing(f"images/{disk['sourceImage'].rpartition('/')[2]}"):
        raise not_found(disk["sourceImage"])
    if int(disk["diskSizeGb"]) < 10:
        why = "Disk size cannot be smaller than 10 GB."
        raise invalid("resource.disks[0].initializeParams.diskSizeGb", disk["diskSizeGb"], why)
    interface = body["networkInterfaces"][0]
    if "network" not in interface and "subnetwork" not in interface:
        raise invalid("resource.networkInterfaces[0]", "", "At least one network interface is required.")
    for field in ("network", "subnetwork"):
        name = str(interface.get(field, "")).rpartition("/")[2]
        if name and is_missing(f"{field}s/{name}"):
            raise not_found(interface[field])


def _require_scheduling(body: Body) -> None:
    scheduling = body["scheduling"]
    spot = scheduling.get("provisioningModel") == "SPOT"
    kind = body["machineType"].rpartition("/")[2]
    if spot and (scheduling.get("automaticRestart") or scheduling.get("onHostMaintenance") == "MIGRATE"):
        why = "Spot VMs can neither restart automatically nor be migrated."
        raise invalid("resource.scheduling.automaticRestart", "true", why)
    if not spot and scheduling.get("instanceTerminationAction") and "maxRunDuration" not in scheduling:
        why = (
            "You cannot specify a termination action for a VM instance that has the standard provisioning model "
            "(default). To use instance termination action, the VM instance must use the Spot, Reservation-Bound or "
            "Flex Start provisioning model."
        )
        raise invalid("resource.scheduling.instanceTerminationAction", scheduling["instanceTerminationAction"], why)
    if not spot and "preemptionNoticeDuration" in scheduling:
        why = "Preemption notice is only for Spot VMs."
        raise invalid("resource.scheduling.preemptionNoticeDuration", scheduling["preemptionNoticeDuration"], why)
    if not spot and kind.startswith("e2-") and scheduling.get("onHostMaintenance") == "TERMINATE":
        why = "Efficient instances do not support onHostMaintenance=TERMINATE unless they are preemptible."
        raise invalid("resource.scheduling.onHostMaintenance", "TERMINATE", why)


def _require_gpus(body: Body) -> None:
    kind = body["machineType"].rpartition("/")[2]
    machine_type = MACHINE_TYPES[kind]
    for attached in body.get("guestAccelerators", ()):
        _require_accelerator(attached, machine_type, kind, body["machineType"].split("/machineTypes/")[0])
    if (body.get("guestAccelerators") or machine_type.accelerators) and body["scheduling"].get(
        "onHostMaintenance", "MIGRATE"
    ) != "TERMINATE":
        why = "Instances with guest accelerators do not support live migration."
        raise invalid("resource.scheduling.onHostMaintenance", "MIGRATE", why)


def _require_accelerator(attached: Mapping[str, Any], machine_type: Type, kind: str, place: str) -> None:
    name = _name(
        attached["acceleratorType"], place, "acceleratorTypes", "resource.guestAccelerators[0].acceleratorType"
    )
    zones = ACCELERATORS.get(name, frozenset())
    if zones is not None and place.rpartition("/")[2] not in zones:
        raise not_found(f"{place}/acceleratorTypes/{name}")
    if not machine_type.takes_gpus:
        why = f"[{name}, {attached['acceleratorCount']}] features are not compatible for creating instance with {kind}."
        raise Refused(400, "badRequest", why)
    if attached["acceleratorCount"] not in (1, 2, 4, 8):
        why = "Number of accelerator cards attached to an instance must be one of [1, 2, 4, 8]."
        raise invalid("resource.guestAccelerators[0].acceleratorCount", attached["acceleratorCount"], why)


def _name(url: str, place: str, collection: str, field: str) -> str:
    """The last part of a resource of this zone."""
    beginning, _, name = url.rpartition("/")
    if not beginning.endswith(f"{place}/{collection}") and beginning != f"{place.split('/', 2)[2]}/{collection}":
        raise invalid(field, url, "The URL is malformed.")
    return name
