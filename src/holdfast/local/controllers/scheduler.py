"""The scheduler: each change starts one pass over all waiting pods, so that the order of priority holds."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Protocol

import msgspec
import structlog
from msgspec import Struct, structs

from holdfast.api.core.objects import Node, PersistentVolumeClaim, Pod, PodCondition, find_condition, with_condition
from holdfast.api.meta import Key
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.cluster.resources import CLAIMS, NODES, PODS
from holdfast.local.controllers.node_snapshot import (
    NodeSnapshot,
    PodAffinityState,
    TopologySpread,
    neighbours,
    topology_spreads,
)
from holdfast.local.controllers.objects import gather_all, resource_version_precondition
from holdfast.local.controllers.storage import UNBOUND, unbound_claims_message
from holdfast.runtime.controller import Controller, Done, Result, TerminalError
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker
from holdfast.scheduling.constraints import CORDONED, find_toleration, matches_node, untolerated_taint
from holdfast.scheduling.resources import Amounts, parse_nanos, pod_requests
from holdfast.times import format_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# Filters that concern one pod and one node; the messages are those of the Kubernetes scheduler.


def filter_failures(pod: Pod, node: Node, requests: Amounts, taken: Amounts) -> tuple[str, ...]:
    """All failures of the first filter that rejects the node; empty when the pod may run there."""
    for obstacles in (_taint_failures(pod, node), _affinity_failures(pod, node), _shortages(node, requests, taken)):
        found = tuple(obstacles)
        if found:
            return found
    return ()


def _taint_failures(pod: Pod, node: Node) -> Iterator[str]:
    taint = untolerated_taint(pod.spec.tolerations, node.spec)
    if taint is CORDONED:
        yield "node(s) were unschedulable"
    elif taint is not None:
        yield f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"


def _affinity_failures(pod: Pod, node: Node) -> Iterator[str]:
    if not matches_node(pod.spec, node.metadata.labels, node.metadata.name):
        yield "node(s) didn't match Pod's node affinity/selector"


def _shortages(node: Node, requests: Amounts, taken: Amounts) -> Iterator[str]:
    offered = node.status.allocatable
    for name, amount in requests.items():
        if amount > 0 and amount > parse_nanos(offered.get(name, 0)) - taken.get(name, 0):
            yield "Too many pods" if name == "pods" else f"Insufficient {name}"


# Scores: which of the feasible nodes a pod gets.

Score = tuple[int, int, Fraction, int]


def score(pod: Pod, node: Node, requests: Amounts, taken: Amounts, preference: int) -> Score:
    """Higher is better: soft taints count most, then preferences, then the free share, then the number of pods."""
    return (
        -_untolerated_soft_taints(pod, node),
        preference + _preferred_affinity_weight(pod, node),
        _free_share(node, requests, taken),
        -taken.get("pods", 0),
    )


def _untolerated_soft_taints(pod: Pod, node: Node) -> int:
    soft = (taint for taint in node.spec.taints if taint.effect == "PreferNoSchedule")
    return sum(find_toleration(pod.spec.tolerations, taint) is None for taint in soft)


def _preferred_affinity_weight(pod: Pod, node: Node) -> int:
    terms = pod.spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    labels, name = node.metadata.labels, node.metadata.name
    return sum(term.weight for term in terms if term.preference.matches(labels, name))


def _free_share(node: Node, requests: Amounts, taken: Amounts) -> Fraction:
    """The mean share of the requested resources that would stay free."""
    shares = []
    for name in requests:
        offered = parse_nanos(node.status.allocatable.get(name, 0))
        if offered:
            shares.append(Fraction(offered - taken.get(name, 0) - requests[name], offered))
    return sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)


# One scheduling pass over all waiting pods: a node for each, or the reason why there is none.


class SchedulingResult(Struct, frozen=True):
    """The pods with their nodes, and the unschedulable pods, each with the reason."""

    placed: tuple[Pod, ...]
    refused: tuple[tuple[Pod, str], ...]


def schedule(waiting: Iterable[Pod], nodes: Mapping[str, Node], occupancy: NodeSnapshot) -> SchedulingResult:
    """By priority, then by age, then in the order given. A placed pod uses its capacity in `occupancy` at once."""
    placed, refused = [], []
    known: dict[bytes, str] = {}
    for pod in sorted(waiting, key=_sort_key):
        kind = _equivalence_class(pod, occupancy)
        obstacle = known.get(kind) if kind else None
        if obstacle is None:
            node, obstacle = _choose(pod, nodes, occupancy)
            if node is not None:
                bound = structs.replace(pod, spec=structs.replace(pod.spec, node_name=node.metadata.name))
                occupancy.assume(bound)
                placed.append(bound)
                continue
            known |= {kind: obstacle} if kind else {}
        refused.append((pod, obstacle))
    return SchedulingResult(tuple(placed), tuple(refused))


def _sort_key(pod: Pod) -> tuple[int, str]:
    return -pod.spec.priority, pod.metadata.creation_timestamp


def _equivalence_class(pod: Pod, occupancy: NodeSnapshot) -> bytes:
    """Equal pods get equal results: when one fits nowhere, neither does the next. Empty if other pods matter."""
    spec = pod.spec
    depends_on_pods = (
        spec.topology_spread_constraints
        or spec.affinity.pod_affinity.required_during_scheduling_ignored_during_execution
        or spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
        or any(True for _ in occupancy.pods_with_anti_affinity())
    )
    return b"" if depends_on_pods else msgspec.json.encode(structs.replace(spec, priority=0))


def _choose(pod: Pod, nodes: Mapping[str, Node], occupancy: NodeSnapshot) -> tuple[Node | None, str]:
    """The best node, or why there is none."""
    requests = pod_requests(pod.spec)
    affinity, spreads = neighbours(pod, occupancy, nodes), topology_spreads(pod, occupancy, nodes)
    obstacles: Counter[str] = Counter()
    fits: list[tuple[Score, Node]] = []
    for name, node in nodes.items():
        taken = occupancy.taken(name)
        found = filter_failures(pod, node, requests, taken) or _inter_pod_failures(node, affinity, spreads)
        if found:
            obstacles.update(found)
        else:
            fits.append((score(pod, node, requests, taken, affinity.preference(node)), node))
    if fits:
        return max(fits, key=lambda fit: fit[0])[1], ""
    return None, _message(len(nodes), obstacles)


def _inter_pod_failures(node: Node, affinity: PodAffinityState, spreads: tuple[TopologySpread, ...]) -> tuple[str, ...]:
    found = (*(each.refusal(node) for each in spreads), affinity.refusal(node))
    return next(((refusal,) for refusal in found if refusal), ())


def _message(nodes: int, obstacles: Counter[str]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {obstacle}" for obstacle, count in obstacles.items()))
    return f"0/{nodes} nodes are available: {reasons}."


class Binder(Protocol):
    """The write that only a scheduler makes."""

    async def bind(self, pod: Key, node: str, *, uid: str = "") -> None:
        """Bind the pod to a node, once; `Conflict` when the pod has a node or is being deleted."""
        ...


class Scheduler:
    def __init__(
        self,
        binder: Binder,
        nodes: Store[Node],
        claims: Store[PersistentVolumeClaim],
        occupancy: NodeSnapshot,
        writer: WriteTracker,
        events: Recorder,
        now: Now,
    ) -> None:
        self._binder = binder
        self._nodes = nodes
        self._claims = claims
        self._occupancy = occupancy
        self._writer = writer
        self._events = events
        self._now = now
        self._lock = asyncio.Lock()

    async def reconcile(self, key: Key) -> Result:
        """The key only signals a change; several keys share one pass."""
        async with self._lock:
            if self._occupancy.dirty:
                self._occupancy.dirty = False
                try:
                    await self._run_cycle(self._writer.for_key(key))
                except BaseException:
                    self._occupancy.dirty = True
                    raise
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """No error is terminal here."""

    async def _run_cycle(self, session: TrackedClient) -> None:
        waiting = self._occupancy.waiting()
        if not waiting:
            return
        nodes = {node.metadata.name: node for node in sorted(self._nodes, key=lambda node: node.metadata.name)}
        unbound = [(pod, why) for pod in waiting if (why := unbound_claims_message(pod, self._claims))]
        unready = {pod.metadata.uid for pod, _ in unbound}
        outcome = schedule([pod for pod in waiting if pod.metadata.uid not in unready], nodes, self._occupancy)
        await gather_all(self._bind(pod) for pod in outcome.placed)
        refused = [*outcome.refused, *((pod, f"0/{len(nodes)} nodes are available: {why}.") for pod, why in unbound)]
        unreported = [(pod, obstacle) for pod, obstacle in refused if not _is_reported(pod, obstacle)]
        await gather_all(self._report_unschedulable(pod, obstacle, session) for pod, obstacle in unreported)

    async def _bind(self, pod: Pod) -> None:
        try:
            await self._binder.bind(pod.metadata.key, pod.spec.node_name, uid=pod.metadata.uid)
            log.debug("bound", key=str(pod.metadata.key), node=pod.spec.node_name)
        except (Conflict, NotFound):
            # The pod is gone or already bound; the cache is about to show it.
            self._occupancy.forget(pod)
        except BaseException:
            self._occupancy.forget(pod)
            raise

    async def _report_unschedulable(self, pod: Pod, obstacle: str, session: TrackedClient) -> None:
        before = find_condition(pod.status.conditions, "PodScheduled")
        since = before.last_transition_time if before and before.status == "False" else format_time(self._now())
        new = PodCondition(
            type="PodScheduled", status="False", reason="Unschedulable", message=obstacle, last_transition_time=since
        )
        conditions = msgspec.to_builtins(with_condition(pod.status.conditions, new))
        patch = {"metadata": resource_version_precondition(pod), "status": {"conditions": conditions}}
        try:
            await session.patch_status(PODS, pod.metadata.key, patch)
        except (Conflict, NotFound):
            # The pod has changed meanwhile; the change starts another pass.
            self._occupancy.dirty = True
            return
        # A claim is bound at once here, or an event of the claim gives the reason.
        if UNBOUND not in obstacle:
            self._events.warning(PODS, pod, "FailedScheduling", obstacle)


def _is_reported(pod: Pod, obstacle: str) -> bool:
    """Whether the pod's status already has this message: a pod may wait for days."""
    existing = find_condition(pod.status.conditions, "PodScheduled")
    return existing is not None and (existing.status, existing.message) == ("False", obstacle)


def scheduler(operator: Operator, binder: Binder, *, now: Now) -> Controller[Pod]:
    writer, occupancy = operator.writer(), NodeSnapshot()
    reconciler = Scheduler(
        binder, operator.store(NODES), operator.store(CLAIMS), occupancy, writer, operator.recorder, now
    )
    return Controller(name="scheduler", resource=PODS, reconciler=reconciler, writer=writer, watches=(occupancy,))
