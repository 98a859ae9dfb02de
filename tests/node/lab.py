"""One node with its agent on an embedded cluster: a scripted kubelet, a real registry, and the parts between them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs

from holdfast.api.checkpointbackup import NODE_LABEL, TERMINAL_PHASES, CheckpointBackup, CheckpointBackupStatus
from holdfast.api.credentials import CredentialRequest, RegistryCredential
from holdfast.api.meta import Key
from holdfast.checkpoints.images.image import parse_manifest
from holdfast.cluster.kubernetes.credentials import StaticCredentials
from holdfast.cluster.kubernetes.kubeconfig import User
from holdfast.cluster.kubernetes.material import PemSource
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, EVENTS, NODES, PODS
from holdfast.node.agent import CheckpointAgent
from holdfast.node.archives import ArchiveFolder
from holdfast.node.facts import HostFacts
from holdfast.node.journal import Journal
from holdfast.node.kubelet import KubeletClient, KubeletTrust
from holdfast.node.metrics import AgentMetrics
from holdfast.node.parts import AgentClocks, CallTimes, RunParts, registry_opener
from holdfast.runtime.metrics import Metrics
from holdfast.times import format_time
from tests.checkpoints.images.registries import RunningRegistry
from tests.control_plane.certificates import Authority
from tests.control_plane.waiting import eventually
from tests.node.kubelets import TOKEN, ScriptedKubelet

NODE = "n1"
HOST = HostFacts(cpu_flags=("avx2", "sse4_2"), cgroup_version="v2", boot_id="boot-1")
BASE_IMAGE = "r.example/base@sha256:" + "ab" * 32


class GivenCredentials:
    """The operator's answers: what a test sets, one after the other, then the registry's credential."""

    def __init__(self, credential: RegistryCredential) -> None:
        self.credential_given = credential
        self.failures: list[Exception] = []
        self.requests: list[CredentialRequest] = []

    async def credential(self, request: CredentialRequest) -> RegistryCredential:
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        return self.credential_given


class CountingCluster:
    """Passes everything on, and remembers the status patches."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.patches: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def patch_status(self, resource: Any, key: Key, patch: Any) -> Any:
        self.patches.append(patch["status"])
        return await self._cluster.patch_status(resource, key, patch)

    @property
    def phases(self) -> list[str]:
        return [patch["phase"] for patch in self.patches]


class AgentLab:
    def __init__(
        self, cluster: Cluster, registry: RunningRegistry, folder: Path, namespace: str, *, node: str = NODE
    ) -> None:
        self.plain = cluster
        self.cluster = CountingCluster(cluster)
        self.registry = registry
        self.namespace = namespace
        self.node = node
        self.folder = folder
        self.repository = f"checkpoints/{secrets.token_hex(4)}"
        self.checkpoints, self.journal = folder / "checkpoints", folder / "journal"
        self.checkpoints.mkdir()
        self.authority = Authority(folder, datetime.now(UTC))
        self.kubelet = ScriptedKubelet(self.checkpoints)
        self.credentials = GivenCredentials(registry.credential())
        self.own_certificate = folder / "no-certificate"

    async def start(self, *containers: str, pod: str = "numbers", **spec: Any) -> None:
        """The node and a running pod on it."""
        info = {
            "kernelVersion": "6.1.0",
            "osImage": "Debian GNU/Linux 12 (bookworm)",
            "containerRuntimeVersion": "containerd://2.2.9",
            "kubeletVersion": "v1.36.3",
            "architecture": "amd64",
            "operatingSystem": "linux",
            "machineID": "m",
            "systemUUID": "s",
            "bootID": "b",
            "kubeProxyVersion": "",
        }
        await self.cluster.create(NODES, {"metadata": {"name": self.node}})
        await self.cluster.patch_status(NODES, Key("", self.node), {"status": {"nodeInfo": info, "phase": ""}})
        await self.create_pod(pod, *containers, **spec)
        self.cluster.patches.clear()

    async def create_pod(self, pod: str, *containers: str, **spec: Any) -> None:
        names = containers or ("trainer",)
        body = {
            "metadata": {"name": pod, "labels": {"batch.kubernetes.io/job-completion-index": "2"}},
            "spec": {
                "nodeName": self.node,
                "containers": [{"name": name, "image": "r.example/base:1", **spec.pop(name, {})} for name in names],
                **spec,
            },
        }
        await self.cluster.create(PODS, body, namespace=self.namespace)
        statuses = [
            {
                "name": name,
                "image": "r.example/base:1",
                "imageID": BASE_IMAGE,
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
            }
            for name in names
        ]
        status = {"phase": "Running", "containerStatuses": statuses}
        await self.cluster.patch_status(PODS, Key(self.namespace, pod), {"status": status})

    async def remove_pod(self, pod: str) -> None:
        await self.plain.delete(PODS, Key(self.namespace, pod), DeleteOptions(grace_period_s=0))

    async def begin(
        self,
        name: str = "nightly",
        *,
        run: int = 1,
        pod: str = "numbers",
        owners: Sequence[dict[str, Any]] = (),
        **spec: Any,
    ) -> None:
        """A CheckpointBackup whose run the operator has begun."""
        body = {
            "metadata": {"name": name, "labels": {NODE_LABEL: self.node}, "ownerReferences": [*owners]},
            "spec": {
                "schedule": "immediately",
                "podRef": {"name": pod},
                "registry": {
                    "url": self.registry.address.host,
                    "repository": self.repository,
                    "secretRef": {"name": "registry"},
                },
                **spec,
            },
        }
        await self.cluster.create(CHECKPOINT_BACKUPS, body, namespace=self.namespace)
        await self.begin_run(name, run=run, pod=pod)

    async def begin_run(self, name: str = "nightly", *, run: int, pod: str = "numbers", **status: Any) -> None:
        found = await self.cluster.get(PODS, Key(self.namespace, pod))
        body = {
            "run": run,
            "phase": None,
            "startTime": format_time(datetime.now(UTC)),
            "nodeName": self.node,
            "podUID": found.metadata.uid,
            "mode": "container",
            "builtImages": [],
            **status,
        }
        await self.plain.patch_status(CHECKPOINT_BACKUPS, Key(self.namespace, name), {"status": body})

    async def backup(self, name: str = "nightly") -> CheckpointBackup:
        return await self.plain.get(CHECKPOINT_BACKUPS, Key(self.namespace, name))

    async def status(self, name: str = "nightly") -> CheckpointBackupStatus:
        status = (await self.backup(name)).status
        assert status is not None
        return status

    async def until(
        self, enough: Callable[[CheckpointBackupStatus], bool], what: str, name: str = "nightly"
    ) -> CheckpointBackupStatus:
        return await eventually(lambda: self.status(name), enough, what=what, within_s=60)

    async def ended(self, name: str = "nightly") -> CheckpointBackupStatus:
        return await self.until(lambda status: status.phase in TERMINAL_PHASES, f"{name} ends", name)

    async def events(self) -> list[tuple[str, str]]:
        found = await self.cluster.list(EVENTS, namespace=self.namespace)
        return [(event.reason, event.message) for event in found.items]

    def kubelet_client(self) -> KubeletClient:
        token = PemSource(what="token", data=TOKEN.encode())
        authority = PemSource(what="certificate-authority", data=self.authority.file.read_bytes())
        trust = KubeletTrust(authority, self.own_certificate)
        return KubeletClient(self.kubelet.url, StaticCredentials(User(token=token)), trust, clock=lambda: 0.0)

    def parts(self, kubelet: Any, **changes: Any) -> RunParts:
        clocks = AgentClocks()
        parts = RunParts(
            node=self.node,
            cluster=self.cluster,
            kubelet=kubelet,
            credentials=self.credentials,
            journal=Journal(self.journal),
            archives=ArchiveFolder(self.checkpoints, self.journal),
            open_registry=registry_opener((), clocks),
            host=HOST,
            metrics=AgentMetrics(Metrics().registry),
            clocks=clocks,
            call_times=CallTimes(),
        )
        return structs.replace(parts, **changes)

    @asynccontextmanager
    async def kubelet_serving(self) -> AsyncIterator[None]:
        async with self.kubelet.serving(self.authority.server("kubelet")):
            yield

    @asynccontextmanager
    async def killed_agent(self, kill: Callable[[RunParts], RunParts]) -> AsyncIterator["asyncio.Task[None]"]:
        """An agent whose parts end it at some point; what is left of its tasks ends with the block."""
        async with self.kubelet_client() as kubelet:
            agent = CheckpointAgent(kill(self.parts(kubelet)), metrics=Metrics(), random=Random(1))
            running = asyncio.create_task(agent.run())
            try:
                yield running
            finally:
                agent.stop()
                await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()

    @asynccontextmanager
    async def agent(self, **changes: Any) -> AsyncIterator[CheckpointAgent]:
        """An agent that runs in the block, and ends in order with it."""
        async with self.kubelet_client() as kubelet:
            agent = CheckpointAgent(self.parts(kubelet, **changes), metrics=Metrics(), random=Random(1))
            running = asyncio.create_task(agent.run())
            try:
                yield agent
            finally:
                agent.stop()
                await running

    def leftovers(self) -> list[str]:
        """Everything that an agent has left on the node."""
        journal = list(self.journal.iterdir()) if self.journal.exists() else []
        return sorted(path.name for path in (*self.checkpoints.iterdir(), *journal))

    async def pulled(self) -> dict[str, dict[str, str]]:
        """Every tag of the repository with its annotations, after its blobs were fetched and verified."""
        found = {}
        async with self.registry.client() as client:
            for tag in await client.tags(self.repository):
                content = await client.manifest(self.repository, tag)
                manifest = parse_manifest(content, tag)
                assert manifest.config is not None
                for blob in (manifest.config, *manifest.layers):
                    async for _ in client.blob(self.repository, blob):
                        pass
                found[tag] = manifest.annotations
        return found
