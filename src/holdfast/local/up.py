"""Starts the parts of a single-node cluster, and stops them in order."""

import asyncio
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import SystemRandom

import msgspec
from msgspec import Struct

from holdfast import __version__
from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.checkpointbackup.controller import checkpoint_backup_controller
from holdfast.checkpointbackup.credentials import CredentialHandler, RegistrySecretReader
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import PODS, SPOT_INSTANCE_VMS
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.controllers import add_kube_controllers
from holdfast.local.host import Hardware, locked
from holdfast.local.kubelet.devices import find
from holdfast.local.kubelet.kubelet import Kubelet, ReadLog, identity_of
from holdfast.local.kubelet.node import PLAIN_NODE, NodeDetails
from holdfast.local.kubelet.objects import RunnablePod
from holdfast.local.machines import LocalMachines
from holdfast.local.preemptions import sold_out_zones, template_zones
from holdfast.local.registry.server import serve_registry
from holdfast.local.spot import add_spot_controllers
from holdfast.pods.template import Defaults
from holdfast.providers.local.provider import CALM, LocalProvider, SpotMarket
from holdfast.providers.local.state import MachineTable
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, OperatorSettings
from holdfast.runtime.process import utc_now
from holdfast.spotinstancejob.reports import ReplicaReports
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.reports.receiver import ReportReceiver
from holdfast.trainingjob.worker_logs import save_finished_worker_log

DATABASE = "cluster.db"
MACHINES = "machines"
REGISTRY = "registry"
LOOPBACK = "127.0.0.1"
# The image of a job without an image; the kubelet runs the reference trainer for it.
DEFAULT_IMAGE = f"holdfast:{__version__}"


class LocalCluster(Struct, frozen=True):
    """A running single-node cluster. The task `operating` ends early only by a crash, with its exception."""

    cluster: EmbeddedCluster
    kubelet: Kubelet
    operating: "asyncio.Task[None]"
    registry: str
    """Host and port of the registry for checkpoint images."""
    machines: LocalProvider
    """The spot machines that are nodes of this computer too."""


@asynccontextmanager
async def local_cluster(
    data: Path, hardware: Hardware, *, limits: bool, market: SpotMarket = CALM
) -> AsyncIterator[LocalCluster]:
    """Run a cluster with all its state in the folder `data`; unfinished jobs in the folder continue.

    With `limits`, CPU and memory limits of containers are enforced where the kernel lets this process do so. `market`
    says what becomes of spot machines.
    """
    logs = _Logs()
    with locked(data):
        table = MachineTable(data / f"{MACHINES}.json")
        cluster = await open_cluster(
            data / DATABASE, now=utc_now, rng=SystemRandom(), pod_logs=logs.read, follow_logs=logs.follow
        )
        try:
            nodes = _Nodes(cluster, data, hardware, limits=limits)
            logs.nodes = nodes
            operator = Operator(
                cluster,
                identity=f"{platform.node()}-up",
                now=utc_now,
                random=SystemRandom(),
                metrics=Metrics(),
                settings=OperatorSettings(),
            )
            templates = operator.store(SPOT_INSTANCE_VMS)
            provider = LocalProvider(
                table,
                nodes.machines,
                now=utc_now,
                market=market,
                template_zones=template_zones(templates),
                sold_out=sold_out_zones(templates),
            )
            async with (
                serve_registry(data / REGISTRY) as registry,
                nodes.running(),
                provider.running(),
                _operating(operator, cluster, nodes.kubelet, provider, registry) as operating,
            ):
                yield LocalCluster(cluster, nodes.kubelet, operating, registry, provider)
        finally:
            await cluster.close()


class _Nodes:
    """The kubelets on this computer: its own node's, and those of spot machines."""

    def __init__(self, cluster: EmbeddedCluster, data: Path, hardware: Hardware, *, limits: bool) -> None:
        self._cluster = cluster
        self._limits = limits
        self.name = platform.node().lower()
        self.kubelet = self._make(self.name, data, hardware.resources, PLAIN_NODE)
        self.machines = LocalMachines(
            cluster, folder=data / MACHINES, resources=hardware.resources, make_kubelet=self._make, now=utc_now
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            await self.kubelet.start()
            yield
        finally:
            await asyncio.gather(self.machines.stop(), self.kubelet.stop())

    async def of_pod(self, key: Key) -> Kubelet:
        """The kubelet that has the pod's logs. Raises `NotFound` when they went with a machine."""
        node = (await self._cluster.get(PODS, key)).spec.node_name
        kubelet = self.kubelet if node in ("", self.name) else self.machines.kubelet(node)
        if kubelet is None:
            raise NotFound(f'the logs of pod "{key.name}" are gone with machine {node}')
        return kubelet

    def _make(self, name: str, data: Path, resources: Mapping[str, str], details: NodeDetails) -> Kubelet:
        return Kubelet(
            self._cluster,
            name=name,
            data=data,
            resources=resources,
            now=utc_now,
            default_image=DEFAULT_IMAGE,
            cgroups=find(identity_of(data)) if self._limits else None,
            issue_token=partial(_issue_token, self._cluster),
            ended=partial(_store_log, self._cluster),
            details=details,
            shared=self.kubelet.shared if name != self.name else None,
        )


async def _store_log(cluster: EmbeddedCluster, pod: RunnablePod, status: JSON, read: ReadLog) -> None:
    """Store the log of every worker that ends, so that the logs of all workers of an attempt exist afterwards."""
    metadata, spec = msgspec.to_builtins(pod.metadata), {"nodeName": pod.spec.node_name}
    await save_finished_worker_log(
        cluster, msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod), read
    )


def _issue_token(cluster: EmbeddedCluster, pod: RunnablePod, audience: str) -> str:
    account = pod.spec.service_account_name
    return cluster.issue_token(pod.metadata.key, uid=pod.metadata.uid, account=account, audience=audience)


class _Logs:
    """Serves logs from the kubelets, which are created after the cluster that serves the logs."""

    nodes: _Nodes

    async def read(self, key: Key, container: str, tail_lines: int | None, limit_bytes: int | None) -> bytes:
        kubelet = await self.nodes.of_pod(key)
        return await kubelet.pod_log(key, container=container, tail_lines=tail_lines, limit_bytes=limit_bytes)

    async def follow(self, key: Key, container: str, tail_lines: int | None) -> AsyncIterator[bytes]:
        kubelet = await self.nodes.of_pod(key)
        async for chunk in kubelet.follow_log(key, container=container, tail_lines=tail_lines):
            yield chunk


@asynccontextmanager
async def _operating(
    operator: Operator, cluster: EmbeddedCluster, kubelet: Kubelet, provider: LocalProvider, registry: str
) -> AsyncIterator["asyncio.Task[None]"]:
    add_kube_controllers(operator, cluster, now=utc_now, reclaim=kubelet.reclaim)
    defaults = Defaults(
        image=DEFAULT_IMAGE,
        holdfast_image=DEFAULT_IMAGE,
        shared_loopback=True,
        sidecar_reserves=False,
        local_folders=True,
        runs_containers=False,
        plain_http_registries=(registry,),
    )
    backups, ledger = BackupRequests(), SharedLedger(operator)
    receiver = ReportReceiver(now=utc_now, backups=backups)
    operator.add(
        training_job_controller(operator, cluster, defaults=defaults, now=utc_now, receiver=receiver, ledger=ledger)
    )
    operator.add(gpu_workload_controller(operator, cluster, defaults=defaults, now=utc_now, ledger=ledger))
    operator.add(
        checkpoint_backup_controller(
            operator,
            cluster,
            now=utc_now,
            requests=backups,
            credentials=RegistrySecretReader(cluster, operator_account="", plain_http=(registry,)),
            runs_containers=False,
            plain_http=(registry,),
        )
    )
    add_spot_controllers(
        operator,
        cluster,
        provider,
        defaults=defaults,
        ledger=ledger,
        receiver=receiver,
        now=utc_now,
        random=SystemRandom(),
    )
    credentials = CredentialHandler(
        cluster, now=utc_now, leading=lambda: True, node_account="", operator_account="", plain_http=(registry,)
    )
    reports = receiver.serve(
        operator,
        cluster,
        leading=lambda: True,
        address=LOOPBACK,
        port=0,
        host=LOOPBACK,
        routes=credentials.routes(),
        others=(ReplicaReports.of(operator, cluster),),
    )
    async with reports:
        operating = asyncio.create_task(operator.run(), name="operator")
        try:
            yield operating
        finally:
            operator.stop()
            await asyncio.wait([operating])
