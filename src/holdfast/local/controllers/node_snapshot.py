"""The pods on each node and the resources they use, updated with every change instead of recomputed.

A pod that was just bound counts at once, before the cache shows the binding; otherwise two pods could be given the same
capacity.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from holdfast.api.core.objects import Node, PersistentVolumeClaim, Pod
from holdfast.api.core.selectors import PodAffinityTerm, TopologySpreadConstraint
from holdfast.api.meta import Key
from holdfast.cluster.resources import CLAIMS, NODES, PODS
from holdfast.runtime.informer import Informers
from holdfast.scheduling.constraints import matches_node
from holdfast.scheduling.resources import Amounts, minus, plus, pod_requests

SCHEDULER_NAME = "default-scheduler"


class NodeSnapshot:
    """A watch of the scheduler; `dirty` is whether a change may make a waiting pod schedulable."""

    def __init__(self) -> None:
        self.dirty = True
        self._pods: dict[str, dict[str, Pod]] = {}
        self._taken: dict[str, Amounts] = {}
        self._assumed: dict[str, Pod] = {}
        self._with_anti_affinity: dict[str, Pod] = {}
        self._waiting: dict[str, Pod] = {}

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def node_changed(old: Node | None, new: Node | None) -> None:
            if _schedulable_state(old) != _schedulable_state(new):
                self.dirty = True
                add(Key("", ""))

        def claim_changed(_old: PersistentVolumeClaim | None, _new: PersistentVolumeClaim | None) -> None:
            self.dirty = True
            add(Key("", ""))

        informers.of(PODS).handlers.append(self.pod_changed)
        informers.of(NODES).handlers.append(node_changed)
        informers.of(CLAIMS).handlers.append(claim_changed)

    def waiting(self) -> list[Pod]:
        """The pods to schedule, in order of arrival."""
        return [pod for uid, pod in self._waiting.items() if uid not in self._assumed]

    def on(self, node: str) -> Iterable[Pod]:
        return self._pods.get(node, {}).values()

    def taken(self, node: str) -> Amounts:
        return self._taken.get(node, {})

    def all_pods(self) -> Iterable[Pod]:
        return (pod for pods in self._pods.values() for pod in pods.values())

    def pods_with_anti_affinity(self) -> Iterable[Pod]:
        """The pods on nodes that have a required anti-affinity."""
        return self._with_anti_affinity.values()

    def assume(self, bound: Pod) -> None:
        """`bound` is the pod with its node, as the cluster will show it after the binding."""
        self._assumed[bound.metadata.uid] = bound
        self._add_pod(bound)

    def forget(self, bound: Pod) -> None:
        """The binding failed."""
        self._end_assumption(bound)
        self.dirty = True

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._queue(old, new)
        if _is_unchanged(old, new):
            return
        for pod in (old, new):
            # An assumed binding ends when the cache shows a node, or that the pod is gone.
            if pod is not None and (new is None or pod.metadata.uid != new.metadata.uid or not waits(new)):
                self._end_assumption(pod)
        if old is not None and _uses_capacity(old):
            self._remove_pod(old)
        if new is not None and _uses_capacity(new):
            self._add_pod(new)
        self.dirty = True

    def _queue(self, old: Pod | None, new: Pod | None) -> None:
        """A pod keeps its position in the queue while it changes."""
        if new is not None and waits(new):
            self._waiting[new.metadata.uid] = new
        elif new is not None:
            self._waiting.pop(new.metadata.uid, None)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._waiting.pop(old.metadata.uid, None)

    def _end_assumption(self, pod: Pod) -> None:
        assumed = self._assumed.pop(pod.metadata.uid, None)
        if assumed is not None:
            self._remove_pod(assumed)

    def _add_pod(self, pod: Pod) -> None:
        node, uid = pod.spec.node_name, pod.metadata.uid
        self._pods.setdefault(node, {})[uid] = pod
        self._taken[node] = plus(self._taken.get(node, {}), pod_requests(pod.spec))
        if pod.spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
            self._with_anti_affinity[uid] = pod

    def _remove_pod(self, pod: Pod) -> None:
        node, uid = pod.spec.node_name, pod.metadata.uid
        self._with_anti_affinity.pop(uid, None)
        if self._pods.get(node, {}).pop(uid, None) is not None:
            self._taken[node] = minus(self._taken[node], pod_requests(pod.spec))
        if not self._pods.get(node):
            self._pods.pop(node, None)
            self._taken.pop(node, None)


def waits(pod: Pod) -> bool:
    """Whether the pod needs a node, and from this scheduler."""
    spec = pod.spec
    is_pending = not (spec.node_name or pod.is_finished or pod.is_terminating or spec.scheduling_gates)
    return is_pending and spec.scheduler_name == SCHEDULER_NAME


def _uses_capacity(pod: Pod) -> bool:
    """A terminating pod still uses its node's capacity; a pod that has ended uses none."""
    return bool(pod.spec.node_name) and not pod.is_finished


def _is_unchanged(old: Pod | None, new: Pod | None) -> bool:
    """Whether nothing changed that the scheduler reads."""
    return (
        old is not None
        and new is not None
        and old.metadata.uid == new.metadata.uid
        and (_uses_capacity(old), old.is_terminating) == (_uses_capacity(new), new.is_terminating)
        and (waits(old), old.spec, old.metadata.labels) == (waits(new), new.spec, new.metadata.labels)
    )


def _schedulable_state(node: Node | None) -> object:
    return node and (node.metadata.labels, node.spec, node.status.allocatable)


# Inter-pod affinity and anti-affinity, and topology spread.


# A topology label and its value: one zone, one host.
Domain = tuple[str, str]


class PodAffinityState(Struct, frozen=True, kw_only=True):
    """The topology domains that a pod must not use, because of other pods' terms or its own, and those that it must."""

    rejected_by_others: frozenset[Domain] = frozenset()
    avoided: frozenset[Domain] = frozenset()
    # For each required term: the topology label, and its values where a matching pod is. None: any value, but the node
    # must have the label.
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
    affinity = pod.spec.affinity
    near = affinity.pod_affinity.required_during_scheduling_ignored_during_execution
    away = affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    return PodAffinityState(
        rejected_by_others=frozenset(_rejected_domains(pod, occupancy.pods_with_anti_affinity(), nodes)),
        avoided=frozenset(
            (term.topology_key, value) for term in away for value in _places(term, pod, occupancy, nodes)
        ),
        required_topologies=_required_topologies(pod, near, occupancy, nodes),
        preferred=_preferred(pod, occupancy, nodes),
    )


def _required_topologies(
    pod: Pod, near: tuple[PodAffinityTerm, ...], occupancy: NodeSnapshot, nodes: Mapping[str, Node]
) -> tuple[tuple[str, frozenset[str] | None], ...]:
    """The first pod of a group with affinity to itself would wait for ever, so it may use any domain."""
    topologies = [(term.topology_key, _places(term, pod, occupancy, nodes)) for term in near]
    if not any(values for _, values in topologies) and all(_selects(term, pod, pod) for term in near):
        return tuple((key, None) for key, _ in topologies)
    return tuple(topologies)


def _rejected_domains(pod: Pod, others: Iterable[Pod], nodes: Mapping[str, Node]) -> Iterable[Domain]:
    for other in others:
        for term in other.spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
            if _selects(term, other, pod) and (value := _value(term, other, nodes)) is not None:
                yield term.topology_key, value


def _preferred(pod: Pod, occupancy: NodeSnapshot, nodes: Mapping[str, Node]) -> dict[Domain, int]:
    affinity, found = pod.spec.affinity, dict[Domain, int]()
    for sign, group in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
        for weighted in group.preferred_during_scheduling_ignored_during_execution:
            term = weighted.pod_affinity_term
            for value in _places(term, pod, occupancy, nodes):
                domain = term.topology_key, value
                found[domain] = found.get(domain, 0) + sign * weighted.weight
    return found


def _places(term: PodAffinityTerm, pod: Pod, occupancy: NodeSnapshot, nodes: Mapping[str, Node]) -> frozenset[str]:
    """The values of the term's topology label whose domain has a pod that the term selects."""
    values = (_value(term, other, nodes) for other in occupancy.all_pods() if _selects(term, pod, other))
    return frozenset(value for value in values if value is not None)


def _value(term: PodAffinityTerm, pod: Pod, nodes: Mapping[str, Node]) -> str | None:
    node = nodes.get(pod.spec.node_name)
    return node.metadata.labels.get(term.topology_key) if node else None


def _selects(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Without namespaces a term covers its owner's namespace; an empty namespace selector covers all of them."""
    all_namespaces = term.namespace_selector is not None and term.namespace_selector.is_empty
    named = term.namespaces or (() if term.namespace_selector is not None else (owner.metadata.namespace,))
    in_scope = all_namespaces or other.metadata.namespace in named
    return in_scope and term.label_selector is not None and term.label_selector.matches(other.metadata.labels)


# Topology spread: pods spread evenly over zones or hosts.

REFUSAL = "node(s) didn't match pod topology spread constraints"


class TopologySpread(Struct, frozen=True):
    """The pod count of each domain of one constraint; `own` is 1 when the pod itself counts."""

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
    """Only nodes that the pod's node affinity allows form a domain."""
    counts: dict[str, int] = {}
    for name, node in nodes.items():
        domain = node.metadata.labels.get(constraint.topology_key)
        if domain is not None and matches_node(pod.spec, node.metadata.labels, name):
            count = sum(_is_counted(constraint, pod, other) for other in occupancy.on(name) if not other.is_terminating)
            counts[domain] = counts.get(domain, 0) + count
    return TopologySpread(constraint, counts, int(_is_counted(constraint, pod, pod)))


def _is_counted(constraint: TopologySpreadConstraint, pod: Pod, other: Pod) -> bool:
    selector = constraint.label_selector
    same = other.metadata.namespace == pod.metadata.namespace
    return same and selector is not None and selector.matches(other.metadata.labels)
