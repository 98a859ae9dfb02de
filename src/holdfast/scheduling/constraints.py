"""Whether a pod and a machine suit each other, before it is asked how much room there is."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from holdfast.api.core.selectors import Affinity, NodeAffinity, NodeSpec, PodAffinityTerm, PodSpec, Taint, Toleration
from holdfast.scheduling.ledger import NodeCapacity
from holdfast.scheduling.resources import Amounts, pod_requests, sidecar_needs

# Which marks on a machine a pod puts up with.


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty key with Exists tolerates everything, an empty effect every effect."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return bool(toleration.key) and toleration.value == taint.value
    return False


def find_toleration(tolerations: Iterable[Toleration], taint: Taint) -> Toleration | None:
    """The first toleration that covers the taint."""
    return next((each for each in tolerations if tolerates(each, taint)), None)


CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def matches_node(pod: PodSpec, labels: Mapping[str, str], name: str) -> bool:
    """Whether the machine with these labels is one that the pod asks for."""
    required = pod.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    selected = all(labels.get(key) == value for key, value in pod.node_selector.items())
    return selected and (required is None or required.matches(labels, name))


def untolerated_taint(tolerations: Iterable[Toleration], machine: NodeSpec) -> Taint | None:
    """The first mark on the machine that keeps the pod away; `CORDONED` itself where people closed the machine."""
    marks = (CORDONED, *machine.taints) if machine.unschedulable else machine.taints
    for taint in marks:
        if taint.effect in ("NoSchedule", "NoExecute") and find_toleration(tolerations, taint) is None:
            return taint
    return None


# What one worker asks of a machine. Workers of one job are alike, and so are those of many jobs.


class PodRequirements(Struct, frozen=True, kw_only=True):
    """Only what decides where a worker can be, so that jobs that differ in nothing else are judged once."""

    requests: Amounts
    sidecar: Amounts = {}
    """The part of `asked` that is for the sidecar."""
    constraints: PodSpec
    """Its selector, its required node affinity and its tolerations; nothing else."""
    anti_affinity_keys: tuple[str, ...] = ()
    """The topology labels of which no two workers may share a value."""
    digest: bytes
    """Equal for equal shapes."""

    def matches(self, machine: NodeCapacity) -> bool:
        return matches_node(self.constraints, machine.labels, machine.name)

    def can_run_on(self, machine: NodeCapacity) -> bool:
        return machine.ready and untolerated_taint(self.constraints.tolerations, machine.spec) is None

    def domains(self, machine: NodeCapacity) -> frozenset[tuple[str, str]]:
        """The places that a worker there has to itself. A machine without the label sets no limit."""
        return frozenset((key, machine.labels[key]) for key in self.anti_affinity_keys if key in machine.labels)


def shape_of(pod: PodSpec, labels: Mapping[str, str], namespace: str) -> PodRequirements:
    """The shape of a worker from its pod.

    Preferences, spreading and company (required podAffinity) are left to the scheduler, and so is keeping away from
    pods of others.
    """
    affinity = pod.affinity
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    constraints = PodSpec(
        node_selector=pod.node_selector,
        affinity=Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required)),
        tolerations=pod.tolerations,
    )
    away = affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    anti_affinity_keys = tuple(
        sorted({term.topology_key for term in away if _selects_own_pods(term, labels, namespace)})
    )
    requests = {name: amount for name, amount in sorted(pod_requests(pod).items()) if amount > 0}
    sidecar = {name: amount for name, amount in sorted(sidecar_needs(pod).items()) if amount > 0}
    digest = msgspec.json.encode((requests, sidecar, constraints, anti_affinity_keys))
    return PodRequirements(
        requests=requests,
        sidecar=sidecar,
        constraints=constraints,
        anti_affinity_keys=anti_affinity_keys,
        digest=digest,
    )


def _selects_own_pods(term: PodAffinityTerm, labels: Mapping[str, str], namespace: str) -> bool:
    """Whether the term speaks of the pod's own fellows: pods with its labels in its namespace."""
    if any(key in labels for key in term.mismatch_label_keys):
        return False
    everywhere = term.namespace_selector is not None and term.namespace_selector.is_empty
    # A selector that is not empty asks for labels of the namespace, which are not at hand: it is left to the scheduler.
    named = term.namespaces or (() if term.namespace_selector is not None else (namespace,))
    in_reach = everywhere or namespace in named
    return in_reach and term.label_selector is not None and term.label_selector.matches(labels)
