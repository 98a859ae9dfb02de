"""Pods that are to be spread evenly over zones or hosts."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.api.placing import TopologySpreadConstraint
from holdfast.plane.objects import Node, Pod
from holdfast.plane.scheduling.occupancy import NodeSnapshot
from holdfast.planning.placing.machines import matches_node

REFUSAL = "node(s) didn't match pod topology spread constraints"


class TopologySpread(Struct, frozen=True):
    """How many pods each domain of one constraint has; `own` is 1 when the pod itself is one of them."""

    constraint: TopologySpreadConstraint
    counts: dict[str, int]
    own: int

    def refusal(self, node: Node) -> str | None:
        domain = node.metadata.labels.get(self.constraint.topology_key)
        if domain is None:
            return f"{REFUSAL} (missing required label)"
        skew = self.counts.get(domain, 0) + self.own - min(self.counts.values(), default=0)
        return REFUSAL if skew > self.constraint.max_skew else None


def topology_spreads(pod: Pod, occupancy: NodeSnapshot, nodes: Mapping[str, Node]) -> tuple[TopologySpread, ...]:
    hard = (each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable == "DoNotSchedule")
    return tuple(_counted(each, pod, occupancy, nodes) for each in hard)


def _counted(
    constraint: TopologySpreadConstraint, pod: Pod, occupancy: NodeSnapshot, nodes: Mapping[str, Node]
) -> TopologySpread:
    """Only machines that the pod may choose from make a domain."""
    counts: dict[str, int] = {}
    for name, node in nodes.items():
        domain = node.metadata.labels.get(constraint.topology_key)
        if domain is not None and matches_node(pod.spec, node.metadata.labels, name):
            there = sum(_is_counted(constraint, pod, other) for other in occupancy.on(name) if not other.is_terminating)
            counts[domain] = counts.get(domain, 0) + there
    return TopologySpread(constraint, counts, int(_is_counted(constraint, pod, pod)))


def _is_counted(constraint: TopologySpreadConstraint, pod: Pod, other: Pod) -> bool:
    selector = constraint.label_selector
    same = other.metadata.namespace == pod.metadata.namespace
    return same and selector is not None and selector.matches(other.metadata.labels)
