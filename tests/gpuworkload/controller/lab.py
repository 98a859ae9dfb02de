"""One namespace with GPUWorkloads, seen through what a user can see."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from msgspec import structs

from holdfast.api.core.objects import Job, Pod
from holdfast.api.gpuworkload import GPUWorkloadSpec, GPUWorkloadStatus
from holdfast.api.meta import Object
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import EVENTS, GPU_WORKLOADS, JOBS, NODES, PODS
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.gpuworkload.snapshot import Timing
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, Settings
from holdfast.runtime.process import Now, format_time, utc_now
from tests.contract.pods import POOL
from tests.contract.waiting import gone, until
from tests.control_plane.waiting import eventually
from tests.trainingjob.controller.lab import Lab
from tests.trainingjob.controller.operating import DEFAULTS

GPU = "nvidia.com/gpu"
# Short where a test would only wait.
TIMING = Timing(infrastructure_backoff_s=0.2, lost_pod_timeout_s=1)


class Seen(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A GPUWorkload as tests look at it: its status is there, if only empty."""

    spec: GPUWorkloadSpec
    status: GPUWorkloadStatus = GPUWorkloadStatus()

    @property
    def message(self) -> str:
        return self.status.message or ""

    @property
    def node(self) -> str:
        return self.status.assigned_node or ""

    def holds(self, kind: str) -> bool:
        return any(each.type == kind and each.status == "True" for each in self.status.conditions)


SEEN = Resource(
    group=GPU_WORKLOADS.group,
    version=GPU_WORKLOADS.version,
    kind=GPU_WORKLOADS.kind,
    plural=GPU_WORKLOADS.plural,
    model=Seen,
)


class GpuLab(Lab):
    """Its workloads only go to the test's own machines."""

    operator: Operator | None = None
    """The one that places them, if it runs for the whole test."""

    async def ask(
        self, name: str = "eval", gpus: int = 2, *, selector: Mapping[str, str] | None = None, **spec: Any
    ) -> Seen:
        """Of an operator that knows the machines as they are now: nodes and workloads come by different watches."""
        await self._nodes_seen()
        wishes = {POOL: self.namespace, **(selector or {})}
        body = {"modelName": "resnet50", "gpuCount": gpus, "nodeSelector": wishes, **spec}
        return await self.cluster.create(SEEN, {"metadata": {"name": name}, "spec": body}, namespace=self.namespace)

    async def _nodes_seen(self) -> None:
        if self.operator is None:
            return
        there, known = await self.cluster.list(NODES, labels=f"{POOL}={self.namespace}"), self.operator.store(NODES)

        async def unseen() -> list[str]:
            found = ((node.metadata, known.get(node.metadata.key)) for node in there.items)
            return [
                meta.name
                for meta, seen in found
                if seen is None or int(seen.metadata.resource_version) < int(meta.resource_version)
            ]

        await eventually(unseen, lambda names: not names, what="the operator sees all machines")

    async def workload(self, name: str = "eval") -> Seen:
        return await self.cluster.get(SEEN, self.key(name))

    async def seen(self, holds: Callable[[Seen], object], what: str, name: str = "eval") -> Seen:
        return await until(self.cluster, SEEN, self.key(name), holds, what)

    async def until_phase(self, phase: str, name: str = "eval") -> Seen:
        return await self.seen(lambda it: it.status.phase == phase, f"is {phase}", name)

    async def until_job(self, job: str, phase: str = "Running", name: str = "eval") -> Seen:
        def there(it: Seen) -> bool:
            return (it.status.job_name, it.status.phase) == (job, phase)

        return await self.seen(there, f"is {phase} as {job}", name)

    async def set(self, name: str = "eval", **spec: Any) -> None:
        await self.cluster.patch(GPU_WORKLOADS, self.key(name), {"spec": spec})

    async def delete(self, name: str = "eval") -> None:
        await self.cluster.delete(GPU_WORKLOADS, self.key(name))

    async def gone(self, name: str = "eval") -> None:
        await gone(self.cluster, GPU_WORKLOADS, self.key(name))

    async def jobs(self) -> dict[str, Job]:
        return {job.metadata.name: job for job in (await self.cluster.list(JOBS, namespace=self.namespace)).items}

    async def pods(self) -> tuple[Pod, ...]:
        return (await self.cluster.list(PODS, namespace=self.namespace)).items

    async def events(self, name: str = "eval", *, last: str) -> list[str]:
        """The reasons of all events about the workload by name, once there is one of the last reason."""
        about = f"involvedObject.name={name}"

        async def look() -> list[str]:
            found = await self.cluster.list(EVENTS, namespace=self.namespace, fields=about)
            return sorted(event.reason for event in found.items)

        return await eventually(look, lambda reasons: last in reasons, what=f"event {last} of {name}")


@asynccontextmanager
async def placing(
    cluster: Cluster, namespace: str, *, seed: int = 0, now: Now = utc_now, **timing: Any
) -> AsyncIterator[Operator]:
    """An operator that looks after the workloads of one namespace inside the block."""
    settings = Settings(namespaces=(namespace,), workers=4)
    operator = Operator(cluster, identity="test", now=now, random=Random(0), metrics=Metrics(), settings=settings)
    chosen = structs.replace(TIMING, **timing)
    operator.add(
        gpu_workload_controller(operator, cluster, defaults=DEFAULTS, now=now, timing=chosen, dice=Random(seed))
    )
    running = asyncio.create_task(operator.run())
    try:
        yield operator
    finally:
        operator.stop()
        await running


async def choose(lab: GpuLab, name: str, node: str) -> None:
    """What an operator had written when it died."""
    status = {
        "phase": "Scheduling",
        "assignedNode": node,
        "jobName": f"{name}-job",
        "lastScheduleTime": format_time(utc_now()),
    }
    await lab.cluster.patch_status(GPU_WORKLOADS, lab.key(name), {"status": status})
