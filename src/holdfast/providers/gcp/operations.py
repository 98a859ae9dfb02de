"""Operations: what becomes of a request that Google has accepted. They are listed for some weeks."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from holdfast.providers.gcp.faults import OperationError, operation_error
from holdfast.providers.gcp.requests import Call, ComputeApi
from holdfast.times import parse_optional_time

INSERT = "insert"
PREEMPTED = "compute.instances.preempted"
DONE = "DONE"
# A wait is answered after two minutes at the latest.
WAIT_S = 150.0
# Where it is answered early, it is not asked again at once.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
# How many machines one list is asked about: the filter is a part of the address.
MACHINES_PER_LIST = 40
PAGE = 500
FIELDS = (
    "name,operationType,status,targetLink,targetId,clientOperationId,insertTime,"
    "error/errors(code,message,location,errorDetails/quotaInfo)"
)


class _Errors(Struct, frozen=True):
    errors: tuple[OperationError, ...] = ()


class Operation(Struct, frozen=True, rename="camel"):
    name: str
    operation_type: str = ""
    status: str = ""
    target_link: str = ""
    target_id: str = ""
    client_operation_id: str = ""
    insert_time: str = ""
    error: _Errors | None = None

    @property
    def is_done(self) -> bool:
        return self.status == DONE

    @property
    def target(self) -> str:
        """The machine's name."""
        return self.target_link.rpartition("/")[2]

    @property
    def errors(self) -> tuple[OperationError, ...]:
        return self.error.errors if self.error else ()

    def require_success(self, tried: str) -> None:
        """Raises what the operation failed with."""
        if self.error is not None:
            raise operation_error(tried, self.errors)


class _OperationList(Struct, frozen=True, rename="camel"):
    items: tuple[Operation, ...] = ()
    next_page_token: str = ""


class Operations:
    """The operations of one project."""

    def __init__(self, api: ComputeApi) -> None:
        self._api = api
        self._lookups: dict[str, _Lookup] = {}

    async def finished(self, zone: str, operation: Operation, tried: str) -> Operation:
        """The operation when it is done, whether it has succeeded or failed."""
        clock, pause_s = asyncio.get_running_loop().time, FIRST_PAUSE_S
        while not operation.is_done:
            asked_s = clock()
            operation = await self._api.send(
                Call(
                    method="zoneOperations.wait",
                    verb="POST",
                    path=f"zones/{zone}/operations/{operation.name}/wait",
                    tried=tried,
                    timeout_s=WAIT_S,
                ),
                Operation,
            )
            early_s = pause_s - (clock() - asked_s)
            if not operation.is_done and early_s > 0:
                await asyncio.sleep(early_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return operation

    async def of_machine(self, zone: str, name: str) -> tuple[Operation, ...]:
        """All that was done to the machines of that name, the oldest first."""
        lookup = self._lookups.get(zone)
        if lookup is None:
            lookup = self._lookups[zone] = _Lookup(self._api, zone, lambda: self._lookups.pop(zone))
        return await lookup.find(name)

    async def close(self) -> None:
        for lookup in list(self._lookups.values()):
            await lookup.close()


class _Lookup:
    """Questions about machines of one zone. Those that come while one is on its way are asked together after it."""

    def __init__(self, api: ComputeApi, zone: str, on_idle: Callable[[], Any]) -> None:
        self._api = api
        self._zone = zone
        self._on_idle = on_idle
        self._waiting: dict[str, asyncio.Future[tuple[Operation, ...]]] = {}
        self._running: asyncio.Task[None] | None = None

    async def find(self, name: str) -> tuple[Operation, ...]:
        answer = self._waiting.get(name)
        if answer is None:
            answer = self._waiting[name] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_retrieve)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=f"operations of {self._zone}")
        return await asyncio.shield(answer)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def _run(self) -> None:
        asked: dict[str, asyncio.Future[tuple[Operation, ...]]] = {}
        try:
            while self._waiting:
                asked = {name: self._waiting.pop(name) for name in list(self._waiting)[:MACHINES_PER_LIST]}
                try:
                    found = await self._list(list(asked))
                except Exception as error:  # noqa: BLE001  # it belongs to those who asked
                    for answer in asked.values():
                        answer.set_exception(error)
                    continue
                for name, answer in asked.items():
                    answer.set_result(tuple(one for one in found if one.target == name))
        finally:
            for answer in (*asked.values(), *self._waiting.values()):
                answer.cancel()  # no effect on those that are answered
            self._on_idle()

    async def _list(self, names: list[str]) -> list[Operation]:
        machines = "|".join(sorted(names))  # letters, digits and hyphens: nothing to escape
        query = {
            # One field with a regular expression: Google combines no other filter with it.
            "filter": f'targetLink eq ".*/instances/({machines})"',
            "maxResults": str(PAGE),
            "fields": f"items({FIELDS}),nextPageToken",
        }
        found: list[Operation] = []
        while True:
            page = await self._api.send(
                Call(
                    method="zoneOperations.list",
                    verb="GET",
                    path=f"zones/{self._zone}/operations",
                    tried=f"look for the operations of {names[0]}{' and others' if names[1:] else ''} in {self._zone}",
                    query=query,
                ),
                _OperationList,
            )
            found += page.items
            if not page.next_page_token:
                return sorted(found, key=_order)
            query["pageToken"] = page.next_page_token


def _order(operation: Operation) -> tuple[float, str]:
    """Operations of one machine may begin within the same second, in zones of any time zone."""
    moment = parse_optional_time(operation.insert_time)
    return (moment.timestamp() if moment else 0.0, operation.name)


def _retrieve(answer: "asyncio.Future[tuple[Operation, ...]]") -> None:
    """Whoever waits has the error; if nobody waits any more, it is nobody's."""
    if not answer.cancelled():
        answer.exception()
