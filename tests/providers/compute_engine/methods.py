"""The methods of the double, by the names that Google's description gives them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.providers.compute_engine import filters
from tests.providers.compute_engine.accounts import Account
from tests.providers.compute_engine.catalog import MACHINE_TYPES, region_of, zone_names
from tests.providers.compute_engine.inserts import require_permissions, require_sense
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.compute_engine.operations import FakeOperation
from tests.providers.compute_engine.refusals import Refused, forbidden, invalid, not_found, taken, unavailable

if TYPE_CHECKING:
    from tests.providers.compute_engine.double import ComputeEngine

MOST = 500


class Asked(NamedTuple):
    """A request that fits the description."""

    arguments: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    account: Account

    @property
    def project(self) -> str:
        return self.arguments["project"]

    @property
    def zone(self) -> str:
        return self.arguments["zone"]

    def require(self, permission: str, resource: str) -> None:
        if permission not in self.account.permissions:
            raise forbidden(permission, resource)


Handler = Callable[["ComputeEngine", Asked], Awaitable[Mapping[str, Any]]]


async def insert(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    _require_zone(asked)
    require_permissions(asked.body, asked.project, asked.zone, asked.account.permissions, asked.account.email)
    if first := _first_operation(cloud, asked, "insert"):
        return first.as_operation(cloud.root)
    require_sense(asked.body, asked.project, asked.zone, cloud.missing.__contains__)
    name = asked.body["name"]
    if (asked.project, asked.zone, name) in cloud.machines:
        raise taken(f"projects/{asked.project}/zones/{asked.zone}/instances/{name}")
    request_id = asked.query.get("requestId", "")
    operation = cloud.make(asked.project, asked.zone, asked.body, asked.account.email, request_id)
    return operation.as_operation(cloud.root)


async def delete(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    resource = _resource(asked)
    asked.require("compute.instances.delete", resource)
    _require_zone(asked)
    if first := _first_operation(cloud, asked, "delete"):
        return first.as_operation(cloud.root)
    machine = cloud.machines.get((asked.project, asked.zone, asked.arguments["instance"]))
    if machine is None or machine.being_deleted:  # it is listed while it goes, and can't be deleted again
        raise not_found(resource)
    operation = cloud.delete(machine, asked.account.email, asked.query.get("requestId", ""))
    return operation.as_operation(cloud.root)


async def get(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    asked.require("compute.instances.get", _resource(asked))
    return _machine(cloud, asked).as_instance(cloud.root)


async def aggregated_list(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    """All zones on every page, those without a machine with a warning, as Google does."""
    asked.require("compute.instances.list", f"projects/{asked.project}")
    unreachable = sorted(cloud.unreachable)
    if unreachable and asked.query.get("returnPartialSuccess") != "true":
        raise unavailable()
    instances = [
        machine.as_instance(cloud.root)
        for machine in sorted(cloud.machines.values(), key=lambda machine: (machine.zone, machine.name))
        if machine.project == asked.project and machine.zone not in cloud.unreachable
    ]
    page, following = _page(cloud, asked, instances)
    items: dict[str, Mapping[str, Any]] = {}
    for zone in zone_names():
        if found := [one for one in page if one["zone"].endswith(f"/{zone}")]:
            items[f"zones/{zone}"] = {"instances": found}
        else:
            code, why = ("UNREACHABLE", "") if zone in unreachable else ("NO_RESULTS_ON_PAGE", "There are no results")
            items[f"zones/{zone}"] = {"warning": {"code": code, "message": f"{why} for scope 'zones/{zone}'."}}
    answer: dict[str, Any] = {"kind": "compute#instanceAggregatedList", "items": items, **following}
    if unreachable:
        answer["unreachables"] = [f"projects/{asked.project}/zones/{zone}" for zone in unreachable]
    return answer


async def guest_attributes(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    asked.require("compute.instances.getGuestAttributes", _resource(asked))
    machine = _machine(cloud, asked)
    path = asked.query.get("queryPath", "")
    namespace, _, key = path.partition("/")
    found = [
        {"namespace": space, "key": name, "value": value}
        for (space, name), value in sorted(machine.guest_attributes.items())
        if space == namespace and key in ("", name)
    ]
    if not found:
        raise Refused(404, "notFound", f"The resource '{path}' of type 'Guest Attribute' was not found.")
    return {
        "kind": "compute#guestAttributes",
        "queryPath": path,
        "queryValue": {"items": found},
        "selfLink": f"{cloud.root}/{machine.path}/guestAttributes/{path}",
    }


async def simulate_maintenance(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    asked.require("compute.instances.simulateMaintenanceEvent", _resource(asked))
    machine = _machine(cloud, asked)
    if machine.status != "RUNNING":
        raise Refused(400, "resourceNotReady", f"The resource '{machine.path}' is not ready")
    operation = cloud.operation("simulateMaintenanceEvent", machine, user=asked.account.email)
    operation.end(cloud.now())
    if machine.is_spot:
        cloud.preempt(machine)
    return operation.as_operation(cloud.root)


async def wait(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    operation = _operation(cloud, asked)
    early_s = cloud.wait_answers_after_s
    with suppress(TimeoutError):
        await asyncio.wait_for(operation.done.wait(), cloud.pace.wait_s if early_s is None else early_s)
    return operation.as_operation(cloud.root)


async def get_operation(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    return _operation(cloud, asked).as_operation(cloud.root)


async def list_operations(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    place = f"projects/{asked.project}/zones/{asked.zone}"
    asked.require("compute.zoneOperations.list", place)
    _require_zone(asked)
    operations = [
        operation.as_operation(cloud.root)
        for operation in sorted(cloud.operations.values(), key=lambda operation: operation.name)
        if (operation.project, operation.zone) == (asked.project, asked.zone)
    ]
    page, following = _page(cloud, asked, operations)
    return {"kind": "compute#operationList", "id": f"{place}/operations", "items": page, **following}


async def list_zones(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    asked.require("compute.zones.list", f"projects/{asked.project}")
    project = f"{cloud.root}/projects/{asked.project}"
    zones = [
        {
            "kind": "compute#zone",
            "name": zone,
            "region": f"{project}/regions/{region_of(zone)}",
            "status": "DOWN" if zone in cloud.zones_down else "UP",
        }
        for zone in zone_names()
    ]
    page, following = _page(cloud, asked, zones)
    return {"kind": "compute#zoneList", "items": page, **following}


async def get_machine_type(cloud: "ComputeEngine", asked: Asked) -> Mapping[str, Any]:
    name = asked.arguments["machineType"]
    resource = f"projects/{asked.project}/zones/{asked.zone}/machineTypes/{name}"
    asked.require("compute.machineTypes.get", resource)
    _require_zone(asked)
    found = MACHINE_TYPES.get(name)
    if found is None or f"machineTypes/{name}" in cloud.missing:
        raise not_found(resource)
    shown = {
        "kind": "compute#machineType",
        "name": name,
        "guestCpus": found.cpus,
        "memoryMb": found.memory_mb,
        "zone": asked.zone,
    }
    if found.accelerators:
        brought = {"guestAcceleratorType": found.accelerator, "guestAcceleratorCount": found.accelerators}
        return {**shown, "accelerators": [brought]}
    return shown


METHODS: Mapping[str, Handler] = {
    "instances.insert": insert,
    "instances.delete": delete,
    "instances.get": get,
    "instances.aggregatedList": aggregated_list,
    "instances.getGuestAttributes": guest_attributes,
    "instances.simulateMaintenanceEvent": simulate_maintenance,
    "zoneOperations.wait": wait,
    "zoneOperations.get": get_operation,
    "zoneOperations.list": list_operations,
    "zones.list": list_zones,
    "machineTypes.get": get_machine_type,
}


def _first_operation(cloud: "ComputeEngine", asked: Asked, kind: str) -> FakeOperation | None:
    """That of an earlier request with the same id."""
    request_id = asked.query.get("requestId")
    same = (
        one for one in cloud.operations.values() if request_id and one.request_id == request_id and one.kind == kind
    )
    return next(same, None)


def _page(
    cloud: "ComputeEngine", asked: Asked, items: Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Those that the filter leaves; the next page begins behind the last item of this one."""
    try:
        fits = filters.parse(asked.query.get("filter", ""))
    except filters.BadFilter as error:
        raise invalid("filter", asked.query["filter"], str(error)) from None
    found = [item for item in items if fits(item)]
    begin = int(asked.query.get("pageToken") or 0)
    end = begin + min(int(asked.query.get("maxResults", MOST)), cloud.page_size)
    return list(found[begin:end]), {"nextPageToken": str(end)} if end < len(found) else {}


def _operation(cloud: "ComputeEngine", asked: Asked) -> FakeOperation:
    name = asked.arguments["operation"]
    resource = f"projects/{asked.project}/zones/{asked.zone}/operations/{name}"
    asked.require("compute.zoneOperations.get", resource)
    operation = cloud.operations.get(name)
    if operation is None or (operation.project, operation.zone) != (asked.project, asked.zone):
        raise not_found(resource)
    return operation


def _machine(cloud: "ComputeEngine", asked: Asked) -> FakeMachine:
    _require_zone(asked)
    machine = cloud.machines.get((asked.project, asked.zone, asked.arguments["instance"]))
    if machine is None:
        raise not_found(_resource(asked))
    return machine


def _resource(asked: Asked) -> str:
    return f"projects/{asked.project}/zones/{asked.zone}/instances/{asked.arguments['instance']}"


def _require_zone(asked: Asked) -> None:
    if asked.zone not in zone_names():
        raise invalid("zone", asked.zone, f"Unknown zone: {asked.zone}.")
