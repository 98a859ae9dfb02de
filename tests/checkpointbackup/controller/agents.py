"""holdfast's own agents, many in one process: real but for their kubelets, which write an archive and say where."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from holdfast.api.credentials import CredentialRequest, RegistryCredential
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Body, Cluster, Resource
from holdfast.cluster.resources import CHECKPOINT_BACKUPS
from holdfast.node.agent import CheckpointAgent
from holdfast.node.archives import ArchiveFolder
from holdfast.node.facts import HostFacts
from holdfast.node.journal import Journal
from holdfast.node.metrics import AgentMetrics
from holdfast.node.parts import AgentClocks, CallTimes, RunParts, registry_opener
from holdfast.runtime.metrics import Metrics
from tests.checkpoints.images.archives import FILES, write_archive
from tests.checkpoints.images.registries import RunningRegistry


class WriteCounts:
    """Passes everything on, and counts the writes to each CheckpointBackup, those in vain included."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.writes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def patch(self, resource: Resource[Any], key: Key, patch: Body) -> Any:
        self._count(resource, key)
        return await self._cluster.patch(resource, key, patch)

    async def patch_status(self, resource: Resource[Any], key: Key, patch: Body) -> Any:
        self._count(resource, key)
        return await self._cluster.patch_status(resource, key, patch)

    def _count(self, resource: Resource[Any], key: Key) -> None:
        if str(resource) == str(CHECKPOINT_BACKUPS):
            self.writes[key.name] += 1


class ArchivingKubelet:
    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self.calls = 0

    async def checkpoint(self, namespace: str, pod: str, container: str, timeout_s: int) -> str:
        self.calls += 1
        archive = self._checkpoints / f"checkpoint-{pod}_{namespace}-{container}-{self.calls}.tar"
        # No two pods have the same memory.
        files = {**FILES, "checkpoint/pages-2.img": archive.name.encode()}
        await asyncio.to_thread(write_archive, archive, files)
        return str(archive)


class KnownCredential:
    def __init__(self, credential: RegistryCredential) -> None:
        self._credential = credential

    async def credential(self, _request: CredentialRequest) -> RegistryCredential:
        return self._credential


@asynccontextmanager
async def agents_on(
    nodes: list[str], cluster: Cluster, registry: RunningRegistry, folder: Path
) -> AsyncIterator[list[ArchivingKubelet]]:
    """An agent for each node inside the block; their kubelets."""
    kubelets, agents = [], []
    for node in nodes:
        checkpoints, journal = folder / node / "checkpoints", folder / node / "journal"
        await asyncio.to_thread(checkpoints.mkdir, parents=True)
        kubelets.append(ArchivingKubelet(checkpoints))
        parts = RunParts(
            node=node,
            cluster=cluster,
            kubelet=kubelets[-1],
            credentials=KnownCredential(registry.credential()),
            journal=Journal(journal),
            archives=ArchiveFolder(checkpoints, journal),
            open_registry=registry_opener((), AgentClocks()),
            host=HostFacts(cpu_flags=("avx2",), cgroup_version="v2", boot_id="boot-1"),
            metrics=AgentMetrics(Metrics().registry),
            call_times=CallTimes(),
        )
        agents.append(CheckpointAgent(parts, metrics=Metrics(), random=Random(1)))
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent.run())
        try:
            yield kubelets
        finally:
            for agent in agents:
                agent.stop()
