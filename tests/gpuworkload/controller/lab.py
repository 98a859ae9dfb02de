"""One namespace with GPUWorkloads, seen through what a user can see."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from msgspec import structs

from holdfast.api.gpuworkload import GPUWorkloadSpec, GPUWorkloadStatus
from holdfast.api.meta import Object
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import GPU_WORKLOADS, NODES
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.gpuworkload.snapshot import GPUWorkloadTiming
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now, utc_now
from holdfast.times import format_time
from tests.contract.pods import POOL
from tests.control_plane.waiting import eventually
from tests.controllers.lab import ControllerLab, seen_as
from tests.controllers.operating import DEFAULTS, namespace_operator, running

GPU = "nvidia.com/gpu"
# Short where a test would only wait.
TIMING = GPUWorkloadTiming(infrastructure_backoff_s=0.2, lost_pod_timeout_s=1)


class SeenGPUWorkload(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
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


SEEN = seen_as(SeenGPUWorkload, GPU_WORKLOADS)


class GPUWorkloadLab(ControllerLab[SeenGPUWorkload]):
    """Its workloads only go to the test's own machines."""

    operator: Operator | None = None
    """The one that places them, if it runs for the whole test."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace, SEEN, "eval")

    async def submit(
        self, name: str = "", gpus: int = 2, *, selector: Mapping[str, str] | None = None, **spec: Any
    ) -> SeenGPUWorkload:
        """To an operator that knows the machines as they are now: nodes and workloads come by different watches."""
        await self._nodes_seen()
        wishes = {POOL: self.namespace, **(selector or {})}
        return await self.create({"modelName": "resnet50", "gpuCount": gpus, "nodeSelector": wishes, **spec}, name)

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

    async def until_phase(self, phase: str, name: str = "") -> SeenGPUWorkload:
        return await self.until(lambda it: it.status.phase == phase, f"is {phase}", name)

    async def until_job(self, job: str, phase: str = "Running", name: str = "") -> SeenGPUWorkload:
        def there(it: SeenGPUWorkload) -> bool:
            return (it.status.job_name, it.status.phase) == (job, phase)

        return await self.until(there, f"is {phase} as {job}", name)


@asynccontextmanager
async def placing(
    cluster: Cluster, namespace: str, *, seed: int = 0, now: Now = utc_now, **timing: Any
) -> AsyncIterator[Operator]:
    """An operator that looks after the workloads of one namespace inside the block."""
    operator = namespace_operator(cluster, namespace, now=now)
    chosen = structs.replace(TIMING, **timing)
    operator.add(
        gpu_workload_controller(operator, cluster, defaults=DEFAULTS, now=now, timing=chosen, random=Random(seed))
    )
    async with running(operator):
        yield operator


async def choose(lab: GPUWorkloadLab, name: str, node: str) -> None:
    """What an operator had written when it died."""
    status = {
        "phase": "Scheduling",
        "assignedNode": node,
        "jobName": f"{name}-job",
        "lastScheduleTime": format_time(utc_now()),
    }
    await lab.cluster.patch_status(GPU_WORKLOADS, lab.key(name), {"status": status})
