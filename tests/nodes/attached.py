"""Puts a computer of a lab behind each machine of the double of Compute Engine.

lab = Lab(computers=8)
cloud = ComputeEngine(now=utc_now, addresses=addresses_in(lab))
attached = AttachedComputers(cloud, lab)
…
await attached.close()
"""

import asyncio
from collections.abc import Callable
from functools import partial

from tests.control_plane.kubectl import KubectlFailed
from tests.control_plane.waiting import eventually
from tests.nodes.computer import Computer
from tests.nodes.lab import Lab
from tests.operator.user import kubectl
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.compute_engine.supply import gpus

JOIN_WITHIN_S = 600.0


def addresses_in(lab: Lab) -> Callable[[int], tuple[str, str]]:
    return lambda number: (lab.computer_address(number), "")


class AttachedComputers:
    """Each boots when its machine runs, and loses its power with it. GPUs are offered once there is a Node."""

    def __init__(self, cloud: ComputeEngine, lab: Lab) -> None:
        self.by_name: dict[str, Computer] = {}
        self._cloud = cloud
        self._lab = lab
        self._offers: dict[str, asyncio.Task[None]] = {}
        cloud.hooks.on_running = self._boot
        cloud.hooks.on_power_off = self._power_off

    async def close(self) -> None:
        for name in tuple(self.by_name):
            await self._stop(name)

    async def _boot(self, machine: FakeMachine) -> None:
        number = self._cloud.made.index(machine)
        computer = await asyncio.to_thread(self._lab.new_computer, machine.attributes, number=number)
        self.by_name[machine.name] = computer
        algorithm, key = computer.host_key.split()
        machine.publish_host_key(algorithm, key)
        _, count = gpus(machine)
        if count:
            self._offers[machine.name] = asyncio.create_task(self._offer(machine.name, int(count)))

    async def _offer(self, name: str, count: int) -> None:
        """As a device plugin does some time after the kubelet has registered."""
        await eventually(partial(self._is_node, name), bool, what=f"Node {name}", within_s=JOIN_WITHIN_S)
        await asyncio.to_thread(self._lab.gpus, name, count)

    async def _is_node(self, name: str) -> bool:
        try:
            await kubectl(self._lab.plane, "get", "node", name)
        except KubectlFailed:
            return False
        return True

    async def _power_off(self, machine: FakeMachine) -> None:
        await self._stop(machine.name)

    async def _stop(self, name: str) -> None:
        if (offer := self._offers.pop(name, None)) is not None:
            offer.cancel()
            await asyncio.wait([offer])
        await asyncio.to_thread(self._lab.kill_computer, self.by_name.pop(name))
