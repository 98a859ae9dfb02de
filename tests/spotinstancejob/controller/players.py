"""Who plays the rest of the world for the controller of SpotInstanceJobs: the cloud, the nodes' agents, a registry."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from msgspec import structs

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.meta import Key, Object
from holdfast.api.provisionedinstance import INSTANCE_LABEL, SPOT_NODE_LABEL, ProvisionedInstance, machine_name
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, NODES, PODS, PROVISIONED_INSTANCES
from holdfast.runtime.controller import Controller, Done, Result, TerminalError
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.spotinstancejob.images import CheckpointImages, checkpoint_of
from holdfast.spotinstancejob.repository import RepositoryProblem
from holdfast.times import format_time
from tests.spotinstancejob.machines import condition

AddNode = Callable[[str, dict[str, str]], Awaitable[None]]
"""Makes a node of that name, with these labels, that runs pods."""


class Player:
    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        raise AssertionError(error)


class Cloud(Player):
    """Plays the controller of ProvisionedInstances: machines come up at once unless they are held, and go when told."""

    def __init__(self, cluster: Cluster, machines: Store[ProvisionedInstance], make_node: AddNode) -> None:
        self._cluster = cluster
        self._machines = machines
        self._make_node = make_node
        self.holds_new = False
        self.launched: list[str] = []
        self.nodes: set[str] = set()

    async def reconcile(self, key: Key) -> Result:
        machine = self._machines.get(key)
        if machine is not None and machine.metadata.deletion_timestamp:
            await self._take_away(machine)
            with suppress(ClusterError):
                await self._cluster.patch(PROVISIONED_INSTANCES, key, {"metadata": {"finalizers": None}})
        elif machine is not None and machine.status is None and not self.holds_new:
            await self.bring_up(key)
        return Done()

    async def bring_up(self, key: Key) -> str:
        """The machine becomes a Node; its name."""
        node = await self.add_node(key)
        held = [condition(kind, "True", "Ready") for kind in ("Launched", "Joined", "GPUReady")]
        await self.say(key, phase="Serve", state="RUNNING", nodeName=node, conditions=held)
        return node

    async def add_node(self, key: Key) -> str:
        """It has joined, and is not ready for its job yet."""
        machine = await self._cluster.get(PROVISIONED_INSTANCES, key)
        node = machine_name(machine.metadata.uid)
        if machine.metadata.uid not in self.launched:
            self.launched.append(machine.metadata.uid)
            self.nodes.add(node)
            await self._make_node(node, {SPOT_NODE_LABEL: "true", INSTANCE_LABEL: machine.metadata.uid})
        return node

    async def refuse(self, key: Key, reason: str = "Stockout", said: str = "no capacity") -> None:
        await self.say(key, phase="End", step="Gone", conditions=[condition("Launched", "False", reason, said)])

    async def notice(self, key: Key) -> None:
        """The cloud announces that it takes the machine back."""
        held = [condition(kind, "True", "Ready") for kind in ("Launched", "Joined", "GPUReady")]
        told = condition("Preempted", "True", "PreemptionNotice", "the cloud takes it back")
        await self.say(key, conditions=[*held, told])

    async def preempt(self, key: Key) -> None:
        """It is gone."""
        await self.notice(key)
        await self._take_away(await self._cluster.get(PROVISIONED_INSTANCES, key))
        with suppress(NotFound):  # it was given back already
            await self.say(key, phase="End", step="Gone", state="TERMINATED")

    async def say(self, key: Key, **status: Any) -> None:
        await self._cluster.patch_status(PROVISIONED_INSTANCES, key, {"status": status})

    async def _take_away(self, machine: ProvisionedInstance) -> None:
        node = machine_name(machine.metadata.uid)
        self.nodes.discard(node)
        with suppress(NotFound):
            await self._cluster.delete(NODES, Key("", node))
        pods = await self._cluster.list(PODS, namespace=machine.metadata.namespace)
        for pod in pods.items:
            if pod.spec.node_name == node and not pod.is_finished:
                with suppress(NotFound):
                    await self._cluster.delete(PODS, pod.metadata.key, DeleteOptions(grace_period_s=0))


class Agents(Player):
    """Play CheckpointBackup's controller and the agents: each checkpoint is pushed at once unless they are held."""

    def __init__(
        self, cluster: Cluster, backups: Store[CheckpointBackup], registry: "PlayedRegistry", now: Now
    ) -> None:
        self._cluster = cluster
        self._backups = backups
        self._registry = registry
        self._now = now
        self.holds = False
        self.failure: tuple[str, str] | None = None
        """Reason and message with which every checkpoint fails."""
        self.pushed: list[str] = []

    async def reconcile(self, key: Key) -> Result:
        backup = self._backups.get(key)
        if backup is not None and not self.holds and (backup.status is None or backup.status.phase is None):
            with suppress(NotFound):
                await (self.fail(key, *self.failure) if self.failure is not None else self.push(key))
        return Done()

    async def push(self, key: Key) -> str:
        """The pod is saved: its first image as status names it."""
        backup, moment = await self._cluster.get(CHECKPOINT_BACKUPS, key), format_time(self._now())
        images = [
            {"containerName": each.name, "imageName": each.image, "digest": f"sha256:{key.name.encode().hex():0>64}"}
            for each in backup.spec.containers
        ]
        status = {
            "run": 1,
            "phase": "Completed",
            "mode": backup.spec.mode,
            "startTime": moment,
            "lastCheckpointTime": moment,
            "completionTime": moment,
            "frozenSeconds": 2.5,
            "builtImages": images,
        }
        written = await self._cluster.patch_status(CHECKPOINT_BACKUPS, key, {"status": status})
        self.pushed.append(key.name)
        self._registry.add(written)
        return f"{images[0]['imageName']}@{images[0]['digest']}"

    async def fail(self, key: Key, reason: str = "PushFailed", message: str = "the registry is away") -> None:
        failed = condition("Failed", "True", reason, message)
        status = {"run": 1, "phase": "Failed", "message": message, "conditions": [failed]}
        await self._cluster.patch_status(CHECKPOINT_BACKUPS, key, {"status": status})


class PlayedRegistry:
    """Holds what was pushed. `problem`: why it does not answer."""

    def __init__(self) -> None:
        self._pushed: dict[str, CheckpointBackup] = {}
        self.problem = ""
        self.labels: dict[str, str] = {}
        """What the images tell about themselves."""
        self.deleted: list[int] = []

    def add(self, backup: CheckpointBackup) -> None:
        self._pushed[backup.metadata.name] = backup

    async def checkpoints(self, job: SpotInstanceJob) -> tuple[CheckpointImages, ...]:
        if self.problem:
            raise RepositoryProblem(self.problem, may_pass=True)
        found = (checkpoint_of(job, backup) for backup in self._pushed.values())
        there = [each for each in found if each is not None and each.number not in self.deleted]
        return tuple(map(self._labelled, sorted(there, key=lambda each: each.order, reverse=True)))

    async def described(self, job: SpotInstanceJob, checkpoint: CheckpointImages) -> CheckpointImages | None:
        return self._labelled(checkpoint)

    def _labelled(self, checkpoint: CheckpointImages) -> CheckpointImages:
        images = tuple(structs.replace(each, labels=self.labels) for each in checkpoint.images)
        return structs.replace(checkpoint, images=images)

    async def delete(self, job: SpotInstanceJob, checkpoints: Iterable[CheckpointImages]) -> int:
        numbers = [each.number for each in checkpoints]
        self.deleted += numbers
        return len(numbers)


def played_by(operator: Operator, name: str, resource: Any, reconciler: Any) -> Controller[Object]:
    return Controller(name=name, resource=resource, reconciler=reconciler, writer=operator.writer())
