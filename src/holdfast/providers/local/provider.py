"""The provider of machines on this computer.

A machine is written down before its node starts and stays listed when it is gone, so that a launch that is repeated
after a crash finds the first machine, or that it has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.providers.errors import InvalidMachine, MachineEnded, MachineNotFound, ProviderError, Stockout
from holdfast.providers.local.runner import LocalNodeSpec, NodeRunner
from holdfast.providers.local.state import LocalMachine, MachineTable
from holdfast.providers.local.trace import Fleet, TraceEvent
from holdfast.providers.protocol import Machine, MachineList, MachineSpec

NOTICE_S = 30.0
RETRY_S = 1.0
ENDING = ("STOPPING", "TERMINATED")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class SpotMarket(Struct, frozen=True, kw_only=True):
    """What becomes of spot machines beyond what commands ask for."""

    notice_s: float = NOTICE_S
    """How long before its end a machine gets its notice, unless its template says otherwise."""
    trace: Sequence[TraceEvent] | None = None
    """A log that says how many spot machines there may be; without one there is no limit."""
    speed: float = 1.0
    """How many seconds of the log pass in a second."""


CALM = SpotMarket()


class LocalProvider:
    """`Provider` for this computer, whatever the project; it works inside `running`.

    `template_zones` are the zones that may be asked for, `sold_out` those without a machine to spare.
    """

    def __init__(
        self,
        table: MachineTable,
        runner: NodeRunner,
        *,
        now: Callable[[], datetime],
        market: SpotMarket = CALM,
        template_zones: Callable[[], Iterable[str]] = tuple,
        sold_out: Callable[[], Iterable[str]] = tuple,
        require_leadership: Callable[[], None] = lambda: None,
    ) -> None:
        self._table = table
        self._runner = runner
        self._now = now
        self._market = market
        self._template_zones = template_zones
        self._sold_out = sold_out
        self._require_leadership = require_leadership
        self._fleet: Fleet | None = None
        self._locks: dict[str, asyncio.Lock] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._deadlines_changed = asyncio.Event()

    # What an operator asks of a cloud.

    async def launch(self, spec: MachineSpec) -> Machine:
        self._require_leadership()
        async with self._lock(spec.name):
            machine = self._table.find(spec.name)
            if machine is None:
                machine = await self._accept(spec)
            elif (machine.uid, machine.zone) != (spec.uid, spec.zone):
                raise InvalidMachine(
                    f"machine {spec.name} is there already, in zone {machine.zone} and for another object"
                )
            elif machine.is_gone:
                raise _ended(machine)
            return (await self._start(machine)).as_listed()

    async def get(self, zone: str, name: str) -> Machine:
        machine = self._living(zone, name)
        if machine is None:
            raise MachineNotFound(f"there is no machine {name} in zone {zone}")
        return machine.as_listed()

    async def list(self, cluster_uid: str) -> MachineList:
        machines = (each for each in self._table if not each.is_gone and each.cluster_uid == cluster_uid)
        return MachineList(machines=tuple(machine.as_listed() for machine in machines))

    async def delete(self, zone: str, name: str, uid: str) -> None:
        self._require_leadership()
        machine = self._living(zone, name)
        if machine is not None and machine.uid != uid:
            raise InvalidMachine(f"machine {name} belongs to another object, so it is not deleted")
        if machine is not None:
            await self._end(name)

    async def is_preempted(self, zone: str, name: str, machine_id: str) -> bool:
        machine = self._table.find(name)
        if machine is None or (machine.zone, machine.id) != (zone, machine_id):
            return False
        return machine.preempted_at is not None

    async def zones(self, region: str = "") -> tuple[str, ...]:
        up = sorted(set(self._template_zones()) - set(self._sold_out()))
        return tuple(zone for zone in up if not region or zone.rpartition("-")[0] == region)

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        """None: the nodes join by themselves, and nobody logs in."""
        return ()

    async def close(self) -> None:
        """The machines go on: they belong to `running`."""

    # What a cloud does by itself.

    async def preempt(self, name: str, *, notice_s: float | None = None) -> datetime:
        """Take a machine back; returns when it ends. A machine that is taken back already may only end earlier.

        Raises `MachineNotFound` for one that was never made, and `MachineEnded`.
        """
        async with self._lock(name):
            machine = self._table.find(name)
            if machine is None:
                raise MachineNotFound(f"there is no machine {name}")
            if machine.state in ENDING:
                raise _ended(machine)
            if not machine.preemptible:
                raise InvalidMachine(
                    f"machine {name} is an on-demand machine, which no cloud takes back: write preemptible: true",
                    field="preemptible",
                )
            now = self._now()
            deadline = now + timedelta(seconds=self._notice_s(machine) if notice_s is None else notice_s)
            if machine.deadline is not None and machine.deadline <= deadline:
                return machine.deadline
            machine = replace(machine, preempted_at=machine.preempted_at or now, deadline=deadline)
            await self._table.put(machine)
        log.info("machine is taken back", machine=name, deadline=deadline.isoformat())
        if deadline > now:
            self._runner.announce(name, deadline)
        self._deadlines_changed.set()
        return deadline

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LocalProvider"]:
        """Start the machines of an earlier run, and end those whose time has come."""
        await asyncio.gather(*(self._resume(machine) for machine in self._table))
        work = [asyncio.create_task(self._end_overdue(), name="ends of machines")]
        if self._market.trace is not None:
            self._fleet = Fleet(each.name for each in self._table if each.preemptible and not each.is_gone)
            first = [event for event in self._market.trace if event.change == "add" and event.at_s <= 0]
            for event in first:  # before anybody asks for a machine
                self._fleet.apply(event)
            work.append(asyncio.create_task(self._replay(self._fleet, self._market.trace), name="log of machines"))
        try:
            yield self
        finally:
            for task in (*work, *self._ending.values()):
                task.cancel()
            await asyncio.gather(*work, *self._ending.values(), return_exceptions=True)

    async def _accept(self, spec: MachineSpec) -> LocalMachine:
        if spec.zone in self._sold_out():
            raise Stockout(f"zone {spec.zone} has no machine to spare")
        if self._fleet is not None and spec.preemptible and not self._fleet.take(spec.name):
            raise Stockout(f"zone {spec.zone} has no machine to spare: the replayed log has no more of them now")
        now = self._now()
        longest = spec.max_run_duration_s
        machine = self._table.new(spec, now, None if longest is None else now + timedelta(seconds=longest))
        try:
            await self._table.put(machine)
        except ProviderError:
            self._release(spec.name)
            raise
        return machine

    async def _start(self, machine: LocalMachine) -> LocalMachine:
        if machine.state != "PROVISIONING":
            return machine
        try:
            await self._runner.start(_node(machine))
        except HoldfastError as error:
            raise ProviderError(f"machine {machine.name} does not start: {error}") from error
        running = replace(machine, state="RUNNING")
        await self._table.put(running)
        self._deadlines_changed.set()
        return running

    async def _resume(self, machine: LocalMachine) -> None:
        """What ran is started again; what was about to end, or can't be started, ends."""
        if machine.is_gone:
            return
        is_due = machine.ends_at is not None and machine.ends_at <= self._now()
        if machine.state == "STOPPING" or is_due:
            await self._end(machine.name)
            return
        if machine.deadline is not None:
            self._runner.announce(machine.name, machine.deadline)
        try:
            await self._runner.start(_node(machine))
        except HoldfastError as error:
            log.error("a machine of an earlier run does not start again", machine=machine.name, reason=str(error))
            await self._end(machine.name)

    async def _end_overdue(self) -> None:
        while True:
            self._deadlines_changed.clear()
            ends = {machine.name: machine.ends_at for machine in self._table if machine.state not in ENDING}
            now = self._now()
            for name in (name for name, end in ends.items() if end is not None and end <= now):
                if name not in self._ending:
                    self._ending[name] = asyncio.create_task(self._end_for_sure(name), name=f"end of {name}")
            left_s = [(end - now).total_seconds() for end in ends.values() if end is not None and end > now]
            try:
                await asyncio.wait_for(self._deadlines_changed.wait(), min(left_s, default=None))
            except TimeoutError:
                continue

    async def _end_for_sure(self, name: str) -> None:
        try:
            while True:
                try:
                    return await self._end(name)
                except HoldfastError as error:
                    log.warning("a machine does not end yet", machine=name, reason=str(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            self._ending.pop(name, None)

    async def _end(self, name: str) -> None:
        async with self._lock(name):
            machine = self._table.find(name)
            if machine is None or machine.is_gone:
                return
            stopping = replace(machine, state="STOPPING")
            await self._table.put(stopping)
            try:
                await self._runner.kill(name)
            except HoldfastError as error:
                raise ProviderError(f"machine {name} does not end: {error}") from error
            await self._table.put(replace(stopping, state="TERMINATED"))
            self._release(name)
            log.info("machine is gone", machine=name, preempted=machine.preempted_at is not None)

    async def _replay(self, fleet: Fleet, trace: Sequence[TraceEvent]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for event in trace:
            await asyncio.sleep(max(0.0, began_s + event.at_s / self._market.speed - loop.time()))
            taken_back = fleet.apply(event)
            if taken_back:
                try:
                    await self.preempt(taken_back)
                except ProviderError as error:  # it has ended meanwhile
                    log.info("the log takes a machine back that is no more", machine=taken_back, reason=str(error))

    def _release(self, name: str) -> None:
        if self._fleet is not None:
            self._fleet.release(name)

    def _living(self, zone: str, name: str) -> LocalMachine | None:
        machine = self._table.find(name)
        return machine if machine is not None and machine.zone == zone and not machine.is_gone else None

    def _notice_s(self, machine: LocalMachine) -> float:
        return self._market.notice_s if machine.notice_s is None else machine.notice_s

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


def _node(machine: LocalMachine) -> LocalNodeSpec:
    return LocalNodeSpec(
        name=machine.name,
        zone=machine.zone,
        uid=machine.uid,
        machine_type=machine.machine_type,
        gpu_type=machine.gpu_type,
        gpu_count=machine.gpu_count,
        preemptible=machine.preemptible,
    )


def _ended(machine: LocalMachine) -> MachineEnded:
    how = "was taken back" if machine.preempted_at is not None else "was deleted"
    return MachineEnded(f"machine {machine.name} was made and {how}", preempted=machine.preempted_at is not None)
