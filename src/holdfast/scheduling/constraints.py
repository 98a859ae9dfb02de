"""Which nodes a pod may run on, before capacity is checked: selectors, affinity, taints; a workload's request."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from holdfast.api.core.objects import NodeSpec, PodSpec
from holdfast.api.core.selectors import Affinity, NodeAffinity, PodAffinityTerm, Taint, Toleration
from holdfast.api.meta import Key
from holdfast.scheduling.ledger import GPU, NodeCapacity
from holdfast.scheduling.resources import NANO, Amounts, pod_requests, sidecar_requests
from holdfast.scheduling.strategies import STRATEGIES
from holdfast.scheduling.strategy import Strategy

# Taints and tolerations.


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
    """Whether the node with these labels matches the pod's selector and required node affinity."""
    required = pod.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    selected = all(labels.get(key) == value for key, value in pod.node_selector.items())
    return selected and (required is None or required.matches(labels, name))


def untolerated_taint(tolerations: Iterable[Toleration], node: NodeSpec) -> Taint | None:
    """The first taint of the node that the pod does not tolerate; `CORDONED` itself for a cordoned node."""
    taints = (CORDONED, *node.taints) if node.unschedulable else node.taints
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and find_toleration(tolerations, taint) is None:
            return taint
    return None


# What one worker requires of a node. The workers of one job are alike, and so are the workers of many jobs.


class PodRequirements(Struct, frozen=True, kw_only=True):
    """Only what decides where a worker can run, so that jobs with equal requirements are evaluated once."""

    requests: Amounts
    sidecar: Amounts = {}
    """The part of `requests` that is for the sidecar."""
    constraints: PodSpec
    """The node selector, the required node affinity and the tolerations; nothing else."""
    anti_affinity_keys: tuple[str, ...] = ()
    """The topology keys of which no two workers may share a value."""
    digest: bytes
    """Equal for equal shapes."""

    def matches(self, node: NodeCapacity) -> bool:
        return matches_node(self.constraints, node.labels, node.name)

    def can_run_on(self, node: NodeCapacity) -> bool:
        return node.ready and untolerated_taint(self.constraints.tolerations, node.spec) is None

    def domains(self, node: NodeCapacity) -> frozenset[tuple[str, str]]:
        """The topology domains that a worker on the node does not share. A node without the label sets no limit."""
        return frozenset((key, node.labels[key]) for key in self.anti_affinity_keys if key in node.labels)


def exclusion_reason(shape: PodRequirements, node: NodeCapacity) -> str:
    """Why such a pod can't be scheduled to the node."""
    taint = untolerated_taint(shape.constraints.tolerations, node.spec)
    if taint is CORDONED:
        return "cordoned"
    if not node.ready or taint is None:
        return "not ready"
    return f"with taint {taint.key}={taint.value}" if taint.value else f"with taint {taint.key}"


def displaced(one: PodRequirements, other: PodRequirements) -> int:
    """How many workers of the other shape one worker takes the room of, at the most."""
    return max((-(-one.requests.get(name, 0) // amount) for name, amount in other.requests.items()), default=0)


def shape_of(pod: PodSpec, labels: Mapping[str, str], namespace: str) -> PodRequirements:
    """The shape of a worker from its pod.

    Preferences, topology spread and required podAffinity are left to the scheduler, and so is anti-affinity to pods of
    other jobs.
    """
    affinity = pod.affinity
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    constraints = PodSpec(
        node_selector=pod.node_selector,
        affinity=Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required)),
        tolerations=pod.tolerations,
    )
    anti_affinity_terms = affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    anti_affinity_keys = tuple(
        sorted({term.topology_key for term in anti_affinity_terms if _selects_own_pods(term, labels, namespace)})
    )
    requests = {name: amount for name, amount in sorted(pod_requests(pod).items()) if amount > 0}
    sidecar = {name: amount for name, amount in sorted(sidecar_requests(pod).items()) if amount > 0}
    digest = msgspec.json.encode((requests, sidecar, constraints, anti_affinity_keys))
    return PodRequirements(
        requests=requests,
        sidecar=sidecar,
        constraints=constraints,
        anti_affinity_keys=anti_affinity_keys,
        digest=digest,
    )


def _selects_own_pods(term: PodAffinityTerm, labels: Mapping[str, str], namespace: str) -> bool:
    """Whether the term selects the pods of the same job: pods with these labels in this namespace."""
    if any(key in labels for key in term.mismatch_label_keys):
        return False
    all_namespaces = term.namespace_selector is not None and term.namespace_selector.is_empty
    # A selector that is not empty needs the labels of the namespace, which are not known here: left to the scheduler.
    namespaces = term.namespaces or (() if term.namespace_selector is not None else (namespace,))
    covers_namespace = all_namespaces or namespace in namespaces
    return covers_namespace and term.label_selector is not None and term.label_selector.matches(labels)


# The scheduling request of a workload: a number of GPUs on one node, and the other requests of its pod.


class Request(Struct, frozen=True, kw_only=True):
    key: Key
    uid: str
    reservation_id: str
    """The reservation id of the attempt. The pod carries it as a label, so that the ledger can match the two."""
    shape: PodRequirements
    gpus: int
    strategy: str
    priority: int = 0
    since: str = ""
    """Creation time of the workload: the older workload goes first."""
    avoided: tuple[str, ...] = ()
    """Nodes that are used only if no other node fits."""

    @property
    def rank(self) -> tuple[int, str, Key]:
        return -self.priority, self.since, self.key

    @property
    def other_requests(self) -> Amounts:
        """All requests but GPUs."""
        return {name: amount for name, amount in self.shape.requests.items() if name != GPU}

    @property
    def strategy_impl(self) -> Strategy:
        return STRATEGIES[self.strategy]


class SchedulingClass(Struct, frozen=True, kw_only=True):
    """Workloads that may use the same nodes and prefer the same nodes, whatever their requests are."""

    shape: PodRequirements
    """The shape of any workload of the class; its requests do not matter here."""
    strategy: Strategy | None = None
    """The strategy whose node preference applies; None without a preference."""
    digest: bytes
    """Equal for equal classes."""


def scheduling_class_of(request: Request) -> SchedulingClass:
    strategy = request.strategy_impl if request.strategy_impl.prefers is not None else None
    digest = msgspec.json.encode((request.shape.constraints, strategy.name if strategy is not None else ""))
    return SchedulingClass(shape=request.shape, strategy=strategy, digest=digest)


def gpus_in(amounts: Amounts) -> int:
    """Whole GPUs: a fraction of a GPU is of no use."""
    return max(0, amounts.get(GPU, 0) // NANO)
