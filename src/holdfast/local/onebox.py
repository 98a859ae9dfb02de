"""Puts the parts of a one-machine cluster together, and takes them apart in order."""

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
from holdfast.api.builtin import Pod as AnyPod
from holdfast.api.meta import Key
from holdfast.cluster.embedded import EmbeddedCluster, open_cluster
from holdfast.cluster.protocol import JSON
from holdfast.controllers.gpuworkload import gpu_workload_controller
from holdfast.controllers.room import SharedLedger
from holdfast.controllers.trainingjob import training_job_controller
from holdfast.controllers.trainingjob.last_logs import keep_ended
from holdfast.local.folder import locked
from holdfast.local.hardware import Hardware
from holdfast.machine.cgroups import find
from holdfast.machine.machine import Kubelet, ReadLog, identity_of
from holdfast.machine.objects import Pod
from holdfast.plane import add_kube_controllers
from holdfast.reports.office import ReportReceiver
from holdfast.runtime.clocks import utc_now
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, Settings
from holdfast.workloads.trainingjob.defaults import Defaults

DATABASE = "cluster.db"
LOOPBACK = "127.0.0.1"
# What a job without an image is given; the machine runs the reference trainer for it.
DEFAULT_IMAGE = f"holdfast:{__version__}"


class LocalCluster(Struct, frozen=True):
    """A cluster of one machine, under way. `operating` ends early only by a crash, with its reason."""

    cluster: EmbeddedCluster
    machine: Kubelet
    operating: "asyncio.Task[None]"


@asynccontextmanager
async def local_cluster(data: Path, hardware: Hardware, *, limits: bool) -> AsyncIterator[LocalCluster]:
    """Everything in the folder `data`; the jobs that were under way there go on.

    With `limits`, a container is held to its CPU and memory limits where the kernel lets this process do so.
    """
    logs = _Logs()
    with locked(data):
        cluster = await open_cluster(
            data / DATABASE, now=utc_now, rng=SystemRandom(), pod_logs=logs.read, follow_logs=logs.follow
        )
        try:
            logs.machine = Kubelet(
                cluster,
                name=platform.node().lower(),
                data=data,
                resources=hardware.resources,
                now=utc_now,
                default_image=DEFAULT_IMAGE,
                cgroups=find(identity_of(data)) if limits else None,
                issue_token=partial(_issue_token, cluster),
                ended=partial(_keep_log, cluster),
            )
            async with logs.machine.running(), _operating(cluster, logs.machine) as operating:
                yield LocalCluster(cluster, logs.machine, operating)
        finally:
            await cluster.close()


async def _keep_log(cluster: EmbeddedCluster, pod: Pod, status: JSON, read: ReadLog) -> None:
    """Of every worker that ends, so that the logs of all workers of an attempt are there after it."""
    metadata, spec = msgspec.to_builtins(pod.metadata), {"nodeName": pod.spec.node_name}
    await keep_ended(cluster, msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, AnyPod), read)


def _issue_token(cluster: EmbeddedCluster, pod: Pod, audience: str) -> str:
    account = pod.spec.service_account_name
    return cluster.issue_token(pod.metadata.key, uid=pod.metadata.uid, account=account, audience=audience)


class _Logs:
    """The machine keeps the logs, and the cluster that serves them is there before it."""

    machine: Kubelet

    async def read(self, key: Key, container: str, tail_lines: int | None, limit_bytes: int | None) -> bytes:
        return await self.machine.pod_log(key, container=container, tail_lines=tail_lines, limit_bytes=limit_bytes)

    def follow(self, key: Key, container: str, tail_lines: int | None) -> AsyncIterator[bytes]:
        return self.machine.follow_log(key, container=container, tail_lines=tail_lines)


@asynccontextmanager
async def _operating(cluster: EmbeddedCluster, machine: Kubelet) -> AsyncIterator["asyncio.Task[None]"]:
    operator = Operator(
        cluster,
        identity=f"{platform.node()}-up",
        now=utc_now,
        random=SystemRandom(),
        metrics=Metrics(),
        settings=Settings(),
    )
    add_kube_controllers(operator, cluster, now=utc_now, reclaim=machine.reclaim)
    defaults = Defaults(
        image=DEFAULT_IMAGE,
        holdfast_image=DEFAULT_IMAGE,
        shared_loopback=True,
        sidecar_reserves=False,
        local_folders=True,
    )
    office, room = ReportReceiver(now=utc_now), SharedLedger(operator)
    operator.add(training_job_controller(operator, cluster, defaults=defaults, now=utc_now, office=office, room=room))
    operator.add(gpu_workload_controller(operator, cluster, defaults=defaults, now=utc_now, room=room))
    reports = office.serve(operator, cluster, leading=lambda: True, address=LOOPBACK, port=0, host=LOOPBACK)
    async with reports:
        operating = asyncio.create_task(operator.run(), name="operator")
        try:
            yield operating
        finally:
            operator.stop()
            await asyncio.wait([operating])
