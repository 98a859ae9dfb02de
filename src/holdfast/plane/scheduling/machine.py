"""Whether a pod may be on a machine, as far as the two of them are concerned; in the scheduler's own words."""

from collections.abc import Iterator

from holdfast.plane.amounts import nanos
from holdfast.plane.objects import Node, Pod, Taint
from holdfast.plane.scheduling.needs import Amounts
from holdfast.plane.tolerance import tolerated

CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def refusals(pod: Pod, node: Node, asked: Amounts, taken: Amounts) -> tuple[str, ...]:
    """The first kind of obstacle, with all that it is about; nothing when the pod may be there."""
    for obstacles in (_cordoned(pod, node), _taints(pod, node), _wishes(pod, node), _shortages(node, asked, taken)):
        found = tuple(obstacles)
        if found:
            return found
    return ()


def wants(pod: Pod, node: Node) -> bool:
    """Whether the machine is one that the pod asks for."""
    labels, name = node.metadata.labels, node.metadata.name
    required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    selected = all(labels.get(key) == value for key, value in pod.spec.node_selector.items())
    return selected and (required is None or required.holds(labels, name))


def _cordoned(pod: Pod, node: Node) -> Iterator[str]:
    if node.spec.unschedulable and tolerated(pod.spec.tolerations, CORDONED) is None:
        yield "node(s) were unschedulable"


def _taints(pod: Pod, node: Node) -> Iterator[str]:
    for taint in node.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and tolerated(pod.spec.tolerations, taint) is None:
            yield f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
            return


def _wishes(pod: Pod, node: Node) -> Iterator[str]:
    if not wants(pod, node):
        yield "node(s) didn't match Pod's node affinity/selector"


def _shortages(node: Node, asked: Amounts, taken: Amounts) -> Iterator[str]:
    offered = node.status.allocatable
    for name, amount in asked.items():
        if amount > 0 and amount > nanos(offered.get(name, 0)) - taken.get(name, 0):
            yield "Too many pods" if name == "pods" else f"Insufficient {name}"
