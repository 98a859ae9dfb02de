"""The queue of GPUWorkloads that wait for a node, as the caches show it. A pass runs shortly after a change."""

import asyncio
from collections.abc import Callable
from datetime import datetime

import msgspec
import structlog

from holdfast.api.core.objects import Pod, PodSpec
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.api.meta import Key
from holdfast.cluster.resources import GPU_WORKLOADS, PODS
from holdfast.gpuworkload.decision import sync_placement
from holdfast.gpuworkload.job import pod_template
from holdfast.gpuworkload.observe import GPUWorkloadCaches, key_of
from holdfast.gpuworkload.snapshot import GPUWorkloadSnapshot, GPUWorkloadTiming
from holdfast.pods.template import Defaults
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.process import Now
from holdfast.scheduling.constraints import PodRequirements, shape_of
from holdfast.scheduling.free_gpus import RandomSource
from holdfast.scheduling.placement import Placement

# Changes come in bursts: workloads that arrive within this time are placed in one pass, and so in the right order.
PAUSE_S = 0.005
# After a failed pass; the cause may be temporary.
RETRY_S = 5.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PlacementQueue:
    """An event source: requeues a workload when it is offered a node, and when it has to wait for a node.

    The queue and the reservations come from the caches alone, and follow each change of the caches: a workload is in
    the queue before its reconcile, which may take a while when many workloads arrive at once. While the caches are
    `behind` the writes about a workload, its entry is left alone: the caches may show its pod and not yet its node, as
    if the capacity were free.
    """

    def __init__(
        self,
        shared_ledger: SharedLedger,
        caches: GPUWorkloadCaches,
        *,
        behind: Callable[[Key], bool],
        defaults: Defaults,
        timing: GPUWorkloadTiming,
        now: Now,
        random: RandomSource,
    ) -> None:
        self._shared_ledger = shared_ledger
        self._caches = caches
        self._behind = behind
        self._defaults = defaults
        self._timing = timing
        self._now = now
        self._placement = Placement(
            shared_ledger.ledger,
            random,
            reservation_timeout_s=timing.reservation_timeout_s,
            starvation_timeout_s=timing.starvation_timeout_s,
        )
        self._shapes: dict[str, tuple[int, PodRequirements]] = {}
        self._add: Callable[[Key], None] = lambda _: None
        # No reconcile asks before all stores are synced and this process leads. Until then a pass would be wrong or
        # useless.
        self._is_active = False
        self._pause_s = PAUSE_S
        self._next_pass: asyncio.TimerHandle | None = None
        self._expiry_pass: asyncio.TimerHandle | None = None
        # After the placement's own listener: the placement knows then whether a pass is due.
        shared_ledger.ledger.listeners.append(lambda _: self._schedule_pass())

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._add = add
        self._shared_ledger.attach(informers)
        informers.of(GPU_WORKLOADS).handlers.append(self._on_workload_change)
        informers.of(PODS).handlers.append(self._on_pod_change)

    def refresh(self, observed: GPUWorkloadSnapshot, now: datetime) -> tuple[GPUWorkloadSnapshot, float | None]:
        """The observation with the result of the queue, and in how long to ask again while the workload waits."""
        if not self._is_active:
            self._activate(now)
        result = self._sync(observed, now)
        self._schedule_pass()
        return result

    def _activate(self, now: datetime) -> None:
        """Tracks all workloads before the first pass: nodes assigned in a status count, and the queue is in order."""
        self._is_active = True
        for workload in self._caches.workloads:
            try:
                self._track(workload.metadata.key, now)
            except Exception:
                # One malformed workload must not keep all other workloads from starting.
                log.exception("what the workload asks for can't be made out", key=str(workload.metadata.key))

    def _on_workload_change(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if not self._is_active:
            return
        if new is not None:
            self._track(new.metadata.key, self._now())
        elif old is not None:
            self._placement.leave(old.metadata.uid)
            self._shapes.pop(old.metadata.uid, None)
        self._schedule_pass()

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        """A workload that waited for its last pod to stop is queued before the capacity of the pod is given away."""
        pod = new or old
        if self._is_active and pod is not None:
            for key in key_of(pod):
                self._track(key, self._now())

    def _track(self, key: Key, now: datetime) -> None:
        observed = self._caches.observe(key)
        if observed is None or self._behind(key):
            return
        if not observed.workload.metadata.deletion_timestamp:
            self._sync(observed, now)
        elif not observed.node:  # else its pod may still come: the capacity stays reserved until the workload is gone
            self._placement.leave(observed.workload.metadata.uid)

    def _sync(self, observed: GPUWorkloadSnapshot, now: datetime) -> tuple[GPUWorkloadSnapshot, float | None]:
        shape = self._shape(observed.workload)
        return sync_placement(observed, self._placement, shape, now, asyncio.get_running_loop().time(), self._timing)

    def _shape(self, workload: GPUWorkload) -> PodRequirements:
        """The pod requirements, computed once for each spec."""
        uid, generation = workload.metadata.uid, workload.metadata.generation
        known = self._shapes.get(uid)
        if known is None or known[0] != generation:
            template = pod_template(workload, self._defaults)
            spec = msgspec.convert(template["spec"], PodSpec)
            known = generation, shape_of(spec, template["metadata"]["labels"], workload.metadata.namespace)
            self._shapes[uid] = known
        return known[1]

    def _schedule_pass(self) -> None:
        """The pause before a pass is at least as long as the last pass took."""
        if self._is_active and self._next_pass is None and self._placement.is_due:
            self._next_pass = asyncio.get_running_loop().call_later(self._pause_s, self._run_pass)

    def _run_pass(self) -> None:
        loop = asyncio.get_running_loop()
        if self._next_pass is not None:
            self._next_pass.cancel()
        began, retry_s = loop.time(), None
        try:
            result = self._placement.run_pass(began)
            for request in (*result.assigned, *result.newly_waiting):
                self._add(request.key)
        except Exception:
            log.exception("placement failed, trying again", retry_in_s=RETRY_S)
            retry_s = RETRY_S
        self._pause_s = max(PAUSE_S, loop.time() - began)
        self._next_pass = loop.call_later(retry_s, self._run_pass) if retry_s else None
        self._schedule_pass()
        self._schedule_expiry_pass()

    def _schedule_expiry_pass(self) -> None:
        """An unused reservation for a pod expires after some time, and no event reports that."""
        if self._expiry_pass is not None:
            self._expiry_pass.cancel()
        end_s = self._shared_ledger.ledger.next_end_s
        self._expiry_pass = asyncio.get_running_loop().call_at(end_s, self._run_pass) if end_s is not None else None
