"""The scheduler: whatever changed, all that waits is looked at together, so that the order of importance holds."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Protocol

import msgspec
import structlog
from msgspec import Struct, structs

from holdfast.api.meta import Key
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.local.controllers.node_snapshot import NodeSnapshot
from holdfast.local.controllers.objects import (
    CLAIMS,
    NODES,
    PODS,
    Claim,
    Condition,
    Node,
    Pod,
    condition,
    resource_version_precondition,
    with_condition,
)
from holdfast.local.controllers.pod_affinity import PodAffinityState, TopologySpread, neighbours, topology_spreads
from holdfast.local.controllers.storage import UNBOUND, unbound_claims_message
from holdfast.local.controllers.tasks import gather_all
from holdfast.runtime.controller import Controller, Done, Result, TerminalError
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now, format_time
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker
from holdfast.scheduling.constraints import CORDONED, find_toleration, matches_node, untolerated_taint
from holdfast.scheduling.resources import Amounts, parse_nanos, pod_requests

# Whether a pod may be on a machine, as far as the two of them are concerned; in the scheduler's own words.


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


# Among the machines that a pod may be on: which one.

Score = tuple[int, int, Fraction, int]


def score(pod: Pod, node: Node, asked: Amounts, taken: Amounts, preference: int) -> Score:
    """Higher is better: unwelcoming marks count most, then wishes, then the share that stays free, then quiet."""
    return (
        -_untolerated_soft_taints(pod, node),
        preference + _preferred_affinity_weight(pod, node),
        _free(node, asked, taken),
        -taken.get("pods", 0),
    )


def _untolerated_soft_taints(pod: Pod, node: Node) -> int:
    soft = (taint for taint in node.spec.taints if taint.effect == "PreferNoSchedule")
    return sum(find_toleration(pod.spec.tolerations, taint) is None for taint in soft)


def _preferred_affinity_weight(pod: Pod, node: Node) -> int:
    wishes = pod.spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    labels, name = node.metadata.labels, node.metadata.name
    return sum(wish.weight for wish in wishes if wish.preference.matches(labels, name))


def _free(node: Node, asked: Amounts, taken: Amounts) -> Fraction:
    """The mean share of what the pod asks for that would stay free."""
    shares = []
    for name in asked:
        offered = parse_nanos(node.status.allocatable.get(name, 0))
        if offered:
            shares.append(Fraction(offered - taken.get(name, 0) - asked[name], offered))
    return sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)


# One look at everything that waits: who goes where, and why the others can't.


class Outcome(Struct, frozen=True):
    """The pods on their machines, and those that stay, each with what is in its way."""

    placed: tuple[Pod, ...]
    refused: tuple[tuple[Pod, str], ...]


def schedule(waiting: Iterable[Pod], nodes: Mapping[str, Node], occupancy: NodeSnapshot) -> Outcome:
    """By priority, then by age, then in the order given. What is placed takes its room in `occupancy` at once."""
    placed, refused = [], []
    known: dict[bytes, str] = {}
    for pod in sorted(waiting, key=_rank):
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
    return Outcome(tuple(placed), tuple(refused))


def _rank(pod: Pod) -> tuple[int, str]:
    return -pod.spec.priority, pod.metadata.creation_timestamp


def _equivalence_class(pod: Pod, occupancy: NodeSnapshot) -> bytes:
    """Pods of one kind fare alike: when one fits nowhere, neither does the next. Empty for who depends on others."""
    spec = pod.spec
    is_social = (
        spec.topology_spread_constraints
        or spec.affinity.pod_affinity.required_during_scheduling_ignored_during_execution
        or spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
        or any(True for _ in occupancy.pods_with_anti_affinity())
    )
    return b"" if is_social else msgspec.json.encode(structs.replace(spec, priority=0))


def _choose(pod: Pod, nodes: Mapping[str, Node], occupancy: NodeSnapshot) -> tuple[Node | None, str]:
    """The best machine, or why there is none."""
    asked = pod_requests(pod.spec)
    around, spreads = neighbours(pod, occupancy, nodes), topology_spreads(pod, occupancy, nodes)
    obstacles: Counter[str] = Counter()
    fits: list[tuple[Score, Node]] = []
    for name, node in nodes.items():
        taken = occupancy.taken(name)
        found = filter_failures(pod, node, asked, taken) or _inter_pod_failures(node, around, spreads)
        if found:
            obstacles.update(found)
        else:
            fits.append((score(pod, node, asked, taken, around.preference(node)), node))
    if fits:
        return max(fits, key=lambda fit: fit[0])[1], ""
    return None, _message(len(nodes), obstacles)


def _inter_pod_failures(node: Node, around: PodAffinityState, spreads: tuple[TopologySpread, ...]) -> tuple[str, ...]:
    found = (*(each.refusal(node) for each in spreads), around.refusal(node))
    return next(((refusal,) for refusal in found if refusal), ())


def _message(nodes: int, obstacles: Counter[str]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {obstacle}" for obstacle, count in obstacles.items()))
    return f"0/{nodes} nodes are available: {reasons}."


log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Binder(Protocol):
    """The one write that only a scheduler makes."""

    async def bind(self, pod: Key, node: str, *, uid: str = "") -> None:
        """Give the pod its machine, once; `Conflict` when it has one or is being deleted."""
        ...


class Scheduler:
    def __init__(
        self,
        binder: Binder,
        nodes: Store[Node],
        claims: Store[Claim],
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
        self._turn = asyncio.Lock()

    async def reconcile(self, key: Key) -> Result:
        """The key says only that there is news; several keys share one look."""
        async with self._turn:
            if self._occupancy.dirty:
                self._occupancy.dirty = False
                try:
                    await self._run_cycle(self._writer.for_key(key))
                except BaseException:
                    self._occupancy.dirty = True
                    raise
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """Nothing here is final."""

    async def _run_cycle(self, session: TrackedClient) -> None:
        waiting = self._occupancy.waiting()
        if not waiting:
            return
        nodes = {node.metadata.name: node for node in sorted(self._nodes, key=lambda node: node.metadata.name)}
        lacking = [(pod, why) for pod in waiting if (why := unbound_claims_message(pod, self._claims))]
        unready = {pod.metadata.uid for pod, _ in lacking}
        outcome = schedule([pod for pod in waiting if pod.metadata.uid not in unready], nodes, self._occupancy)
        await gather_all(self._bind(pod) for pod in outcome.placed)
        refused = [*outcome.refused, *((pod, f"0/{len(nodes)} nodes are available: {why}.") for pod, why in lacking)]
        news = [(pod, obstacle) for pod, obstacle in refused if not _says(pod, obstacle)]
        await gather_all(self._report_unschedulable(pod, obstacle, session) for pod, obstacle in news)

    async def _bind(self, pod: Pod) -> None:
        try:
            await self._binder.bind(pod.metadata.key, pod.spec.node_name, uid=pod.metadata.uid)
            log.debug("bound", key=str(pod.metadata.key), node=pod.spec.node_name)
        except (Conflict, NotFound):
            # It is gone, or somebody else's by now; the cache is about to show it.
            self._occupancy.forget(pod)
        except BaseException:
            self._occupancy.forget(pod)
            raise

    async def _report_unschedulable(self, pod: Pod, obstacle: str, session: TrackedClient) -> None:
        before = condition(pod.status.conditions, "PodScheduled")
        since = before.last_transition_time if before and before.status == "False" else format_time(self._now())
        new = Condition(
            type="PodScheduled", status="False", reason="Unschedulable", message=obstacle, last_transition_time=since
        )
        conditions = msgspec.to_builtins(with_condition(pod.status.conditions, new))
        patch = {"metadata": resource_version_precondition(pod), "status": {"conditions": conditions}}
        try:
            await session.patch_status(PODS, pod.metadata.key, patch)
        except (Conflict, NotFound):
            # It has changed since; the change brings it here again.
            self._occupancy.dirty = True
            return
        # A claim is bound at once here, or its own event says why it is not.
        if UNBOUND not in obstacle:
            self._events.warning(PODS, pod, "FailedScheduling", obstacle)


def _says(pod: Pod, obstacle: str) -> bool:
    """Whether it is written on the pod already: one may wait for days."""
    there = condition(pod.status.conditions, "PodScheduled")
    return there is not None and (there.status, there.message) == ("False", obstacle)


def scheduler(operator: Operator, binder: Binder, *, now: Now) -> Controller[Pod]:
    writer, occupancy = operator.writer(), NodeSnapshot()
    reconciler = Scheduler(
        binder, operator.store(NODES), operator.store(CLAIMS), occupancy, writer, operator.recorder, now
    )
    return Controller(name="scheduler", resource=PODS, reconciler=reconciler, writer=writer, watches=(occupancy,))
