"""Who a pod wants near it, and who keeps away from whom."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.api.core.selectors import PodAffinityTerm, TopologySpreadConstraint
from holdfast.local.controllers.node_snapshot import NodeSnapshot
from holdfast.local.controllers.objects import Node, Pod
from holdfast.scheduling.constraints import matches_node

# A topology label and its value: one zone, one host.
Domain = tuple[str, str]


class PodAffinityState(Struct, frozen=True, kw_only=True):
    """Where a pod may not be, for the sake of others or its own; and where it must."""

    rejected_by_others: frozenset[Domain] = frozenset()
    avoided: frozenset[Domain] = frozenset()
    # For each of its wishes: the label, and the values where someone is that it wants near; None: anywhere with it.
    required_topologies: tuple[tuple[str, frozenset[str] | None], ...] = ()
    preferred: dict[Domain, int] = {}

    def refusal(self, node: Node) -> str | None:
        labels = node.metadata.labels
        for key, values in self.required_topologies:
            if key not in labels or (values is not None and labels[key] not in values):
                return "node(s) didn't match pod affinity rules"
        if any(labels.get(key) == value for key, value in self.avoided):
            return "node(s) didn't match pod anti-affinity rules"
        if any(labels.get(key) == value for key, value in self.rejected_by_others):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return None

    def preference(self, node: Node) -> int:
        labels = node.metadata.labels
        return sum(weight for (key, value), weight in self.preferred.items() if labels.get(key) == value)


def neighbours(pod: Pod, occupancy: NodeSnapshot, nodes: Mapping[str, Node]) -> PodAffinityState:
    wishes = pod.spec.affinity
    near = wishes.pod_affinity.required_during_scheduling_ignored_during_execution
    away = wishes.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    return PodAffinityState(
        rejected_by_others=frozenset(_repelled(pod, occupancy.pods_with_anti_affinity(), nodes)),
        avoided=frozenset(
            (term.topology_key, value) for term in away for value in _places(term, pod, occupancy, nodes)
        ),
        required_topologies=_drawn(pod, near, occupancy, nodes),
        preferred=_preferred(pod, occupancy, nodes),
    )


def _drawn(
    pod: Pod, near: tuple[PodAffinityTerm, ...], occupancy: NodeSnapshot, nodes: Mapping[str, Node]
) -> tuple[tuple[str, frozenset[str] | None], ...]:
    """The first of a group that wants to be together would wait for ever: it may go anywhere."""
    places = [(term.topology_key, _places(term, pod, occupancy, nodes)) for term in near]
    if not any(values for _, values in places) and all(_selects(term, pod, pod) for term in near):
        return tuple((key, None) for key, _ in places)
    return tuple(places)


def _repelled(pod: Pod, others: Iterable[Pod], nodes: Mapping[str, Node]) -> Iterable[Domain]:
    for other in others:
        for term in other.spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
            if _selects(term, other, pod) and (value := _value(term, other, nodes)) is not None:
                yield term.topology_key, value


def _preferred(pod: Pod, occupancy: NodeSnapshot, nodes: Mapping[str, Node]) -> dict[Domain, int]:
    wishes, found = pod.spec.affinity, dict[Domain, int]()
    for sign, group in ((1, wishes.pod_affinity), (-1, wishes.pod_anti_affinity)):
        for wish in group.preferred_during_scheduling_ignored_during_execution:
            term = wish.pod_affinity_term
            for value in _places(term, pod, occupancy, nodes):
                domain = term.topology_key, value
                found[domain] = found.get(domain, 0) + sign * wish.weight
    return found


def _places(term: PodAffinityTerm, pod: Pod, occupancy: NodeSnapshot, nodes: Mapping[str, Node]) -> frozenset[str]:
    """The values of the term's label where a pod is that the term speaks of."""
    values = (_value(term, other, nodes) for other in occupancy.all_pods() if _selects(term, pod, other))
    return frozenset(value for value in values if value is not None)


def _value(term: PodAffinityTerm, pod: Pod, nodes: Mapping[str, Node]) -> str | None:
    node = nodes.get(pod.spec.node_name)
    return node.metadata.labels.get(term.topology_key) if node else None


def _selects(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Without namespaces a term speaks of its owner's; an empty selector of namespaces means all of them."""
    everywhere = term.namespace_selector is not None and term.namespace_selector.is_empty
    named = term.namespaces or (() if term.namespace_selector is not None else (owner.metadata.namespace,))
    in_reach = everywhere or other.metadata.namespace in named
    return in_reach and term.label_selector is not None and term.label_selector.matches(other.metadata.labels)


# Pods that are to be spread evenly over zones or hosts.

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
