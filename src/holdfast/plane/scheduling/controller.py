"""The scheduler: whatever changed, all that waits is looked at together, so that the order of importance holds."""

import asyncio
from typing import Protocol

import msgspec
import structlog

from holdfast.api.meta import Key
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.plane.claims import UNBOUND, unbound_claims_message
from holdfast.plane.objects import (
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
from holdfast.plane.scheduling.cycle import schedule
from holdfast.plane.scheduling.occupancy import NodeSnapshot
from holdfast.plane.together import gather_all
from holdfast.runtime.cache import Store
from holdfast.runtime.clocks import Now, format_time
from holdfast.runtime.controller import Controller
from holdfast.runtime.events import Recorder
from holdfast.runtime.operator import Operator
from holdfast.runtime.result import Done, Result, TerminalError
from holdfast.runtime.writes import TrackedClient, WriteTracker

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
