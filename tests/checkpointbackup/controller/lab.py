"""One namespace with CheckpointBackups, the pods that they save, and somebody who plays the node's agent."""

import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.checkpointbackup import (
    TERMINAL_PHASES,
    CheckpointBackupSpec,
    CheckpointBackupStatus,
    Phase,
    run_conditions,
)
from holdfast.api.core.objects import Pod
from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Object, merge_conditions
from holdfast.checkpointbackup.controller import checkpoint_backup_controller
from holdfast.checkpointbackup.retention import CredentialReader
from holdfast.checkpointbackup.snapshot import TIMING, condition_of
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now, boottime_s, utc_now
from holdfast.times import format_time
from tests.checkpointbackup.controller.clock import HandClock
from tests.contract.pods import POOL
from tests.contract.waiting import until
from tests.controllers.lab import ControllerLab, seen_as
from tests.controllers.operating import namespace_operator, running

REGISTRY = {"url": "registry.example.com", "repository": "checkpoints/trainer"}
AGENT = {"app.kubernetes.io/name": "holdfast-node"}
CONTAINER: JSON = {"name": "main", "image": "registry.invalid/main:1"}
AGENT_PHASES: tuple[Phase, ...] = (
    "Checkpointing",
    "Checkpointed",
    "ImageBuilding",
    "ImageBuilt",
    "ImagePushing",
    "ImagePushed",
)


class SeenBackup(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A CheckpointBackup as tests look at it: its status is there, if only empty."""

    spec: CheckpointBackupSpec
    status: CheckpointBackupStatus = CheckpointBackupStatus()

    @property
    def message(self) -> str:
        return self.status.message or ""

    @property
    def has_ended(self) -> bool:
        return self.status.phase in TERMINAL_PHASES

    def reason(self, kind: str = "Completed") -> str:
        """The reason of a condition; all of a run have the same."""
        found = condition_of(self.status, kind)
        return found.reason if found is not None else ""

    def holds(self, kind: str) -> bool:
        found = condition_of(self.status, kind)
        return found is not None and found.status == "True"


class BackupLab(ControllerLab[SeenBackup]):
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace, seen_as(SeenBackup, CHECKPOINT_BACKUPS), "save")
        self.requests = BackupRequests()
        self.clock = HandClock()
        """For tests whose operator is given it."""
        self._touches = itertools.count()

    async def ask(
        self, name: str = "", *, pod: str = "trainer", schedule: str = "immediately", **spec: Any
    ) -> SeenBackup:
        body = {"schedule": schedule, "podRef": {"name": pod}, "registry": REGISTRY, **spec}
        return await self.create(body, name)

    async def create_pod(
        self, name: str, *, node: str = "", labels: Mapping[str, str] | None = None, **spec: Any
    ) -> Pod:
        """Without a node it waits for one."""
        where = {"nodeName": node} if node else {"nodeSelector": {POOL: "nowhere"}}
        metadata = {"name": name, "labels": dict(labels or {})}
        body = {"metadata": metadata, "spec": {"containers": [CONTAINER], **where, **spec}}
        return await self.cluster.create(PODS, body, namespace=self.namespace)

    async def add_pod(self, name: str = "trainer", *, node: str = "", **spec: Any) -> Pod:
        """A pod on the node, once the engine's kubelets have seen it."""
        pod = await self.create_pod(name, node=node, **spec)
        return await self.until_pod_runs(name) if node else pod

    async def until_pod_runs(self, name: str = "trainer") -> Pod:
        return await until(self.cluster, PODS, self.key(name), lambda pod: pod.status.phase == "Running", "runs")

    async def add_agent(self, node: str) -> Pod:
        """A ready pod as the agents' DaemonSet makes them, in the namespace that the operator looks after."""
        pod = await self.create_pod(f"agent-{node}", node=node, labels=AGENT)
        return await until(
            self.cluster, PODS, pod.metadata.key, lambda pod: pod.condition("Ready") is not None, "is ready"
        )

    async def until_run(self, run: int = 1, name: str = "") -> SeenBackup:
        return await self.until(lambda it: it.status.run == run, f"run {run} has begun", name)

    async def until_phase(self, phase: Phase, name: str = "") -> SeenBackup:
        return await self.until(lambda it: it.status.phase == phase, f"is {phase}", name)

    async def until_says(self, text: str, name: str = "") -> SeenBackup:
        return await self.until(lambda it: text in it.message, f"says {text!r}", name)

    async def touch(self, name: str = "") -> SeenBackup:
        """Have the operator look again: a test's clock wakes nobody."""
        number = str(next(self._touches))
        return await self.cluster.patch(self.kind, self.key(name), {"metadata": {"annotations": {"touched": number}}})

    # What an agent does.

    async def write_phase(self, phase: Phase, name: str = "", *, reason: str = "", **fields: Any) -> SeenBackup:
        """As the agent writes: guarded by the version, with the conditions of a run."""
        it = await self.get(name)
        conditions = run_conditions(
            phase,
            reason=reason or phase,
            message=f"the agent says {phase}",
            generation=it.metadata.generation,
            at=format_time(utc_now()),
        )
        merged = msgspec.to_builtins(merge_conditions(it.status.conditions, conditions))
        status = {"phase": phase, "message": f"the agent says {phase}", "conditions": merged, **fields}
        body = {"metadata": {"resourceVersion": it.metadata.resource_version}, "status": status}
        return await self.cluster.patch_status(self.kind, it.metadata.key, body)

    async def push_image(self, name: str = "", *, complete: bool = True) -> SeenBackup:
        """All of a run of one container: seven writes, or six where the operator has the last word."""
        for phase in AGENT_PHASES[:-1]:
            await self.write_phase(phase, name)
        digest = f"sha256:{'0' * 64}"
        image = {"containerName": "main", "imageName": "registry.example.com/checkpoints/trainer:1", "digest": digest}
        done = await self.write_phase(
            "ImagePushed",
            name,
            builtImages=[image],
            bytes=4096,
            frozenSeconds=1.5,
            completionTime=format_time(utc_now()),
        )
        return await self.write_phase("Completed", name) if complete else done


class NoCredentials:
    """A registry that anybody may use."""

    async def credential(self, _backup: object) -> RegistryCredential:
        return RegistryCredential()


@asynccontextmanager
async def backing_up(
    cluster: Cluster,
    namespace: str,
    requests: BackupRequests,
    *,
    now: Now = utc_now,
    clock: Callable[[], float] = boottime_s,
    credentials: CredentialReader | None = None,
    external_agent: bool = False,
    plain_http: Collection[str] = (),
    **timing: Any,
) -> AsyncIterator[Operator]:
    """An operator that looks after the backups of one namespace inside the block."""
    operator = namespace_operator(cluster, namespace, now=now)
    operator.add(
        checkpoint_backup_controller(
            operator,
            cluster,
            now=now,
            requests=requests,
            credentials=credentials or NoCredentials(),
            timing=structs.replace(TIMING, **timing),
            clock=clock,
            external_agent=external_agent,
            plain_http=plain_http,
        )
    )
    async with running(operator):
        yield operator
