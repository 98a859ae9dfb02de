"""The node lifecycle: detects missing heartbeats, sets taints, evicts pods, and deletes the pods of removed nodes."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import structlog
from msgspec import structs

from holdfast.api.core.objects import Lease, Node, NodeCondition, Pod, PodCondition, find_condition, with_condition
from holdfast.api.core.selectors import Taint
from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions
from holdfast.cluster.resources import LEASES, NODES, PODS
from holdfast.local.controllers.objects import gather_all, resource_version_precondition
from holdfast.runtime.children import BY_NODE, node_of
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError, Watch
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker
from holdfast.scheduling.constraints import find_toleration
from holdfast.times import format_time, parse_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# Eviction: when a pod has to leave a node that is tainted or gone.


def eviction_time(pod: Pod, taints: tuple[Taint, ...], now: datetime) -> datetime | None:
    """When the pod has to leave the node; None when it may stay for ever."""
    moments = []
    for taint in taints:
        if taint.effect != "NoExecute":
            continue
        since = parse_time(taint.time_added) if taint.time_added else now
        toleration = find_toleration(pod.spec.tolerations, taint)
        if toleration is None:
            moments.append(since)
        elif toleration.toleration_seconds is not None:
            moments.append(since + timedelta(seconds=max(0, toleration.toleration_seconds)))
    return min(moments, default=None)


def disrupted(pod: Pod, reason: str, message: str, now: datetime) -> tuple[PodCondition, ...]:
    """The pod's conditions with DisruptionTarget (KEP-3329): the pod itself did not cause its end."""
    existing = find_condition(pod.status.conditions, "DisruptionTarget")
    if existing is not None and (existing.status, existing.reason) == ("True", reason):
        return pod.status.conditions
    new = PodCondition(
        type="DisruptionTarget",
        status="True",
        reason=reason,
        message=message,
        last_transition_time=format_time(now),
    )
    return with_condition(pod.status.conditions, new)


def not_ready(pod: Pod, now: datetime) -> tuple[PodCondition, ...]:
    """The conditions of a pod whose node is lost."""
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        return pod.status.conditions
    new = PodCondition(type="Ready", status="False", reason="NodeNotReady", last_transition_time=format_time(now))
    return with_condition(pod.status.conditions, new)


# Heartbeats, and the conditions of a node without them.

# The conditions that a node reports itself. Without a heartbeat all of them become Unknown.
_REPORTED_BY_NODE = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


class Heartbeat(NamedTuple):
    """The last heartbeat, as the node wrote it. Only a change counts, since the clocks of nodes differ."""

    renewed: str
    heartbeat: str


def heartbeat_of(node: Node, lease: Lease | None) -> Heartbeat:
    ready = find_condition(node.status.conditions, "Ready")
    return Heartbeat(lease.spec.renew_time or "" if lease else "", ready.last_heartbeat_time or "" if ready else "")


def readiness(node: Node) -> str:
    ready = find_condition(node.status.conditions, "Ready")
    return ready.status if ready else ""


def unknown_conditions(node: Node, now: datetime) -> tuple[NodeCondition, ...]:
    """The conditions of a node that sends no heartbeats any more."""
    conditions = node.status.conditions
    if find_condition(conditions, "Ready") is None:
        never = "Kubelet never posted node status."
        new = NodeCondition(type="Ready", status="Unknown", reason="NodeStatusNeverUpdated", message=never)
        conditions = (*conditions, structs.replace(new, last_transition_time=format_time(now)))
    return tuple(_unknown(each, now) if each.type in _REPORTED_BY_NODE else each for each in conditions)


def _unknown(reported: NodeCondition, now: datetime) -> NodeCondition:
    if reported.status == "Unknown":
        return reported
    return structs.replace(
        reported,
        status="Unknown",
        reason="NodeStatusUnknown",
        message="Kubelet stopped posting node status.",
        last_transition_time=format_time(now),
    )


# The taints that follow from a node's state.

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_TAINT_BY_READINESS = {"False": NOT_READY, "Unknown": UNREACHABLE}
_TAINT_BY_PRESSURE = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_CORDONED = "node.kubernetes.io/unschedulable"
# Only these taints are set and removed by this controller.
_MANAGED_TAINTS = {
    (key, "NoSchedule") for key in (*_TAINT_BY_READINESS.values(), *_TAINT_BY_PRESSURE.values(), _CORDONED)
} | {(key, "NoExecute") for key in _TAINT_BY_READINESS.values()}


def wanted_taints(node: Node, *, evict: bool, now: datetime) -> tuple[Taint, ...]:
    """The taints that the node should have; existing taints stay unchanged, with their time."""
    wanted = dict.fromkeys(_taints_for_conditions(node, evict))
    retained = [taint for taint in node.spec.taints if _is_unmanaged(taint) or (taint.key, taint.effect) in wanted]
    existing = {(taint.key, taint.effect) for taint in retained}
    new = (Taint(key=key, effect=effect, time_added=format_time(now)) for key, effect in wanted.keys() - existing)
    return (*retained, *sorted(new, key=lambda taint: (taint.key, taint.effect)))


def _taints_for_conditions(node: Node, evict: bool) -> Iterator[tuple[str, str]]:
    lost = _TAINT_BY_READINESS.get(readiness(node))
    if lost:
        yield lost, "NoSchedule"
        if evict:
            yield lost, "NoExecute"
    for each in node.status.conditions:
        if each.status == "True" and each.type in _TAINT_BY_PRESSURE:
            yield _TAINT_BY_PRESSURE[each.type], "NoSchedule"
    if node.spec.unschedulable:
        yield _CORDONED, "NoSchedule"


def _is_unmanaged(taint: Taint) -> bool:
    return (taint.key, taint.effect) not in _MANAGED_TAINTS


GRACE_S = 40.0
# The delay of the Kubernetes pod garbage collector: a node that registers again finds its pods.
MISSING_NODE_GRACE_S = 40.0
RECHECK_S = 5.0
LEASE_NAMESPACE = "kube-node-lease"
EVICTED = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
ORPHANED = ("DeletionByPodGC", "PodGC: node no longer exists")


def node_key_of(pod: Pod) -> Iterable[Key]:
    return (Key("", pod.spec.node_name),) if pod.spec.node_name else ()


def node_of_lease(lease: Lease) -> Iterable[Key]:
    return (Key("", lease.metadata.name),) if lease.metadata.namespace == LEASE_NAMESPACE else ()


class NodeReconciler:
    """Reconciles Nodes; `grace_s` is how long a node may go without a heartbeat."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Store[Node],
        pods: Store[Pod],
        leases: Store[Lease],
        writer: WriteTracker,
        now: Now,
        *,
        grace_s: float,
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._pods = pods
        self._leases = leases
        self._writer = writer
        self._now = now
        self._grace_s = grace_s
        # Since when the heartbeat has not changed, or the node has been missing, by the clock of this process: after a
        # restart every node gets the full grace period again.
        self._heartbeats: dict[str, tuple[Heartbeat, datetime]] = {}
        self._missing_since: dict[str, datetime] = {}

    async def reconcile(self, key: Key) -> Result:
        node, now, session = self._nodes.get(key), self._now(), self._writer.for_key(key)
        if node is None:
            self._heartbeats.pop(key.name, None)
            return await self._delete_orphaned_pods(key, now, session)
        self._missing_since.pop(key.name, None)
        left_s = self._grace_left_s(node, now)
        if left_s <= 0 and await self._write_conditions(node, unknown_conditions(node, now), session):
            return Done()
        evict = readiness(node) == "True" or any(readiness(other) == "True" for other in self._nodes)
        if await self._write_taints(node, wanted_taints(node, evict=evict, now=now), session):
            return Done()
        if readiness(node) != "True" and await self._mark_pods_not_ready(key.name, now, session):
            return Done()
        waits = [await self._evict(node, now, session), left_s if left_s > 0 else None, None if evict else RECHECK_S]
        wait_s = min((each for each in waits if each is not None), default=None)
        return Done() if wait_s is None else RequeueAfter(wait_s)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """No error is terminal here."""

    def _grace_left_s(self, node: Node, now: datetime) -> float:
        name = node.metadata.name
        heartbeat = heartbeat_of(node, self._leases.get(Key(LEASE_NAMESPACE, name)))
        last, since = self._heartbeats.get(name, (None, now))
        if heartbeat != last:
            self._heartbeats[name] = heartbeat, (since := now)
        return self._grace_s - (now - since).total_seconds()

    async def _write_conditions(
        self, node: Node, conditions: tuple[NodeCondition, ...], session: TrackedClient
    ) -> bool:
        if conditions == node.status.conditions:
            return False
        log.warning("node has stopped reporting", node=node.metadata.name, grace_s=self._grace_s)
        patch = {
            "metadata": resource_version_precondition(node),
            "status": {"conditions": msgspec.to_builtins(conditions)},
        }
        await session.patch_status(NODES, node.metadata.key, patch)
        return True

    async def _write_taints(self, node: Node, taints: tuple[Taint, ...], session: TrackedClient) -> bool:
        if taints == node.spec.taints:
            return False
        log.info("node marked", node=node.metadata.name, taints=[f"{each.key}:{each.effect}" for each in taints])
        patch = {"metadata": resource_version_precondition(node), "spec": {"taints": msgspec.to_builtins(taints)}}
        await session.patch(NODES, node.metadata.key, patch)
        return True

    async def _mark_pods_not_ready(self, name: str, now: datetime, session: TrackedClient) -> bool:
        """No client should rely on the pods of an unready node; returns whether a pod changed."""
        wanted = [(pod, not_ready(pod, now)) for pod in self._pods.by(BY_NODE, name) if not pod.is_finished]
        changed = [(pod, conditions) for pod, conditions in wanted if conditions != pod.status.conditions]
        await gather_all(self._write_status(pod, {}, conditions, session) for pod, conditions in changed)
        return bool(changed)

    async def _evict(self, node: Node, now: datetime, session: TrackedClient) -> float | None:
        """Evict the pods that are due; returns after how long the next pod has to leave."""
        if not any(taint.effect == "NoExecute" for taint in node.spec.taints):
            return None
        staying = [
            pod for pod in self._pods.by(BY_NODE, node.metadata.name) if not (pod.is_finished or pod.is_terminating)
        ]
        times = [(pod, at) for pod in staying if (at := eviction_time(pod, node.spec.taints, now)) is not None]
        await gather_all(self._end(pod, EVICTED, now, session) for pod, at in times if at <= now)
        return min(((at - now).total_seconds() for _, at in times if at > now), default=None)

    async def _delete_orphaned_pods(self, key: Key, now: datetime, session: TrackedClient) -> Result:
        """No kubelet will ever report how the pods of a removed node ended."""
        pods = self._pods.by(BY_NODE, key.name)
        if not pods:
            self._missing_since.pop(key.name, None)
            return Done()
        left_s = MISSING_NODE_GRACE_S - (now - self._missing_since.setdefault(key.name, now)).total_seconds()
        if left_s > 0:
            return RequeueAfter(left_s)
        with suppress(NotFound):
            await self._cluster.get(NODES, key)
            return Done()  # the cache is about to show the node
        await gather_all(self._end(pod, ORPHANED, now, session, phase="Failed", grace_period_s=0) for pod in pods)
        return Done()

    async def _end(
        self,
        pod: Pod,
        cause: tuple[str, str],
        now: datetime,
        session: TrackedClient,
        *,
        phase: str = "",
        grace_period_s: int | None = None,
    ) -> None:
        """Write the reason before the deletion, so that every watcher of the pod sees why it ended."""
        log.info("pod ended", key=str(pod.metadata.key), reason=cause[0], node=pod.spec.node_name)
        with suppress(NotFound):
            conditions = disrupted(pod, *cause, now)
            changed = {"phase": phase} if phase and not pod.is_finished else {}
            if not pod.is_finished and (changed or conditions != pod.status.conditions):
                await self._write_status(pod, changed, conditions, session)
            await session.delete(
                PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid, grace_period_s=grace_period_s)
            )

    async def _write_status(
        self, pod: Pod, changed: JSON, conditions: tuple[PodCondition, ...], session: TrackedClient
    ) -> None:
        status = {**changed, "conditions": msgspec.to_builtins(conditions)}
        await session.patch_status(
            PODS, pod.metadata.key, {"metadata": resource_version_precondition(pod), "status": status}
        )


def nodes(operator: Operator, cluster: Cluster, *, now: Now, grace_s: float = GRACE_S) -> Controller[Node]:
    writer = operator.writer()
    reconciler = NodeReconciler(
        cluster,
        operator.store(NODES),
        operator.store(PODS, {BY_NODE: node_of}),
        operator.store(LEASES),
        writer,
        now,
        grace_s=grace_s,
    )
    watches = (Watch(PODS, node_key_of), Watch(LEASES, node_of_lease))
    return Controller(name="node", resource=NODES, reconciler=reconciler, writer=writer, watches=watches)
