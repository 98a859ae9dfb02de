"""Puts a light machine behind each machine of the double of Compute Engine.

async with light_machines(cluster, now=now) as machines:
    cloud = ComputeEngine(now=now, addresses=lambda number: (machines.address(), ""))
    attached = AttachedMachines(cloud, cluster, machines, ca_cert_hashes=…)
    attached.faults.append({Fault.NO_KUBEADM})      # of the next machine that boots
"""

from contextlib import suppress
from datetime import datetime

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.times import format_time
from tests.contract.kinds import NODES
from tests.control_plane.nodes import FAKE
from tests.machines.cluster_info import ENDPOINT
from tests.machines.kubeadm_double import Wanted
from tests.machines.light_machine import Fault, LightMachine, LightMachines
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.compute_engine.supply import gpus


class AttachedMachines:
    """`tokens` are those of users; `endpoint` and `ca_cert_hashes` are what each JoinConfiguration has to say."""

    def __init__(
        self,
        cloud: ComputeEngine,
        cluster: Cluster,
        machines: LightMachines,
        *,
        ca_cert_hashes: tuple[str, ...],
        endpoint: str = ENDPOINT,
        tokens: tuple[str, ...] = (),
    ) -> None:
        self.faults: list[set[Fault]] = []
        """Of the machines that boot next, the first first; those after them have none."""
        self.machines = machines
        self._cloud = cloud
        self._cluster = cluster
        self._ca_cert_hashes = ca_cert_hashes
        self._endpoint = endpoint
        self._tokens = tokens
        cloud.hooks.on_running = self._boot
        cloud.hooks.on_power_off = self._power_off

    def __getitem__(self, name: str) -> LightMachine:
        """The machine of that name, if its power is on."""
        return self.machines.by_name[name]

    async def _boot(self, machine: FakeMachine) -> None:
        _, count = gpus(machine)
        wanted = Wanted(
            node_name=machine.name,
            provider_id=f"gce://{machine.project}/{machine.zone}/{machine.name}",
            uid=machine.name.removeprefix("holdfast-"),
            endpoint=self._endpoint,
            ca_cert_hashes=self._ca_cert_hashes,
            tokens=self._tokens,
        )
        light = await self.machines.boot(
            wanted,
            metadata=machine.attributes,
            gpus=int(count),
            faults=frozenset(self.faults.pop(0) if self.faults else ()),
            address=machine.internal_ip,
        )
        for line in light.host_keys:
            algorithm, key = line.split()
            machine.publish_host_key(algorithm, key)

    async def _power_off(self, machine: FakeMachine) -> None:
        await self.machines.power_off(machine.name)
        await silence(self._cluster, machine.name, self._cloud.now())


async def silence(cluster: Cluster, name: str, now: datetime) -> None:
    """As the controllers mark a Node that they have not heard of for a while; kwok leaves it alone from now on."""
    moment = format_time(now)
    unknown: JSON = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }
    with suppress(NotFound):
        await cluster.patch(NODES, Key("", name), {"metadata": {"labels": {FAKE: None}}})
        await cluster.patch_status(NODES, Key("", name), {"status": {"conditions": [unknown]}})
