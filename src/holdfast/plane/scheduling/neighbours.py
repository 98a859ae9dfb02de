"""Who a pod wants near it, and who keeps away from whom."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.api.placing import PodAffinityTerm
from holdfast.plane.objects import Node, Pod
from holdfast.plane.scheduling.occupancy import NodeSnapshot

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
