"""Whose logs are kept when an attempt breaks: its pods are deleted then, and what they said goes with them."""

from collections.abc import Iterator

from msgspec import Struct

from holdfast.api.builtin import ContainerStateTerminated, ContainerStatus, Pod
from holdfast.api.meta import Key
from holdfast.planning.trainingjob.course import Again, Course, Finish
from holdfast.planning.trainingjob.loss import SIDECAR, index_of
from holdfast.planning.trainingjob.observed import Observed

TRAINER = "trainer"
# Of each attempt: who fails after them mostly fails because of them.
MOST_WORKERS = 5
# Together with the one that breaks.
ATTEMPTS = 3


class Dying(Struct, frozen=True, kw_only=True):
    """A worker whose log is kept, and the container of it that has something to say."""

    pod: Key
    index: int
    node: str
    container: str
    end: ContainerStateTerminated | None
    """How that container ended; None while it runs."""


def whose_logs(observed: Observed, course: Course) -> tuple[Dying, ...]:
    """The first that failed; when none did those that were told to go, and when nobody was lost those that run."""
    match course:
        case Again(retry) if retry is not None:
            nobody_lost = retry.loss.cause == "hang"
        case Finish(finding) if finding.state == "Failed":
            nobody_lost = True
        case _:
            return ()
    pods = sorted(_reachable(observed), key=index_of)
    # One that failed first may still run: its sidecar keeps what there is to keep.
    failed = [pod for pod in pods if pod.status.phase != "Succeeded" and _end(pod) is not None]
    running = [pod for pod in pods if pod.status.phase == "Running"]
    told_to_go = [pod for pod in running if pod.is_terminating]
    chosen = sorted(failed, key=_order) or told_to_go or (running if nobody_lost else [])
    return tuple(map(_dying, chosen[:MOST_WORKERS]))


def is_outdated(attempt: int, current: int) -> bool:
    """Whether the logs of an attempt have to make room when the current one breaks."""
    return attempt <= current - ATTEMPTS


def _reachable(observed: Observed) -> Iterator[Pod]:
    """Each worker's last pod, if its node still answers: for one that does not nobody should wait."""
    last = {index_of(pod): pod for pod in sorted(observed.pods, key=lambda pod: pod.metadata.creation_timestamp)}
    for index, pod in last.items():
        node = observed.nodes.get(pod.spec.node_name)
        if index >= 0 and node is not None and node.is_ready and pod.metadata.uid not in observed.given_up:
            yield pod


def _end(pod: Pod) -> ContainerStatus | None:
    """Which container failed; None when none has run, since the kubelet turned the pod away."""
    beside = sorted(pod.status.container_statuses, key=lambda status: status.name != TRAINER)
    first = (status for status in pod.status.init_container_statuses if status.name != SIDECAR)
    for status in (*first, *beside):
        end = status.state.terminated
        if end is not None and (end.exit_code or end.signal):
            return status
    return None


def _dying(pod: Pod) -> Dying:
    failed = _end(pod)
    return Dying(
        pod=pod.metadata.key,
        index=index_of(pod),
        node=pod.spec.node_name,
        container=failed.name if failed is not None else TRAINER,
        end=failed.state.terminated if failed is not None else None,
    )


def _order(failed: Pod) -> tuple[bool, str]:
    """Those that the Job ends because of the others come last, even in the same second."""
    status = _end(failed)
    end = status.state.terminated if status is not None else None
    return failed.is_terminating, (end.finished_at or "") if end is not None else ""
