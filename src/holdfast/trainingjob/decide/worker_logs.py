"""Whose logs are kept when an attempt breaks or is stopped: its pods are deleted then, and their logs with them."""

from collections.abc import Iterator

from msgspec import Struct

from holdfast.api.core.objects import ContainerStateTerminated, ContainerStatus, Pod
from holdfast.api.meta import Key
from holdfast.pods.failure import SIDECAR, index_of
from holdfast.trainingjob.decide.decision import Action, DeleteQueuedJob, EnsureJob, Finish, StartNewAttempt
from holdfast.trainingjob.decide.snapshot import Observed

TRAINER = "trainer"
# Of each attempt: who fails after them mostly fails because of them.
MOST_WORKERS = 5
# Together with the one that breaks: of worker 0, which is 1 MiB of a job, of the others, and of all on one machine.
ATTEMPTS_OF_WORKER_0 = 16
ATTEMPTS = 3
ATTEMPTS_ON_ONE_MACHINE = 100


class LogToSave(Struct, frozen=True, kw_only=True):
    """A worker whose log is kept, and the container of it that has something to say."""

    pod: Key
    index: int
    node: str
    container: str
    end: ContainerStateTerminated | None
    """How that container ended; None while it runs."""


def logs_to_save(observed: Observed, course: Action) -> tuple[LogToSave, ...]:
    """The first that failed; when none did those that were told to go, and when nobody was lost those that run.

    Worker 0's is always among them, and the only one when the workers are stopped unbroken.
    """
    match course:
        case StartNewAttempt(retry):
            nobody_lost = retry is not None and retry.loss.cause == "hang"
        case Finish(finding) if finding.state == "Failed":
            nobody_lost = True
        case _:
            return _stopped(observed, course)
    pods = sorted(_reachable(observed), key=index_of)
    # One that failed first may still run: its sidecar keeps what there is to keep.
    failed = [pod for pod in pods if pod.status.phase != "Succeeded" and _end(pod) is not None]
    running = [pod for pod in pods if pod.status.phase == "Running"]
    told_to_go = [pod for pod in running if pod.is_terminating]
    chosen = sorted(failed, key=_order) or told_to_go or (running if nobody_lost else [])
    # Worker 0 reports for all: its log is looked for first, whoever failed.
    speaker = [pod for pod in pods if index_of(pod) == 0 and (pod in failed or pod in running)]
    first = chosen[:MOST_WORKERS]
    return tuple(map(dying, [*first, *(pod for pod in speaker if pod not in first)]))


def _stopped(observed: Observed, course: Action) -> tuple[LogToSave, ...]:
    """Worker 0 when it is going to be stopped, and while it is: what it writes last is about its checkpoint."""
    match course:
        case EnsureJob(suspended=True):
            stops = observed.started and not observed.queued  # a queue's Job is suspended by Kueue alone
        case DeleteQueuedJob():
            stops = observed.started
        case Finish():
            stops = True
        case _:
            stops = False
    for pod in _reachable(observed):
        runs = pod.status.phase == "Running"
        if index_of(pod) == 0 and ((runs and stops) or (pod.is_terminating and (runs or _trainer(pod) is not None))):
            return (dying(pod),)
    return ()


def is_outdated(attempt: int, index: int, current: int, *, on_one_machine: bool = False) -> bool:
    """Whether a worker's log of an attempt is deleted when the current attempt breaks."""
    if on_one_machine:
        return attempt <= current - ATTEMPTS_ON_ONE_MACHINE
    return attempt <= current - (ATTEMPTS if index else ATTEMPTS_OF_WORKER_0)


def _reachable(observed: Observed) -> Iterator[Pod]:
    """Each worker's last pod, if its node still answers: for one that does not nobody should wait."""
    last = {index_of(pod): pod for pod in sorted(observed.pods, key=lambda pod: pod.metadata.creation_timestamp)}
    for index, pod in last.items():
        node = observed.nodes.get(pod.spec.node_name)
        if index >= 0 and node is not None and node.is_ready and pod.metadata.uid not in observed.lost_pods:
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


def _trainer(pod: Pod) -> ContainerStatus | None:
    """The training's container, once it has ended."""
    ended = (status for status in pod.status.container_statuses if status.state.terminated is not None)
    return next((status for status in ended if status.name == TRAINER), None)


def dying(pod: Pod) -> LogToSave:
    ended = _end(pod) or _trainer(pod)
    return LogToSave(
        pod=pod.metadata.key,
        index=index_of(pod),
        node=pod.spec.node_name,
        container=ended.name if ended is not None else TRAINER,
        end=ended.state.terminated if ended is not None else None,
    )


def _order(failed: Pod) -> tuple[bool, str]:
    """Those that the Job ends because of the others come last, even in the same second."""
    status = _end(failed)
    end = status.state.terminated if status is not None else None
    return failed.is_terminating, (end.finished_at or "") if end is not None else ""
