"""Whether a pod may be on a machine, as far as the two of them are concerned; in the scheduler's own words."""

from collections.abc import Iterator

from holdfast.plane.objects import Node, Pod
from holdfast.planning.placing.amounts import Amounts, parse_nanos
from holdfast.planning.placing.machines import CORDONED, matches_node, untolerated_taint


def filter_failures(pod: Pod, node: Node, asked: Amounts, taken: Amounts) -> tuple[str, ...]:
    """The first kind of obstacle, with all that it is about; nothing when the pod may be there."""
    for obstacles in (_taint_failures(pod, node), _affinity_failures(pod, node), _shortages(node, asked, taken)):
        found = tuple(obstacles)
        if found:
            return found
    return ()


def _taint_failures(pod: Pod, node: Node) -> Iterator[str]:
    mark = untolerated_taint(pod.spec.tolerations, node.spec)
    if mark is CORDONED:
        yield "node(s) were unschedulable"
    elif mark is not None:
        yield f"node(s) had untolerated taint {{{mark.key}: {mark.value}}}"


def _affinity_failures(pod: Pod, node: Node) -> Iterator[str]:
    if not matches_node(pod.spec, node.metadata.labels, node.metadata.name):
        yield "node(s) didn't match Pod's node affinity/selector"


def _shortages(node: Node, asked: Amounts, taken: Amounts) -> Iterator[str]:
    offered = node.status.allocatable
    for name, amount in asked.items():
        if amount > 0 and amount > parse_nanos(offered.get(name, 0)) - taken.get(name, 0):
            yield "Too many pods" if name == "pods" else f"Insufficient {name}"
