"""Which worker logs to save when an attempt fails or is stopped: its pods are then deleted together with their logs."""

from collections.abc import Iterator

from msgspec import Struct

from holdfast.api.core.objects import ContainerStateTerminated, ContainerStatus, Pod
from holdfast.api.meta import Key
from holdfast.decisions import Finish
from holdfast.pods.failure import index_of
from holdfast.pods.template import SIDECAR_CONTAINER
from holdfast.trainingjob.decide.decision import Action, DeleteQueuedJob, EnsureJob, StartNewAttempt
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot

TRAINER = "trainer"
# Of each attempt, in order of failure: later workers mostly fail because of these.
MOST_WORKERS = 5
# For how many attempts logs are retained, the failed attempt included: of worker 0 (1 MiB for a job), of the other
# workers, and of all workers when the whole cluster runs on one host.
ATTEMPTS_OF_WORKER_0 = 16
ATTEMPTS = 3
ATTEMPTS_ON_ONE_HOST = 100


class LogToSave(Struct, frozen=True, kw_only=True):
    """A worker whose log is saved, and the container whose log explains most."""

    pod: Key
    index: int
    node: str
    container: str
    end: ContainerStateTerminated | None
    """How the container ended; None while it runs."""


def logs_to_save(observed: TrainingJobSnapshot, action: Action) -> tuple[LogToSave, ...]:
    """The logs of the first failed workers, else of terminating workers, else, if no worker was lost, of running ones.

    Worker 0's log is always included, and is the only one when workers are stopped without a failure.
    """
    match action:
        case StartNewAttempt(retry):
            no_worker_lost = retry is not None and retry.failure.cause == "hang"
        case Finish(finding) if finding.state == "Failed":
            no_worker_lost = True
        case _:
            return _log_of_stopped_worker_0(observed, action)
    pods = sorted(_reachable(observed), key=index_of)
    # The pod that failed first may still be Running: its sidecar still saves checkpoints.
    failed = [pod for pod in pods if pod.status.phase != "Succeeded" and _failed_container(pod) is not None]
    running = [pod for pod in pods if pod.status.phase == "Running"]
    terminating = [pod for pod in running if pod.is_terminating]
    chosen = sorted(failed, key=_failure_order) or terminating or (running if no_worker_lost else [])
    # Worker 0 reports for all workers: users read its log first, whichever worker failed.
    worker_0 = [pod for pod in pods if index_of(pod) == 0 and (pod in failed or pod in running)]
    first = chosen[:MOST_WORKERS]
    return tuple(map(log_to_save, [*first, *(pod for pod in worker_0 if pod not in first)]))


def _log_of_stopped_worker_0(observed: TrainingJobSnapshot, action: Action) -> tuple[LogToSave, ...]:
    """Worker 0's log, before and while worker 0 is stopped: its last lines are about its checkpoint."""
    match action:
        case EnsureJob(suspended=True):
            stops = observed.started and not observed.queued  # only Kueue suspends a queued Job
        case DeleteQueuedJob():
            stops = observed.started
        case Finish():
            stops = True
        case _:
            stops = False
    for pod in _reachable(observed):
        runs = pod.status.phase == "Running"
        if index_of(pod) == 0 and (
            (runs and stops) or (pod.is_terminating and (runs or _ended_trainer(pod) is not None))
        ):
            return (log_to_save(pod),)
    return ()


def is_outdated(attempt: int, index: int, current: int, *, on_one_host: bool = False) -> bool:
    """Whether a worker's log of an attempt is deleted when the current attempt fails."""
    if on_one_host:
        return attempt <= current - ATTEMPTS_ON_ONE_HOST
    return attempt <= current - (ATTEMPTS if index else ATTEMPTS_OF_WORKER_0)


def _reachable(observed: TrainingJobSnapshot) -> Iterator[Pod]:
    """Each worker's last pod, if its node is ready: saving logs must not wait for an unreachable node."""
    last = {index_of(pod): pod for pod in sorted(observed.pods, key=lambda pod: pod.metadata.creation_timestamp)}
    for index, pod in last.items():
        node = observed.nodes.get(pod.spec.node_name)
        if index >= 0 and node is not None and node.is_ready and pod.metadata.uid not in observed.lost_pods:
            yield pod


def _failed_container(pod: Pod) -> ContainerStatus | None:
    """The container that failed; None when no container has run because the kubelet rejected the pod."""
    containers = sorted(pod.status.container_statuses, key=lambda status: status.name != TRAINER)
    init_containers = (status for status in pod.status.init_container_statuses if status.name != SIDECAR_CONTAINER)
    for status in (*init_containers, *containers):
        terminated = status.state.terminated
        if terminated is not None and (terminated.exit_code or terminated.signal):
            return status
    return None


def _ended_trainer(pod: Pod) -> ContainerStatus | None:
    """The trainer container, once it has ended."""
    ended = (status for status in pod.status.container_statuses if status.state.terminated is not None)
    return next((status for status in ended if status.name == TRAINER), None)


def log_to_save(pod: Pod) -> LogToSave:
    ended = _failed_container(pod) or _ended_trainer(pod)
    return LogToSave(
        pod=pod.metadata.key,
        index=index_of(pod),
        node=pod.spec.node_name,
        container=ended.name if ended is not None else TRAINER,
        end=ended.state.terminated if ended is not None else None,
    )


def _failure_order(failed: Pod) -> tuple[bool, str]:
    """Pods that the Job terminates because of another failure come last, even within the same second."""
    status = _failed_container(failed)
    terminated = status.state.terminated if status is not None else None
    return failed.is_terminating, (terminated.finished_at or "") if terminated is not None else ""
