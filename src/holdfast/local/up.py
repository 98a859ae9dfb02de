"""Starts the parts of a single-node cluster, and stops them in order."""

import asyncio
import platform
from collections.abc import AsyncIterator
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
from holdfast.cluster.protocol import JSON
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.controllers import add_kube_controllers
from holdfast.local.host import Hardware, locked
from holdfast.local.kubelet.devices import find
from holdfast.local.kubelet.kubelet import Kubelet, ReadLog, identity_of
from holdfast.local.kubelet.objects import RunnablePod
from holdfast.local.registry.server import serve_registry
from holdfast.pods.template import Defaults
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, OperatorSettings
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.reports.server import ReportReceiver
from holdfast.trainingjob.worker_logs import save_finished_worker_log

DATABASE = "cluster.db"
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


@asynccontextmanager
async def local_cluster(data: Path, hardware: Hardware, *, limits: bool) -> AsyncIterator[LocalCluster]:
    """Run a cluster with all its state in the folder `data`; unfinished jobs in the folder continue.

    With `limits`, CPU and memory limits of containers are enforced where the kernel lets this process do so.
    """
    logs = _Logs()
    with locked(data):
        cluster = await open_cluster(
            data / DATABASE, now=utc_now, rng=SystemRandom(), pod_logs=logs.read, follow_logs=logs.follow
        )
        try:
            logs.kubelet = Kubelet(
                cluster,
                name=platform.node().lower(),
                data=data,
                resources=hardware.resources,
                now=utc_now,
                default_image=DEFAULT_IMAGE,
                cgroups=find(identity_of(data)) if limits else None,
                issue_token=partial(_issue_token, cluster),
                ended=partial(_store_log, cluster),
            )
            async with (
                serve_registry(data / REGISTRY) as registry,
                logs.kubelet.running(),
                _operating(cluster, logs.kubelet, registry) as operating,
            ):
                yield LocalCluster(cluster, logs.kubelet, operating, registry)
        finally:
            await cluster.close()


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
    """Serves logs from the kubelet, which is created after the cluster that serves the logs."""

    kubelet: Kubelet

    async def read(self, key: Key, container: str, tail_lines: int | None, limit_bytes: int | None) -> bytes:
        return await self.kubelet.pod_log(key, container=container, tail_lines=tail_lines, limit_bytes=limit_bytes)

    def follow(self, key: Key, container: str, tail_lines: int | None) -> AsyncIterator[bytes]:
        return self.kubelet.follow_log(key, container=container, tail_lines=tail_lines)


@asynccontextmanager
async def _operating(cluster: EmbeddedCluster, kubelet: Kubelet, registry: str) -> AsyncIterator["asyncio.Task[None]"]:
    operator = Operator(
        cluster,
        identity=f"{platform.node()}-up",
        now=utc_now,
        random=SystemRandom(),
        metrics=Metrics(),
        settings=OperatorSettings(),
    )
    add_kube_controllers(operator, cluster, now=utc_now, reclaim=kubelet.reclaim)
    defaults = Defaults(
        image=DEFAULT_IMAGE,
        holdfast_image=DEFAULT_IMAGE,
        shared_loopback=True,
        sidecar_reserves=False,
        local_folders=True,
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
            plain_http=(registry,),
        )
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
    )
    async with reports:
        operating = asyncio.create_task(operator.run(), name="operator")
        try:
            yield operating
        finally:
            operator.stop()
            await asyncio.wait([operating])
