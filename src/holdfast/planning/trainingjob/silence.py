"""A worker that is lost with its node, seen early: neither it nor the node gives a sign of life.

Kubernetes itself waits 40 s before it calls a node NotReady, and 300 s more before it deletes the node's pods. Silence
alone proves nothing: a network policy or a sidecar's crash looks the same. So the node's Lease is read for those that
are silent; a node whose Lease changes is alive. Times are of the operator's own clock, in seconds: what a Lease says
about the time is the node's opinion.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from holdfast.api.builtin import Pod
from holdfast.planning.times import parse_time
from holdfast.planning.trainingjob.classes import FailureClass, WorkerFailure
from holdfast.planning.trainingjob.heard import AttemptReports
from holdfast.planning.trainingjob.loss import index_of, worker_text
from holdfast.planning.trainingjob.timing import Timing

# Two looks at a Lease that are further apart prove nothing: the API server may have been away, for the node too.
LONGEST_GAP_S = 10.0
LOOK_EVERY_S = 4.0
# More than the ten seconds in which a kubelet renews its Lease.
DOUBTFUL_FRACTION = 0.75
# Beyond its grace, before a pod's node is looked at.
OVERDUE_S = 3.0


class LeaseObservation(Struct, frozen=True):
    """A node's Lease over several looks."""

    renewed: str
    since_s: float
    """When it was first seen like this."""
    looked_s: float


def observe_lease(before: LeaseObservation | None, renewed: str, now_s: float) -> LeaseObservation:
    """After a look that succeeded; `renewed` is what the Lease says, and only whether it differs counts."""
    if before is None or before.renewed != renewed or now_s - before.looked_s > LONGEST_GAP_S:
        return LeaseObservation(renewed, now_s, now_s)
    return LeaseObservation(renewed, before.since_s, now_s)


def without_stale(pulses: Mapping[str, LeaseObservation], now_s: float) -> dict[str, LeaseObservation]:
    """Those that still prove something; `pulses` is by the node's name."""
    return {node: pulse for node, pulse in pulses.items() if now_s - pulse.looked_s <= LONGEST_GAP_S}


def silent_workers(
    pods: Iterable[Pod], heard: AttemptReports | None, *, hearing_since_s: float, now_s: float, timing: Timing
) -> tuple[Pod, ...]:
    """Those of the current attempt's workers whose nodes' Leases are to be read now.

    None is missed before this operator has heard one of them: without sidecars, or where no report comes through,
    nobody ever says anything.
    """
    return tuple(
        pod
        for pod in pods
        if _runs(pod) and (at_s := _suspect_at_s(pod, heard, hearing_since_s, timing)) is not None and now_s >= at_s
    )


def next_look_s(
    pods: Iterable[Pod], heard: AttemptReports | None, *, hearing_since_s: float, now_s: float, timing: Timing
) -> float | None:
    """When to look again, if nothing is heard until then."""
    due = (_suspect_at_s(pod, heard, hearing_since_s, timing) for pod in pods if _runs(pod))
    first_s = min((at_s for at_s in due if at_s is not None), default=None)
    return None if first_s is None else max(first_s, now_s + LOOK_EVERY_S if now_s >= first_s else first_s)


def workers_on_dead_nodes(
    suspected: Iterable[Pod], pulses: Mapping[str, LeaseObservation], timing: Timing
) -> tuple[Pod, ...]:
    """Those whose node's Lease stood still as long as it was looked at; `pulses` is by the node's name."""
    return _quiet(suspected, pulses, timing.node_lease_timeout_s)


def workers_on_doubtful_nodes(
    suspected: Iterable[Pod], pulses: Mapping[str, LeaseObservation], timing: Timing
) -> tuple[Pod, ...]:
    """Once one is dead, those who seem to follow, too: nodes are lost together, and missed one after another."""
    return _quiet(suspected, pulses, timing.node_lease_timeout_s * DOUBTFUL_FRACTION)


def can_continue_without(dead: Collection[Pod], pods: Iterable[Pod], fewest: int) -> bool:
    """An elastic training does, as long as enough are left; but they meet at worker 0."""
    left = sum(_runs(pod) for pod in pods) - len(dead)
    return 0 < fewest <= left and all(index_of(pod) != 0 for pod in dead)


def overdue(pods: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """Those that were to be gone by now: a kubelet that lives ends them in time."""
    return tuple(pod for pod in pods if _stays(pod) and now >= overdue_at(pod))


def overdue_at(pod: Pod) -> datetime:
    return parse_time(pod.metadata.deletion_timestamp) + timedelta(seconds=OVERDUE_S)


def next_overdue(pods: Iterable[Pod], now: datetime) -> datetime | None:
    """When to look at them, or to look again."""
    due = (max(overdue_at(pod), now + timedelta(seconds=LOOK_EVERY_S)) for pod in pods if _stays(pod))
    return min(due, default=None)


def node_failure(pod: Pod, cause: FailureClass, timing: Timing) -> WorkerFailure:
    message = (
        f"{worker_text(pod)} was lost: it has not reported for more than {timing.report_timeout_s:g} s, "
        f"and its node has not renewed its Lease for {timing.node_lease_timeout_s:g} s"
    )
    return WorkerFailure(cause=cause, message=message)


def _quiet(suspected: Iterable[Pod], pulses: Mapping[str, LeaseObservation], for_s: float) -> tuple[Pod, ...]:
    return tuple(
        pod
        for pod in suspected
        if (pulse := pulses.get(pod.spec.node_name)) is not None and pulse.looked_s - pulse.since_s >= for_s
    )


def _stays(pod: Pod) -> bool:
    return pod.is_terminating and not pod.is_finished and bool(pod.spec.node_name)


def _runs(pod: Pod) -> bool:
    return pod.status.phase == "Running" and not pod.is_terminating and bool(pod.spec.node_name)


def _suspect_at_s(pod: Pod, heard: AttemptReports | None, hearing_since_s: float, timing: Timing) -> float | None:
    if heard is None:
        return None
    voice = heard.workers.get(index_of(pod))
    return max(voice.heard_s if voice is not None else heard.first_s, hearing_since_s) + timing.report_timeout_s
