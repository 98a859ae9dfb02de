"""Keeps the line of workloads as the caches show it, and looks along it a moment after something changed."""

import asyncio
from collections.abc import Callable
from datetime import datetime

import msgspec
import structlog

from holdfast.api.core.objects import Pod
from holdfast.api.core.selectors import PodSpec
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.api.meta import Key
from holdfast.cluster.resources import GPU_WORKLOADS, PODS
from holdfast.gpuworkload.decision import sync_placement
from holdfast.gpuworkload.job import pod_template
from holdfast.gpuworkload.observe import Caches, key_of
from holdfast.gpuworkload.snapshot import Observed, Timing
from holdfast.pods.template import Defaults
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.process import Now
from holdfast.scheduling.constraints import PodRequirements, shape_of
from holdfast.scheduling.free_gpus import RandomSource
from holdfast.scheduling.placement import Placement

# News comes in swarms: whoever comes within this is looked at together, and so in the right order.
PAUSE_S = 0.005
# After a look that failed; whatever it was may pass.
RETRY_S = 5.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PlacementQueue:
    """A source of news: a workload hears when it was given a node, and when it has to wait for one.

    Who stands in line and who has what is taken from the caches alone, with each of their changes: a workload is in
    line before it is reconciled, which may last while many come at once. Where the caches are `behind` what was written
    of a workload, nothing is: they may show its pod and not yet its node, as if the room were free.
    """

    def __init__(
        self,
        room: SharedLedger,
        caches: Caches,
        *,
        behind: Callable[[Key], bool],
        defaults: Defaults,
        timing: Timing,
        now: Now,
        dice: RandomSource,
    ) -> None:
        self._room = room
        self._caches = caches
        self._behind = behind
        self._defaults = defaults
        self._timing = timing
        self._now = now
        self._placement = Placement(
            room.ledger, dice, assumed_s=timing.reservation_timeout_s, patience_s=timing.starvation_timeout_s
        )
        self._shapes: dict[str, tuple[int, PodRequirements]] = {}
        self._add: Callable[[Key], None] = lambda _: None
        # Nobody asks before all stores are full and this process leads; until then a look would be wrong or in vain.
        self._is_asked = False
        self._pause_s = PAUSE_S
        self._next: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        # After the placement's own: it knows then whether there is something to look at.
        room.ledger.listeners.append(lambda _: self._schedule_pass())

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._add = add
        self._room.attach(informers)
        informers.of(GPU_WORKLOADS).handlers.append(self._changed)
        informers.of(PODS).handlers.append(self._pod_changed)

    def refresh(self, observed: Observed, now: datetime) -> tuple[Observed, float | None]:
        """What is seen with what its place in line comes to, and in how long to ask again while it waits."""
        if not self._is_asked:
            self._begin(now)
        found = self._attend(observed, now)
        self._schedule_pass()
        return found

    def _begin(self, now: datetime) -> None:
        """Everyone before the first look: what is written in a status counts, and the line is in order."""
        self._is_asked = True
        for workload in self._caches.workloads:
            try:
                self._track(workload.metadata.key, now)
            except Exception:
                # One strange workload must not keep all others from starting.
                log.exception("what the workload asks for can't be made out", key=str(workload.metadata.key))

    def _changed(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if not self._is_asked:
            return
        if new is not None:
            self._track(new.metadata.key, self._now())
        elif old is not None:
            self._placement.leave(old.metadata.uid)
            self._shapes.pop(old.metadata.uid, None)
        self._schedule_pass()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Who waited for its last pod to stop is in line before the room of that pod is given to somebody else."""
        pod = new or old
        if self._is_asked and pod is not None:
            for key in key_of(pod):
                self._track(key, self._now())

    def _track(self, key: Key, now: datetime) -> None:
        observed = self._caches.observe(key)
        if observed is None or self._behind(key):
            return
        if not observed.workload.metadata.deletion_timestamp:
            self._attend(observed, now)
        elif not observed.node:  # else its pod may still come: the room is its own until it is gone
            self._placement.leave(observed.workload.metadata.uid)

    def _attend(self, observed: Observed, now: datetime) -> tuple[Observed, float | None]:
        shape = self._shape(observed.workload)
        return sync_placement(observed, self._placement, shape, now, asyncio.get_running_loop().time(), self._timing)

    def _shape(self, workload: GPUWorkload) -> PodRequirements:
        """Worked out once for each spec."""
        uid, generation = workload.metadata.uid, workload.metadata.generation
        known = self._shapes.get(uid)
        if known is None or known[0] != generation:
            template = pod_template(workload, self._defaults)
            spec = msgspec.convert(template["spec"], PodSpec)
            known = generation, shape_of(spec, template["metadata"]["labels"], workload.metadata.namespace)
            self._shapes[uid] = known
        return known[1]

    def _schedule_pass(self) -> None:
        """A look that takes long is not taken more often than it lasts."""
        if self._is_asked and self._next is None and self._placement.is_due:
            self._next = asyncio.get_running_loop().call_later(self._pause_s, self._run_pass)

    def _run_pass(self) -> None:
        loop = asyncio.get_running_loop()
        if self._next is not None:
            self._next.cancel()
        began, retry_s = loop.time(), None
        try:
            look = self._placement.run_pass(began)
            for request in (*look.given, *look.newly_waiting):
                self._add(request.key)
        except Exception:
            log.exception("placement failed, trying again", retry_in_s=RETRY_S)
            retry_s = RETRY_S
        self._pause_s = max(PAUSE_S, loop.time() - began)
        self._next = loop.call_later(retry_s, self._run_pass) if retry_s else None
        self._schedule_pass()
        self._look_when_room_ends()

    def _look_when_room_ends(self) -> None:
        """Room that was kept for a pod in vain is free after some time, and nothing else tells."""
        if self._later is not None:
            self._later.cancel()
        end_s = self._room.ledger.next_end_s
        self._later = asyncio.get_running_loop().call_at(end_s, self._run_pass) if end_s is not None else None
