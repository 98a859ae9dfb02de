"""What one worker asks of a machine. Workers of one job are alike, and so are those of many jobs."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from holdfast.api.placing import Affinity, NodeAffinity, PodAffinityTerm, PodSpec
from holdfast.planning.ledger import Machine
from holdfast.planning.placing.amounts import Amounts
from holdfast.planning.placing.machines import barrier, wants
from holdfast.planning.placing.needs import needs, sidecar_needs


class Shape(Struct, frozen=True, kw_only=True):
    """Only what decides where a worker can be, so that jobs that differ in nothing else are judged once."""

    asked: Amounts
    sidecar: Amounts = {}
    """The part of `asked` that is for the sidecar."""
    wishes: PodSpec
    """Its selector, its required node affinity and its tolerations; nothing else."""
    apart: tuple[str, ...] = ()
    """The topology labels of which no two workers may share a value."""
    digest: bytes
    """Equal for equal shapes."""

    def matches(self, machine: Machine) -> bool:
        return wants(self.wishes, machine.labels, machine.name)

    def may_enter(self, machine: Machine) -> bool:
        return machine.ready and barrier(self.wishes.tolerations, machine.spec) is None

    def domains(self, machine: Machine) -> frozenset[tuple[str, str]]:
        """The places that a worker there has to itself. A machine without the label sets no limit."""
        return frozenset((key, machine.labels[key]) for key in self.apart if key in machine.labels)


def shape_of(pod: PodSpec, labels: Mapping[str, str], namespace: str) -> Shape:
    """The shape of a worker from its pod.

    Preferences, spreading and company (required podAffinity) are left to the scheduler, and so is keeping away from
    pods of others.
    """
    affinity = pod.affinity
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    wishes = PodSpec(
        node_selector=pod.node_selector,
        affinity=Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required)),
        tolerations=pod.tolerations,
    )
    away = affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    apart = tuple(sorted({term.topology_key for term in away if _means_its_like(term, labels, namespace)}))
    asked = {name: amount for name, amount in sorted(needs(pod).items()) if amount > 0}
    sidecar = {name: amount for name, amount in sorted(sidecar_needs(pod).items()) if amount > 0}
    digest = msgspec.json.encode((asked, sidecar, wishes, apart))
    return Shape(asked=asked, sidecar=sidecar, wishes=wishes, apart=apart, digest=digest)


def _means_its_like(term: PodAffinityTerm, labels: Mapping[str, str], namespace: str) -> bool:
    """Whether the term speaks of the pod's own fellows: pods with its labels in its namespace."""
    if any(key in labels for key in term.mismatch_label_keys):
        return False
    everywhere = term.namespace_selector is not None and term.namespace_selector.is_empty
    # A selector that is not empty asks for labels of the namespace, which are not at hand: it is left to the scheduler.
    named = term.namespaces or (() if term.namespace_selector is not None else (namespace,))
    in_reach = everywhere or namespace in named
    return in_reach and term.label_selector is not None and term.label_selector.holds(labels)
