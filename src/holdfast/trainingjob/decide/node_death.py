"""Early detection of workers that are lost with their node.

Kubernetes itself waits 50 s before it marks a node NotReady, and 300 s more before it deletes the node's pods. Missing
reports alone prove nothing: a network policy or a sidecar's crash has the same effect. So there are three witnesses.
The workers' reports, the node's Lease, and whether anything at the node accepts a connection. A worker is given up soon
when all three are silent and were heard before, after a longer time when the third can't be asked, and after a much
longer one when only the third shows something.

All that counts is what this operator has seen itself. Times are seconds of its own clock: the time in a Lease comes
from the node's clock.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.api.core.objects import Pod
from holdfast.pods.failure import FailureClass, WorkerFailure, index_of, worker_text
from holdfast.trainingjob.decide.liveness import AttemptReports, is_running, overdue_at
from holdfast.trainingjob.decide.snapshot import TrainingJobTiming

# Without a sign of it for longer, the API server may have been down, for nodes that renew their Leases too.
# Longer than the ten seconds in which a kubelet renews its Lease: one other node is enough to see it.
LONGEST_GAP_S = 12.0
# A Lease that was renewed so recently needs no further look. Less than the gap, so that looks alone leave none.
RENEWED_S = 11.0
LATE_CHECK_EVERY_S, CHECK_EVERY_S, SOONEST_CHECK_S = 2.0, 4.0, 0.5
# Of the time without reports after which a worker is lost: from then on its node is looked at. A sidecar with nothing
# new to tell reports every ten seconds.
DOUBT_FRACTION = 0.75
# Of the Lease timeout, for the other nodes once one is dead. More than the ten seconds in which a Lease is renewed.
FOLLOWING_FRACTION = 0.75
# A Lease is late after so many of its own intervals, if that is longer than the timeout.
LATE_INTERVALS = 1.9
INTERVALS_KEPT = 3
# Nothing must have answered for so long: longer than one attempt to connect takes.
UNREACHABLE_S = 5.0
# A node that has been away for longer is not one of many that fell silent at once.
AWAY_S = 120.0
# Something still accepts connections, but kubelet and workers have stood still for so long: now a new attempt costs
# less than to wait on.
WEDGED_S = 120.0


# A node's Lease, as this operator has seen it.


class LeaseHistory(Struct, frozen=True):
    version: str
    since_s: float
    """When this version was first seen."""
    checked_s: float
    """When it was last seen."""
    is_renewal: bool = False
    """The change to this version was seen, so that `since_s` is when the node gave a sign of life."""
    intervals_s: tuple[float, ...] = ()
    """Between the last renewals, as far as all of them were seen and the API server served all the time."""

    @property
    def has_rhythm(self) -> bool:
        return bool(self.intervals_s)


def observe_lease(before: LeaseHistory | None, version: str, now_s: float, *, serving_since_s: float) -> LeaseHistory:
    """Adds a look at the Lease, or a change that was told; only whether the version changes counts."""
    if before is None:
        return LeaseHistory(version, now_s, now_s)
    if version == before.version:
        return LeaseHistory(version, before.since_s, now_s, before.is_renewal, before.intervals_s)
    is_whole = before.is_renewal and serving_since_s <= before.since_s
    intervals = (*before.intervals_s, now_s - before.since_s)[-INTERVALS_KEPT:] if is_whole else ()
    return LeaseHistory(version, now_s, now_s, True, intervals)


class Serving(Struct, frozen=True):
    """Since when the API server certainly takes renewals: something came from it at least every `LONGEST_GAP_S`."""

    since_s: float
    last_s: float


def observe_serving(before: Serving | None, now_s: float) -> Serving:
    if before is None or now_s - before.last_s > LONGEST_GAP_S:
        return Serving(now_s, now_s)
    return Serving(before.since_s, max(before.last_s, now_s))


def lease_limit_s(lease: LeaseHistory, timeout_s: float) -> float:
    """How long the Lease may stand still. A node whose renewals come slowly gets more time."""
    return max(timeout_s, LATE_INTERVALS * max(lease.intervals_s, default=0.0))


def most_are_late(leases: Iterable[LeaseHistory], now_s: float, timing: TrainingJobTiming) -> bool:
    """Most nodes have stopped renewing at once: that is rather the network or the API server than the nodes."""
    known = late = 0
    for lease in leases:
        still_s = now_s - lease.since_s
        if lease.has_rhythm and still_s <= AWAY_S:
            known += 1
            late += still_s >= lease_limit_s(lease, timing.node_lease_timeout_s) * FOLLOWING_FRACTION
    return 2 * late > known


# Whether something answers at the node.

# As in `runtime.reachability`.
Answer: TypeAlias = Literal["accepted", "refused", "unreachable", "failed"]
# What several attempts come to; unclear when they prove nothing.
Reach: TypeAlias = Literal["accepts", "unreachable", "unclear"]


class AddressHistory(Struct, frozen=True):
    """What attempts to connect to one address came to."""

    accepted_s: float | None = None
    """When a connection was last accepted."""
    failing_s: float | None = None
    """When the first of the attempts began that failed since."""
    answer: Answer | None = None
    """Of the last attempt …"""
    asked_s: float = 0.0
    """… which began then …"""
    told_s: float = 0.0
    """… and ended then."""
    unreachable_s: float | None = None
    """When the first of the attempts began that nothing has answered since, not even a refusal."""


def observe_answer(before: AddressHistory | None, answer: Answer, asked_s: float, told_s: float) -> AddressHistory:
    if answer == "accepted":
        return AddressHistory(told_s, None, answer, asked_s, told_s)
    accepted_s, failing_s = (before.accepted_s, before.failing_s) if before is not None else (None, None)
    failing_s = asked_s if failing_s is None else failing_s
    since_s = before.unreachable_s if before is not None and before.unreachable_s is not None else asked_s
    unreachable_s = since_s if answer == "unreachable" else None
    return AddressHistory(accepted_s, failing_s, answer, asked_s, told_s, unreachable_s)


def reach_of(
    kubelet: AddressHistory | None, sidecars: Iterable[AddressHistory | None], *, heard_s: float, now_s: float
) -> Reach:
    """What the attempts since the last report show.

    That nothing answers proves something only where the kubelet has answered this operator until the silence began: a
    network policy or a firewall has the same effect. One connection that is accepted is enough to clear the node.
    """

    def answer(history: AddressHistory | None) -> Answer | None:
        is_recent = history is not None and history.asked_s > heard_s and now_s - history.told_s <= LONGEST_GAP_S
        return history.answer if history is not None and is_recent else None

    answers = [answer(kubelet), *map(answer, sidecars)]
    if "accepted" in answers:
        return "accepts"
    if kubelet is None or kubelet.accepted_s is None or kubelet.failing_s is None or kubelet.unreachable_s is None:
        return "unclear"
    is_new = heard_s < kubelet.failing_s and kubelet.unreachable_s <= now_s - UNREACHABLE_S
    return "unreachable" if is_new and all(each == "unreachable" for each in answers) else "unclear"


# The decision.


class Evidence(Struct, frozen=True, kw_only=True):
    """What is known of a node at the time `now_s`."""

    now_s: float
    heard_s: float
    """When one of the workers on it was last heard."""
    lease: LeaseHistory | None = None
    serving_since_s: float | None = None
    reach: Reach = "unclear"
    most_are_late: bool = False


class Verdict(Struct, frozen=True):
    state: Literal["dead", "alive", "unknown"]
    reason: str
    """For people: a part of a sentence about a worker."""


def judge(evidence: Evidence, timing: TrainingJobTiming, fraction: float = 1.0) -> Verdict:
    """Whether the node is dead, and its workers with it. `fraction` is that of the Lease timeout which is enough."""
    silent_s = evidence.now_s - evidence.heard_s
    lease, serving_s = evidence.lease, evidence.serving_since_s
    if silent_s < timing.report_timeout_s:
        return Verdict("unknown", "its next report is not overdue")
    if lease is None or serving_s is None or evidence.now_s - lease.checked_s > LONGEST_GAP_S:
        return Verdict("unknown", "its node's Lease can't be read")
    limit_s = lease_limit_s(lease, timing.node_lease_timeout_s) * fraction
    if lease.checked_s - lease.since_s < limit_s:
        if lease.is_renewal and lease.since_s > evidence.heard_s:
            return Verdict("alive", "its node has renewed its Lease since its last report")
        return Verdict("unknown", "its node's Lease is not overdue")
    if lease.checked_s - serving_s < limit_s:
        return Verdict("unknown", "the API server was not seen to take renewals for long enough")
    if evidence.reach == "accepts":
        return _judge_accepting(min(silent_s, lease.checked_s - max(lease.since_s, serving_s)), timing)
    dead = (
        f"it has not reported for more than {timing.report_timeout_s:g} s, "
        f"and its node has not renewed its Lease for {timing.node_lease_timeout_s:g} s"
    )
    is_known = lease.has_rhythm and not evidence.most_are_late
    if evidence.reach == "unreachable" and is_known and silent_s >= timing.node_lease_timeout_s * fraction:
        return Verdict("dead", f"{dead} and no longer accepts connections")
    if silent_s >= timing.report_timeout_s + timing.node_lease_timeout_s * fraction:
        return Verdict("dead", dead)
    return Verdict("unknown", _why_not_yet(evidence, timing.node_lease_timeout_s * fraction))


def _judge_accepting(still_s: float, timing: TrainingJobTiming) -> Verdict:
    """Of a node that shows nothing else: a kernel that lives does not make its kubelet and workers live for ever."""
    limit_s = max(WEDGED_S, timing.report_timeout_s + timing.node_lease_timeout_s)
    if still_s < limit_s:
        return Verdict("alive", "its node accepts connections")
    return Verdict("dead", f"for {limit_s:g} s it has not reported, and its node has only accepted connections")


def _why_not_yet(evidence: Evidence, timeout_s: float) -> str:
    if evidence.reach == "unreachable" and evidence.now_s - evidence.heard_s < timeout_s:
        return "its next report is not overdue for long"
    if evidence.most_are_late:
        return "most nodes have stopped renewing their Leases at once"
    if evidence.lease is not None and not evidence.lease.has_rhythm:
        return "this operator has not seen its node's Lease for long enough"
    return "it is not clear whether its node can be reached"


def next_check_s(heard_s: float, lease: LeaseHistory | None, *, now_s: float, timing: TrainingJobTiming) -> float:
    """In how long the node is looked at again, if nothing is heard until then."""
    doubt_s, overdue_s = heard_s + doubt_after_s(timing), heard_s + timing.report_timeout_s
    if now_s < doubt_s:
        return doubt_s - now_s
    lease_timeout_s = timing.node_lease_timeout_s
    moments = [overdue_s, heard_s + lease_timeout_s, overdue_s + lease_timeout_s]
    if lease is not None:
        moments += [lease.since_s + RENEWED_S, lease.since_s + lease_limit_s(lease, lease_timeout_s)]
    every_s = LATE_CHECK_EVERY_S if is_late(lease, now_s) else CHECK_EVERY_S
    due_s = min((at_s - now_s for at_s in moments if at_s > now_s), default=every_s)
    return max(SOONEST_CHECK_S, min(due_s, every_s))


def is_late(lease: LeaseHistory | None, now_s: float) -> bool:
    """Whether the Lease has to be read, and the node asked: no renewal was seen of late."""
    return lease is None or not lease.is_renewal or now_s - lease.since_s >= RENEWED_S


def doubt_after_s(timing: TrainingJobTiming) -> float:
    return timing.report_timeout_s * DOUBT_FRACTION


def node_failure(pod: Pod, cause: FailureClass, verdict: Verdict) -> WorkerFailure:
    return WorkerFailure(cause=cause, message=f"{worker_text(pod)} was lost: {verdict.reason}")


# Which nodes have fallen silent.


class WorkerNode(Struct, frozen=True):
    """A node with running workers of an attempt that reports."""

    name: str
    pods: tuple[Pod, ...]
    heard_s: float
    """When one of them was last heard."""


def worker_nodes(
    pods: Iterable[Pod], reports: AttemptReports | None, *, receiving_since_s: float
) -> tuple[WorkerNode, ...]:
    """The nodes of the current attempt's running workers.

    None before this operator has received a report of the attempt: without sidecars, or where the network drops
    reports, no worker ever reports.
    """
    if reports is None:
        return ()
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        if is_running(pod):
            by_node.setdefault(pod.spec.node_name, []).append(pod)
    return tuple(
        WorkerNode(name, tuple(on_it), max(receiving_since_s, *(_heard_s(pod, reports) for pod in on_it)))
        for name, on_it in by_node.items()
    )


def _heard_s(pod: Pod, reports: AttemptReports) -> float:
    worker = reports.workers.get(index_of(pod))
    return worker.received_s if worker is not None else reports.first_s


def overdue_nodes(
    late: Iterable[Pod], now: datetime, now_s: float, timing: TrainingJobTiming
) -> tuple[WorkerNode, ...]:
    """The nodes of old pods that should have ended. That they have not is a silence like that of missing reports."""
    by_node: dict[str, list[Pod]] = {}
    for pod in late:
        by_node.setdefault(pod.spec.node_name, []).append(pod)
    return tuple(
        WorkerNode(
            name,
            tuple(pods),
            now_s - (now - max(map(overdue_at, pods))).total_seconds() - timing.report_timeout_s,
        )
        for name, pods in by_node.items()
    )
