"""Reads a GPUWorkload, its Jobs, their pods and the nodes from the caches."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.api.meta import Key
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS, NODES, PODS
from holdfast.gpuworkload import job as names
from holdfast.gpuworkload.snapshot import FINISHED_PHASES, GPUWorkloadSnapshot
from holdfast.pods.template import MANAGED_BY, MANAGED_SELECTOR
from holdfast.runtime.children import BY_NODE, BY_OWNER, node_of, owner_uid
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator

BY_WORKLOAD = "gpu-workload"
BY_ASSIGNED = "assigned-node"


def key_of(pod: Pod) -> Iterable[Key]:
    """A pod is owned by a Job; a label of the pod names the workload. Anybody can copy a label, so both are checked."""
    labels, owner = pod.metadata.labels, pod.metadata.controller
    if labels.get(MANAGED_BY) != "holdfast" or names.WORKLOAD_LABEL not in labels or owner is None:
        return
    if owner.kind == "Job" and owner.name.startswith(f"{labels[names.WORKLOAD_LABEL]}-job"):
        yield Key(pod.metadata.namespace, labels[names.WORKLOAD_LABEL])


def workload_of(pod: Pod) -> Iterable[str]:
    return map(str, key_of(pod))


def assigned_to(workload: GPUWorkload) -> Iterable[str]:
    """The node of the workload's attempt; the node of a finished workload does not matter."""
    status = workload.status
    if status is not None and status.assigned_node and status.phase not in FINISHED_PHASES:
        yield status.assigned_node


class GPUWorkloadCaches(Struct, frozen=True):
    """The stores that the controller reads: all nodes and pods, and the Jobs that holdfast made."""

    workloads: Store[GPUWorkload]
    jobs: Store[Job]
    pods: Store[Pod]
    nodes: Store[Node]

    @classmethod
    def of(cls, operator: Operator) -> "GPUWorkloadCaches":
        return cls(
            workloads=operator.store(GPU_WORKLOADS, {BY_ASSIGNED: assigned_to}),
            jobs=operator.store(JOBS, {BY_OWNER: owner_uid}, labels=MANAGED_SELECTOR),
            pods=operator.store(PODS, {BY_WORKLOAD: workload_of, BY_NODE: node_of}),
            nodes=operator.store(NODES),
        )

    def observe(self, key: Key) -> GPUWorkloadSnapshot | None:
        """Everything that the caches hold about the workload; None when the workload does not exist."""
        workload = self.workloads.get(key)
        return self.snapshot(workload) if workload is not None else None

    def snapshot(self, workload: GPUWorkload) -> GPUWorkloadSnapshot:
        owned = self.jobs.by(BY_OWNER, workload.metadata.uid)
        name = workload.status.job_name if workload.status is not None else None
        job = next((each for each in owned if each.metadata.name == name), None)
        pods = self.pods.by(BY_WORKLOAD, str(workload.metadata.key))
        current = tuple(pod for pod in pods if job is not None and job.metadata.uid in owner_uid(pod))
        return GPUWorkloadSnapshot(
            workload=workload,
            job=job,
            old_jobs=tuple(each for each in owned if each is not job),
            pods=current,
            old_pods=tuple(pod for pod in pods if pod not in current),
            nodes=self._nodes(workload, pods),
        )

    def keys_on_node(self, node: str) -> Iterable[Key]:
        """Workloads that are assigned to the node, or have pods there."""
        for workload in self.workloads.by(BY_ASSIGNED, node):
            yield workload.metadata.key
        for pod in self.pods.by(BY_NODE, node):
            yield from key_of(pod)

    def _nodes(self, workload: GPUWorkload, pods: Iterable[Pod]) -> dict[str, Node]:
        wanted = {*assigned_to(workload), *(pod.spec.node_name for pod in pods if pod.spec.node_name)}
        found = ((name, self.nodes.get(Key("", name))) for name in wanted)
        return {name: node for name, node in found if node is not None}
