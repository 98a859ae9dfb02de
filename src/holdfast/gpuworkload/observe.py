"""Reads a GPUWorkload, its Jobs, their pods and the nodes from the caches."""

from collections.abc import Callable, Iterable

from msgspec import Struct

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.api.meta import Key
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS, NODES, PODS
from holdfast.gpuworkload import job as names
from holdfast.gpuworkload.snapshot import FINISHED_PHASES, Observed
from holdfast.pods.template import MANAGED_BY, MANAGED_SELECTOR
from holdfast.runtime.children import BY_NODE, BY_OWNER, node_of, owner_uid
from holdfast.runtime.informer import Informers, Store
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


class Caches(Struct, frozen=True):
    """The stores that the controller reads: all nodes and pods, and the Jobs that holdfast made."""

    workloads: Store[GPUWorkload]
    jobs: Store[Job]
    pods: Store[Pod]
    nodes: Store[Node]

    @classmethod
    def of(cls, operator: Operator) -> "Caches":
        return cls(
            workloads=operator.store(GPU_WORKLOADS, {BY_ASSIGNED: assigned_to}),
            jobs=operator.store(JOBS, {BY_OWNER: owner_uid}, labels=MANAGED_SELECTOR),
            pods=operator.store(PODS, {BY_WORKLOAD: workload_of, BY_NODE: node_of}),
            nodes=operator.store(NODES),
        )

    def observe(self, key: Key) -> Observed | None:
        """Everything that the caches hold about the workload; None when the workload does not exist."""
        workload = self.workloads.get(key)
        if workload is None:
            return None
        owned = self.jobs.by(BY_OWNER, workload.metadata.uid)
        name = workload.status.job_name if workload.status is not None else None
        job = next((each for each in owned if each.metadata.name == name), None)
        pods = self.pods.by(BY_WORKLOAD, str(key))
        current = tuple(pod for pod in pods if job is not None and job.metadata.uid in owner_uid(pod))
        return Observed(
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


class NodeReadinessWatch:
    """An event source: requeues workloads when their node is lost or comes back."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def changed(old: Node | None, new: Node | None) -> None:
            node = new or old
            if node is not None and (old is not None and old.is_ready) != (new is not None and new.is_ready):
                for key in self._caches.keys_on_node(node.metadata.name):
                    add(key)

        informers.of(NODES).handlers.append(changed)
