"""A whole cluster in virtual time: the embedded engine, the built-in controllers, and machines that run pods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import LEASES, NODES, PODS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.controllers import BindingCluster, add_kube_controllers
from holdfast.local.controllers.objects import JOBS, TemplatedJob
from holdfast.local.controllers.storage import Reclaim, nothing_to_reclaim
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.times import format_micro_time, format_time
from tests.local.controllers.kubelets import Kubelets, ended, kubelets

T = TypeVar("T", bound=Object)

PRIORITY_CLASSES = Resource(
    group="scheduling.k8s.io",
    version="v1",
    kind="PriorityClass",
    plural="priorityclasses",
    model=Object,
    namespaced=False,
)
NAMESPACE = "default"
BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
LEASE_NAMESPACE = "kube-node-lease"
STEP_S = 0.5
PATIENCE_S = 3600.0


def now() -> datetime:
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


@asynccontextmanager
async def a_cluster(reclaim: Reclaim = nothing_to_reclaim) -> AsyncIterator["Bench"]:
    """With its controllers running."""
    cluster = await open_cluster(None, now=now, rng=Random(1))
    bench = Bench(cluster, reclaim)
    try:
        bench.start()
        yield bench
    finally:
        await bench.crash()
        await cluster.close()


class Bench:
    def __init__(self, cluster: EmbeddedCluster, reclaim: Reclaim = nothing_to_reclaim) -> None:
        self.cluster = cluster
        self._reclaim = reclaim
        self.machines: Kubelets
        self._running: asyncio.Task[None] | None = None
        self._heartbeats: dict[str, asyncio.Task[None]] = {}

    def start(self, plane: BindingCluster | None = None) -> None:
        """`plane` is the cluster as the controllers see it, when that is to differ from how it is."""
        through = plane or self.cluster
        operator = Operator(through, identity="plane", now=now, random=Random(2), metrics=Metrics())
        add_kube_controllers(operator, through, now=now, reclaim=self._reclaim)
        broken = self.machines.broken if hasattr(self, "machines") else set()
        # The machines go on when the controllers crash: they are no part of them.
        self.machines, controller = kubelets(operator, now=now)
        self.machines.broken = broken
        operator.add(controller)
        self._running = asyncio.create_task(operator.run())

    async def crash(self) -> None:
        """The controllers end where they stand."""
        for task in (self._running, *self._heartbeats.values()):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
        self._running, self._heartbeats = None, {}

    @property
    def has_crashed(self) -> bool:
        return self._running is None or self._running.done()

    async def add_node(self, name: str = "m-1", *, gpus: int = 0, labels: Mapping[str, str] | None = None) -> None:
        room = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "status": {"capacity": room, "allocatable": room},
        }
        await self.cluster.create(NODES, body)
        await self.say_ready(name, "True")
        lease = {"metadata": {"name": name}, "spec": {"renewTime": format_micro_time(now())}}
        await self.cluster.create(LEASES, lease, namespace=LEASE_NAMESPACE)
        self.revive(name)

    async def say_ready(self, name: str, status: str) -> None:
        ready = {
            "type": "Ready",
            "status": status,
            "lastHeartbeatTime": format_time(now()),
            "lastTransitionTime": format_time(now()),
        }
        await self.cluster.patch_status(NODES, Key("", name), {"status": {"conditions": [ready]}})

    def revive(self, name: str) -> None:
        self._heartbeats[name] = asyncio.create_task(self._beat(name))
        self.machines.broken.discard(name)

    async def cut_off(self, name: str) -> None:
        """Nothing is heard of the machine any more, and it hears nothing."""
        self.machines.broken.add(name)
        task = self._heartbeats.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _beat(self, name: str) -> None:
        while True:
            await asyncio.sleep(10)
            patch = {"spec": {"renewTime": format_micro_time(now())}}
            await self.cluster.patch(LEASES, Key(LEASE_NAMESPACE, name), patch)

    async def run_job(self, name: str = "one", **spec: Any) -> Key:
        template = {"spec": pod_spec()} | spec.pop("template", {})
        body = {"metadata": {"name": name}, "spec": {"template": template, **spec}}
        await self.cluster.create(JOBS, body, namespace=NAMESPACE)
        return Key(NAMESPACE, name)

    async def run_pod(self, name: str, **spec: Any) -> Key:
        await self.cluster.create(PODS, {"metadata": {"name": name}, "spec": pod_spec(**spec)}, namespace=NAMESPACE)
        return Key(NAMESPACE, name)

    async def pods(self) -> list[Pod]:
        return list((await self.cluster.list(PODS, namespace=NAMESPACE)).items)

    async def end(self, pod: Pod, exit_code: int = 0) -> None:
        await self.cluster.patch_status(PODS, pod.metadata.key, {"status": ended(pod, exit_code, now())})

    async def running(self, count: int) -> list[Pod]:
        """Exactly so many pods, once they run; by index and age."""

        async def look() -> list[Pod]:
            pods = [pod for pod in await self.pods() if pod.status.phase == "Running" and not pod.is_terminating]
            return sorted(pods, key=lambda pod: pod.metadata.name)

        return await eventually(look, lambda pods: len(pods) == count, f"{count} pods run")

    async def job(self, key: Key, holds: Callable[[TemplatedJob], object]) -> TemplatedJob:
        return await self.until(JOBS, key, holds)

    async def finished(self, key: Key) -> TemplatedJob:
        return await self.job(key, lambda job: job.finished_at)

    async def node(self, name: str, holds: Callable[[Node], object]) -> Node:
        return await self.until(NODES, Key("", name), holds)

    async def until(self, resource: Resource[T], key: Key, holds: Callable[[T], object]) -> T:
        async def look() -> T | None:
            with suppress(NotFound):
                return await self.cluster.get(resource, key)
            return None

        def enough(it: T | None) -> bool:
            return it is not None and bool(holds(it))

        found = await eventually(look, enough, f"{resource} {key}")
        assert found is not None
        return found

    async def gone(self, resource: Resource[T], key: Key) -> None:
        async def is_gone() -> bool:
            with suppress(NotFound):
                await self.cluster.get(resource, key)
                return False
            return True

        await eventually(is_gone, bool, f"{resource} {key} is gone")


S = TypeVar("S")


async def eventually(look: Callable[[], Awaitable[S]], enough: Callable[[S], bool], what: str) -> S:
    deadline = now() + timedelta(seconds=PATIENCE_S)
    while True:
        seen = await look()
        if enough(seen):
            return seen
        assert now() < deadline, f"never: {what}; last seen: {seen}"
        await asyncio.sleep(STEP_S)


def pod_spec(**more: Any) -> JSON:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "main:1"}],
        **more,
    }


def indexed(workers: int, **spec: Any) -> JSON:
    return {"completionMode": "Indexed", "completions": workers, "parallelism": workers, **spec}
