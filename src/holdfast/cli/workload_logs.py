"""The pod whose log a GPUWorkload has: that of its present try, or of its last one."""

import asyncio

from holdfast.api.builtin import Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import GPU_WORKLOADS, PODS
from holdfast.errors import HoldfastError
from holdfast.planning.gpuworkload.observed import FINISHED_PHASES
from holdfast.workloads.gpuworkload.names import WORKLOAD_LABEL
from holdfast.workloads.trainingjob.names import JOB_NAME_LABEL

LOOK_S = 0.5


class PodNotFound(HoldfastError):
    """The workload has no pod, or not yet."""


async def workload_pod(cluster: Cluster, key: Key, *, waits: bool) -> Pod:
    """With `waits`, a pod that may still come is waited for."""
    while True:
        workload = await cluster.get(GPU_WORKLOADS, key)
        status = workload.status or GPUWorkloadStatus()
        labels = f"{WORKLOAD_LABEL}={key.name},{JOB_NAME_LABEL}={status.job_name}"
        pods = (await cluster.list(PODS, namespace=key.namespace, labels=labels)).items if status.job_name else ()
        newest = max(pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)
        if newest is not None and (not waits or not _is_between_attempts(status)):
            return newest
        if not waits or status.phase in FINISHED_PHASES:
            raise PodNotFound(f"{key} has no pod: it is {_status_text(workload)}")
        await asyncio.sleep(LOOK_S)


def _is_between_attempts(status: GPUWorkloadStatus) -> bool:
    return status.phase not in FINISHED_PHASES and not status.assigned_node


def _status_text(workload: GPUWorkload) -> str:
    status = workload.status or GPUWorkloadStatus()
    return ": ".join(filter(None, (status.phase or "Pending", status.message)))
