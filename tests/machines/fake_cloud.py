"""A cloud in memory, as a `Provider`: faults are set on it, and every call is counted."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime

from msgspec import structs

from holdfast.providers.errors import MachineEnded, MachineNotFound, ProviderError, Stockout
from holdfast.providers.protocol import Machine, MachineList, MachineSpec


async def _nothing(_spec: MachineSpec) -> None:
    pass


class FakeCloud:
    """One project. Machines run as soon as they are made; `on_running` is what they do then."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.machines: dict[str, Machine] = {}
        """Those that are there, by name."""
        self.specs: dict[str, MachineSpec] = {}
        """Of all that were ever made."""
        self.preempted: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.sold_out: set[str] = set()
        self.unreachable: set[str] = set()
        self.errors: dict[str, Exception] = {}
        """By method, until they are taken out."""
        self.takes_s: dict[str, float] = {}
        self.on_running: Callable[[MachineSpec], Awaitable[None]] = _nothing
        self.gate: Callable[[str, str], None] = lambda method, moment: None
        """Called before and after each call that changes something."""
        self.is_closed = False
        self.external_ip = ""

    async def launch(self, spec: MachineSpec) -> Machine:
        await self._called("launch")
        if spec.name in self.machines:
            return self.machines[spec.name]
        if spec.name in self.specs:
            raise MachineEnded(f"{spec.name} was made and is gone", preempted=spec.name in self.preempted)
        if spec.zone in self.sold_out:
            raise Stockout(f"{spec.zone} has no {spec.machine_type} to spare")
        self.gate("launch", "before")
        number = len(self.specs) + 1
        self.specs[spec.name] = spec
        self.machines[spec.name] = Machine(
            name=spec.name,
            zone=spec.zone,
            id=str(number),
            state="RUNNING",
            internal_ip=f"10.0.0.{number}",
            external_ip=self.external_ip,
            created_at=self._now(),
            uid=spec.uid,
            cluster_uid=spec.cluster_uid,
        )
        await self.on_running(spec)
        self.gate("launch", "after")
        return self.machines[spec.name]

    async def get(self, zone: str, name: str) -> Machine:
        await self._called("get")
        return self._find(zone, name)

    async def list(self, cluster_uid: str) -> MachineList:
        await self._called("list")
        listed = (machine for machine in self.machines.values() if machine.cluster_uid == cluster_uid)
        reached = tuple(machine for machine in listed if machine.zone not in self.unreachable)
        return MachineList(machines=reached, unreachable=frozenset(self.unreachable))

    async def delete(self, zone: str, name: str, uid: str) -> None:
        await self._called("delete")
        self.gate("delete", "before")
        self.machines.pop(name, None)
        self.gate("delete", "after")

    async def is_preempted(self, zone: str, name: str, machine_id: str) -> bool:
        await self._called("is_preempted")
        return name in self.preempted

    async def zones(self, region: str = "") -> tuple[str, ...]:
        return ()

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        self.is_closed = True

    # What happens to machines.

    def take_back(self, name: str) -> None:
        """The notice is over, and the machine is gone."""
        self.preempted.add(name)
        self.machines.pop(name)

    def lose(self, name: str) -> None:
        """Somebody deletes it."""
        self.machines.pop(name)

    def stop(self, name: str) -> None:
        self.machines[name] = structs.replace(self.machines[name], state="TERMINATED")

    def only(self) -> str:
        """The name of the one machine that is there."""
        (name,) = self.machines
        return name

    def _find(self, zone: str, name: str) -> Machine:
        machine = self.machines.get(name)
        if machine is None or machine.zone != zone:
            raise MachineNotFound(f"there is no machine {name} in {zone}")
        return machine

    async def _called(self, method: str) -> None:
        self.calls[method] += 1
        if method in self.takes_s:
            await asyncio.sleep(self.takes_s[method])
        if method in self.errors:
            raise self.errors[method]


DOWN = ProviderError("the cloud answers 503")
