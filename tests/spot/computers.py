"""The computers behind the machines of the double: each boots, joins when told to, and goes off with its machine."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import INSTANCE_LABEL, SPOT_NODE_LABEL
from holdfast.cluster.errors import AlreadyExists, NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import NODES, PODS
from holdfast.machines.bootstrap_tokens import mint, revoke, token_id, token_of
from holdfast.machines.joining import HostKeySource, JoinFailed, JoinProgress, JoinRequest, JoinStep, JoinTarget, Report
from holdfast.pods.failure import PREEMPTED
from holdfast.pods.restore.nodes import RESTORE_LABEL, RESTORE_VALUE
from holdfast.times import format_time
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.compute_engine.supply import gpus

GPU = "nvidia.com/gpu"
HOME = "holdfast-system"
AGENT = {"app.kubernetes.io/name": "holdfast-node"}
BOOT_S, KUBEADM_S = 15.0, 10.0
# After so long without a sign of life the controllers of a cluster say so of a Node.
SILENCE_S = 40.0


class Computers:
    """Settings are attributes: they hold for what boots or joins later."""

    def __init__(self, engine: ComputeEngine, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._cluster = cluster
        self._now = now
        self.on: set[str] = set()
        """The names of machines whose power is on."""
        self.has_agents = True
        """Whether holdfast's agent runs on machines that join."""
        self.tells_notices = True
        """Whether the agents mark their Nodes when Google announces the end."""
        self.join_error: JoinFailed | None = None
        self.on_joined: Callable[[str], Any] = lambda name: None
        """Called before the operator sees the new Node."""
        self.joins: list[str] = []
        self._booted: dict[str, asyncio.Event] = {}
        self._joining: dict[str, asyncio.Task[None]] = {}
        engine.hooks.on_running = self._boot
        engine.hooks.on_warned = self._warn
        engine.hooks.on_power_off = self._power_off

    def booted(self, name: str) -> asyncio.Event:
        return self._booted.setdefault(name, asyncio.Event())

    async def join(self, name: str, uid: str) -> None:
        """kubeadm on that machine. What was begun goes on though nobody waits for it any more."""
        if name not in self._joining:
            self._joining[name] = asyncio.create_task(self._join(name, uid))
        await asyncio.shield(self._joining[name])

    async def add_node(self, name: str, *, gpus: int, labels: Mapping[str, str] | None = None) -> None:
        """A Node with an agent; without labels one that is always there."""
        room = {"cpu": "8", "memory": "64Gi", "pods": "110", GPU: str(gpus)}
        labels = {"kubernetes.io/hostname": name, RESTORE_LABEL: RESTORE_VALUE, **(labels or {})}
        self.on.add(name)
        status = {
            "capacity": room,
            "allocatable": room,
            "conditions": [self._condition("Ready")],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.2.9"},
        }
        await self._cluster.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status})
        if self.has_agents:
            await self.add_agent(name)

    async def add_agent(self, node: str) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "holdfast-node", "uid": "ds", "controller": True}
        metadata = {"name": f"agent-{node}"[:60], "labels": AGENT, "ownerReferences": [owner]}
        container = {"name": "agent", "image": "holdfast:test"}
        spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
        with suppress(AlreadyExists):
            await self._cluster.create(PODS, {"metadata": metadata, "spec": spec}, namespace=HOME)

    async def mark(self, name: str) -> None:
        """As the agent does at a notice."""
        await self._set(name, self._condition(PREEMPTED))

    async def fall_silent(self, name: str) -> None:
        """Nothing runs there any more, and after a while the cluster notices."""
        self.on.discard(name)
        await asyncio.sleep(SILENCE_S)
        await self._set(name, self._condition("Ready", "Unknown"))

    async def _set(self, name: str, condition: JSON) -> None:
        with suppress(NotFound):
            node = await self._cluster.get(NODES, Key("", name))
            others = [msgspec.to_builtins(each) for each in node.status.conditions if each.type != condition["type"]]
            await self._cluster.patch_status(NODES, Key("", name), {"status": {"conditions": [*others, condition]}})

    def _condition(self, kind: str, status: str = "True") -> JSON:
        return {"type": kind, "status": status, "lastTransitionTime": format_time(self._now()), "message": "so it is"}

    async def _boot(self, machine: FakeMachine) -> None:
        await asyncio.sleep(BOOT_S)
        self.on.add(machine.name)
        self.booted(machine.name).set()

    async def _join(self, name: str, uid: str) -> None:
        await self.booted(name).wait()
        await asyncio.sleep(KUBEADM_S)
        if name not in self.on:
            await asyncio.Event().wait()  # it went off meanwhile
        machine = self._engine.machine(name)
        self.on_joined(name)
        with suppress(AlreadyExists):
            await self.add_node(name, gpus=int(gpus(machine)[1]), labels={SPOT_NODE_LABEL: "true", INSTANCE_LABEL: uid})
        self.joins.append(name)

    async def _warn(self, machine: FakeMachine) -> None:
        if self.tells_notices and machine.name in self.on:
            await self.mark(machine.name)

    async def _power_off(self, machine: FakeMachine) -> None:
        await self.fall_silent(machine.name)

    def close(self) -> None:
        for task in self._joining.values():
            task.cancel()


class ScriptedJoiner:
    """Gives a machine a token of the real kind, and has it join."""

    def __init__(self, cluster: Cluster, computers: Computers, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._computers = computers
        self._now = now

    async def metadata(self, target: JoinTarget) -> Mapping[str, str]:
        return {}

    async def join(self, request: JoinRequest, provider: HostKeySource, report: Report) -> None:
        target = request.target
        report(JoinProgress(step=JoinStep.LOGIN, deadline=self._now(), message=f"logging in to {target.node_name}"))
        if self._computers.join_error is not None:
            raise self._computers.join_error
        await self._computers.booted(target.node_name).wait()
        token = token_of(target.uid, hashlib.sha256(target.uid.encode()).digest())
        await mint(self._cluster, token, machine=target.node_name, now=self._now())
        await self._computers.join(target.node_name, target.uid)
        await self.revoke(target.uid)

    async def revoke(self, uid: str) -> None:
        await revoke(self._cluster, token_id(uid))
