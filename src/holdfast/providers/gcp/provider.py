"""Machines of Compute Engine: `Provider` for one project with one credential."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from random import Random
from typing import TypeVar

import structlog
from msgspec import Struct

from holdfast.providers.errors import (
    InvalidMachine,
    MachineEnded,
    MachineNotFound,
    ProviderError,
    QuotaExceeded,
    Stockout,
)
from holdfast.providers.gcp.credentials import GoogleServiceAccount
from holdfast.providers.gcp.endpoint import GOOGLE, GoogleEndpoint
from holdfast.providers.gcp.faults import MachineNameTaken, is_preemption, quoted
from holdfast.providers.gcp.http import AiohttpHttp, Http
from holdfast.providers.gcp.instance import (
    CLUSTER_LABEL,
    INSTANCE_FIELDS,
    Instance,
    MachineType,
    check_gpus,
    insert_body,
    to_machine,
    unknown_states,
)
from holdfast.providers.gcp.operations import INSERT, PREEMPTED, Operation, Operations
from holdfast.providers.gcp.requests import Call, ComputeApi, Observe
from holdfast.providers.gcp.tokens import TokenSource, own_identity_tokens, service_account_tokens
from holdfast.providers.protocol import Machine, MachineList, MachineSpec

PAGE = 500
HOST_KEYS = "hostkeys/"
# A machine whose deletion has ended may be shown for a moment longer.
STILL_LISTED_PAUSE_S = 2.0
STILL_LISTED_CHECKS = 3
# A wrong zone or project in a template: no machine can have been made there.
NOWHERE = frozenset(("gcp.zone", "gcp.project"))
# Google's own namespace of ids for repeated requests is a UUID; ours are made in this one.
REQUEST_NAMESPACE = uuid.UUID("5d0f2c1e-0b57-5a6c-9b7f-7b1f5f0a4d11")

T = TypeVar("T")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Warning(Struct, frozen=True):
    code: str = ""


class _Scope(Struct, frozen=True):
    instances: tuple[Instance, ...] = ()
    warning: _Warning = _Warning()


class _AggregatedList(Struct, frozen=True, rename="camel"):
    items: Mapping[str, _Scope] = {}
    unreachables: tuple[str, ...] = ()
    next_page_token: str = ""


class _Zone(Struct, frozen=True):
    name: str
    status: str = ""
    region: str = ""


class _ZoneList(Struct, frozen=True, rename="camel"):
    items: tuple[_Zone, ...] = ()
    next_page_token: str = ""


class _GuestAttribute(Struct, frozen=True):
    key: str = ""
    value: str = ""


class _GuestValue(Struct, frozen=True):
    items: tuple[_GuestAttribute, ...] = ()


class _GuestAttributes(Struct, frozen=True, rename="camel"):
    query_value: _GuestValue = _GuestValue()


class GcpProvider:
    """One project with one credential; see `Provider` for what the methods promise."""

    def __init__(self, api: ComputeApi, operations: Operations | None = None) -> None:
        self.project = api.project
        self._api = api
        self._operations = operations or Operations(api)
        self._machine_types: dict[tuple[str, str], MachineType] = {}
        self._asking_for_type = asyncio.Lock()
        self._unknown_states: set[str] = set()

    async def launch(self, spec: MachineSpec) -> Machine:
        """Found first by its insert operation, which tells even of a machine that is gone; then by its name."""
        tried = f"make machine {spec.name} in {spec.zone}"
        operation = await self._insert_operation(spec)
        if operation is None:
            operation = await self._insert(spec, tried)
        target_id = ""
        if operation is not None:
            operation = await _looked_at(self._operations.finished(spec.zone, operation, tried))
            operation.require_success(tried)
            target_id = operation.target_id
        try:
            machine = await _looked_at(self.get(spec.zone, spec.name))
        except MachineNotFound:
            if operation is None:
                raise ProviderError(f"can't {tried}: the name is taken, and no machine has it") from None
            preempted = await self.is_preempted(spec.zone, spec.name, target_id)
            raise MachineEnded(
                f"machine {spec.name} was made in {spec.zone}, and {'Google took it back' if preempted else 'is gone'}",
                preempted=preempted,
            ) from None
        if machine.uid != spec.uid:
            raise InvalidMachine(
                f"can't {tried}: a machine of that name is there that was not made for this: delete it"
            )
        return machine

    async def get(self, zone: str, name: str) -> Machine:
        call = Call(
            method="instances.get",
            verb="GET",
            path=f"zones/{zone}/instances/{name}",
            tried=f"look at machine {name} in {zone}",
            query={"fields": INSTANCE_FIELDS},
        )
        return self._machine(await self._api.send(call, Instance))

    async def list(self, cluster_uid: str) -> MachineList:
        query = {
            "filter": f'labels.{CLUSTER_LABEL} = "{cluster_uid}"',
            "maxResults": str(PAGE),
            "returnPartialSuccess": "true",
            "fields": f"items/*(instances({INSTANCE_FIELDS}),warning/code),unreachables,nextPageToken",
        }
        machines: dict[tuple[str, str], Machine] = {}
        unreachable: set[str] = set()
        while True:
            call = Call(
                method="instances.aggregatedList",
                verb="GET",
                path="aggregated/instances",
                tried=f"list the machines of project {self.project}",
                query=query,
            )
            page = await self._api.send(call, _AggregatedList)
            unreachable.update(scope.rpartition("/")[2] for scope in page.unreachables)
            for scope, content in page.items.items():
                if content.warning.code == "UNREACHABLE":
                    unreachable.add(scope.rpartition("/")[2])
                for instance in content.instances:
                    machine = self._machine(instance)
                    machines[machine.zone, machine.name] = machine
            if not page.next_page_token:
                return MachineList(machines=tuple(machines.values()), unreachable=frozenset(unreachable))
            query["pageToken"] = page.next_page_token

    async def delete(self, zone: str, name: str, uid: str) -> None:
        """Whatever is under way for the machine is waited for: one that is still being made is not gone."""
        tried = f"delete machine {name} in {zone}"
        try:
            await self._delete(zone, name, uid, tried)
        except InvalidMachine as error:
            if error.field not in NOWHERE:
                raise

    async def is_preempted(self, zone: str, name: str, machine_id: str) -> bool:
        operations = await self._operations.of_machine(zone, name)
        return any(
            operation.operation_type == PREEMPTED or any(is_preemption(error) for error in operation.errors)
            for operation in operations
            if machine_id in ("", operation.target_id)
        )

    async def zones(self, region: str = "") -> tuple[str, ...]:
        query = {"maxResults": str(PAGE), "fields": "items(name,status,region),nextPageToken"}
        found: list[str] = []
        while True:
            tried = f"list the zones of project {self.project}"
            call = Call(method="zones.list", verb="GET", path="zones", tried=tried, query=query)
            page = await self._api.send(call, _ZoneList)
            found += [
                zone.name
                for zone in page.items
                if zone.status == "UP" and (not region or zone.region.rpartition("/")[2] == region)
            ]
            if not page.next_page_token:
                return tuple(sorted(found))
            query["pageToken"] = page.next_page_token

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        call = Call(
            method="instances.getGuestAttributes",
            verb="GET",
            path=f"zones/{zone}/instances/{name}/getGuestAttributes",
            tried=f"ask for the host keys of machine {name} in {zone}",
            query={"queryPath": HOST_KEYS},
        )
        try:
            attributes = await self._api.send(call, _GuestAttributes)
        except MachineNotFound:  # the guest has written none yet, or there is no machine
            return ()
        return tuple(f"{one.key} {one.value.strip()}" for one in attributes.query_value.items)

    async def simulate_preemption(self, zone: str, name: str) -> None:
        """For drills: Google preempts a spot machine as it does at need; a machine on demand has a maintenance."""
        tried = f"preempt machine {name} in {zone}"
        call = Call(
            method="instances.simulateMaintenanceEvent",
            verb="POST",
            path=f"zones/{zone}/instances/{name}/simulateMaintenanceEvent",
            tried=tried,
            changes=True,
        )
        operation = await self._operations.finished(zone, await self._api.send(call, Operation), tried)
        operation.require_success(tried)

    async def close(self) -> None:
        await self._operations.close()
        await self._api.close()

    async def _insert_operation(self, spec: MachineSpec) -> Operation | None:
        """That of an earlier call: the last one, should there be several."""
        inserts = [
            operation
            for operation in await self._operations.of_machine(spec.zone, spec.name)
            if operation.operation_type == INSERT
            and not any(error.code == "RESOURCE_ALREADY_EXISTS" for error in operation.errors)
        ]
        return inserts[-1] if inserts else None

    async def _insert(self, spec: MachineSpec, tried: str) -> Operation | None:
        """None when the name is taken by a machine whose operation is not listed any more."""
        machine_type = await self._machine_type(spec, tried)
        check_gpus(spec, machine_type)
        call = Call(
            method="instances.insert",
            verb="POST",
            path=f"zones/{spec.zone}/instances",
            tried=tried,
            query={"requestId": request_id(spec.uid, INSERT)},
            body=insert_body(spec, self.project, machine_type),
            changes=True,
        )
        try:
            return await self._api.send(call, Operation)
        except MachineNameTaken:
            return await _looked_at(self._insert_operation(spec))

    async def _machine_type(self, spec: MachineSpec, tried: str) -> MachineType:
        """Asked for once: types do not change."""
        key = spec.zone, spec.machine_type
        async with self._asking_for_type:
            if (known := self._machine_types.get(key)) is None:
                path = f"zones/{spec.zone}/machineTypes/{spec.machine_type}"
                query = {"fields": "name,accelerators"}
                call = Call(method="machineTypes.get", verb="GET", path=path, tried=tried, query=query)
                known = self._machine_types[key] = await self._api.send(call, MachineType)
        return known

    async def _delete(self, zone: str, name: str, uid: str, tried: str) -> None:
        # A repeated request gets the operation of the first; where that did not do, another id asks for another one.
        verb = "delete"
        while True:
            call = Call(
                method="instances.delete",
                verb="DELETE",
                path=f"zones/{zone}/instances/{name}",
                tried=tried,
                query={"requestId": request_id(uid, verb)},
                changes=True,
            )
            try:
                operation = await self._api.send(call, Operation)
            except MachineNotFound:
                under_way = [one for one in await self._operations.of_machine(zone, name) if not one.is_done]
                if not under_way:
                    return
                for one in under_way:
                    await self._operations.finished(zone, one, tried)
                continue
            is_new = not operation.is_done
            operation = await self._operations.finished(zone, operation, tried)
            if await self._is_gone(zone, name):
                return
            if is_new and operation.errors:
                raise ProviderError(f"can't {tried}: {operation.errors[0].code}: {quoted(operation.errors[0].message)}")
            verb = f"delete after {operation.name}"

    async def _is_gone(self, zone: str, name: str) -> bool:
        for look in range(STILL_LISTED_CHECKS):
            if look:
                await asyncio.sleep(STILL_LISTED_PAUSE_S)
            try:
                await self.get(zone, name)
            except MachineNotFound:
                return True
        return False

    def _machine(self, instance: Instance) -> Machine:
        for state in unknown_states((instance,)) - self._unknown_states:
            self._unknown_states.add(state)
            log.warning("machine in a state that is not known", machine=instance.name, state=state)
        return to_machine(instance)


async def _looked_at(look: Awaitable[T]) -> T:
    """What Google refuses to show may be there: only a refused insert, or a failed one, says that nothing was made."""
    try:
        return await look
    except (InvalidMachine, QuotaExceeded, Stockout) as error:
        raise ProviderError(str(error)) from None


def request_id(uid: str, verb: str) -> str:
    """The same for the same machine and verb, so that a request that is sent twice does its work once."""
    return str(uuid.uuid5(REQUEST_NAMESPACE, f"{uid}/{verb}"))


def connect(
    project: str,
    account: GoogleServiceAccount | None,
    *,
    now: Callable[[], datetime],
    random: Random,
    require_leadership: Callable[[], None],
    endpoint: GoogleEndpoint = GOOGLE,
    observe: Observe = lambda method, status: None,
    http: Http | None = None,
) -> GcpProvider:
    """A provider that connects at the first call. Without an account the operator's own identity is used."""
    http = http or AiohttpHttp()
    tokens: TokenSource
    if account is None:
        tokens = own_identity_tokens(http, random=random, address=endpoint.metadata)
    else:
        tokens = service_account_tokens(account, http, now=now, random=random, token_uri=endpoint.token_uri)
    api = ComputeApi(
        project,
        http,
        tokens,
        random=random,
        endpoint=endpoint,
        require_leadership=require_leadership,
        observe=observe,
    )
    return GcpProvider(api)
