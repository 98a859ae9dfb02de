"""Which worker a broken attempt lost first, and to what.

When several things went wrong at once, the one that explains the others counts: workers fail in all ways when one of
them is taken away.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import structs

from holdfast.api.builtin import ContainerStateTerminated, Job, Node, Pod
from holdfast.planning.times import parse_time
from holdfast.planning.trainingjob.classes import CLASSES, SIDECAR, FailureClass, WorkerFailure
from holdfast.planning.trainingjob.exits import how, is_permanent, never_ran, words
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.plain import sanitize

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
# SIGTERM and SIGKILL: how a kubelet stops a container.
STOPPED_EXIT_CODES = (143, 137)
# Marks that a machine is about to be taken back, ours and the clouds' own.
PREEMPTION_TAINTS = (
    "holdfast.dev/preempted",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/rebalance-recommendation",
)
# Labels of machines that are cheap because they may be taken back: one of these that goes was preempted.
SPOT = {
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
# What the kubelet writes into a pod that it turned away or threw out.
KUBELETS_REASONS = ("Evicted", "NodeShutdown", "Shutdown", "Terminated", "NodeLost", "NodeAffinity")
ADMISSION_REASONS = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOf")
# Of these, what a kubelet writes when its node is shut down, and `holdfast up` for pods that ran when it ended.
NODE_STOPPED = ("Terminated", "NodeShutdown", "NodeLost")
# What stands in a container whose end nobody has seen: its machine or its runtime was started anew.
UNSEEN_ENDS = ("ContainerStatusUnknown", "Unknown")
# Of pods that the runner of one machine refuses as they are written.
REFUSED = ("ImageNotRun", "VolumeNotSupported")
BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)


def find_failure(observed: Observed) -> WorkerFailure | None:
    """What broke the current attempt, if anything did."""
    job = observed.current_job
    if job is None or job.metadata.deletion_timestamp:
        if observed.state in ("Initializing", "Running") and not observed.job.spec.suspend:
            return WorkerFailure(cause="infrastructure", message="the workers' Job was deleted from outside")
        return None
    if job.spec.suspend or observed.succeeded:
        return None
    found = sorted(_losses(job, observed), key=lambda each: each[0])
    if found:
        return _at_first_start(found[0][1], observed)
    if job.condition("Failed") or job.condition("FailureTarget"):
        # A worker that failed by itself stays to be looked at; only one that was deleted is gone.
        return WorkerFailure(cause="infrastructure", message="a worker was deleted from outside")
    return None


def _at_first_start(loss: WorkerFailure, observed: Observed) -> WorkerFailure | None:
    """Where no worker finds its command, it is written wrong or the image lacks it: no attempt could run.

    One worker alone may be on a node where something is missing, so the others are waited for until they show the
    same. Once a worker has run, the command is there.
    """
    missing = [pod for pod in observed.pods if could_not_start(pod)]
    others = [pod for pod in observed.pods if pod not in missing]
    if loss.cause != "application" or not missing or not _is_first_start(observed):
        return loss
    if len(observed.pods) < observed.job.spec.num_workers or any(pod.status.phase != "Pending" for pod in others):
        return loss
    if not all(pod.is_terminating for pod in others):
        return None
    return structs.replace(loss, permanent=True)


def _is_first_start(observed: Observed) -> bool:
    """A Job that was suspended and goes on has a later startTime."""
    began, job = observed.status.start_time, observed.current_job
    return not observed.status.restart_count and job is not None and began in (None, "", job.status.start_time)


def could_not_start(pod: Pod) -> bool:
    end = _failed_container(pod)
    return end is not None and never_ran(end)


def _losses(job: Job, observed: Observed) -> Iterator[tuple[tuple[int, bool, bool, datetime, int], WorkerFailure]]:
    """Each with its rank: a deletion explains less than anything else of its class, a permanent cause more."""
    nodes, pods = observed.nodes, tuple(pod for pod in observed.pods if not _stopped_before(pod, job))
    failed = _failed(pods)
    broken = min((_failed_at(pod) for pod in failed if not _was_deleted_first(pod)), default=None)
    failing = bool(job.condition("FailureTarget") or job.condition("Failed"))
    for pod in pods:
        if not failed and pod.metadata.uid in observed.saving_pods:
            continue
        collateral = failing if broken is None else pod.is_terminating and deletion_requested_at(pod) >= broken
        # One that is silent with its node may come back; when another has failed meanwhile, that was the reason.
        loss = _silent(pod, nodes) if broken is not None and not pod.is_finished else None
        loss = loss or (
            classify_failure(pod, nodes, collateral=collateral) if pod in failed or pod.is_terminating else None
        )
        if loss is not None:
            first = (CLASSES.index(loss.cause), _was_deleted_first(pod), not loss.permanent)
            yield (*first, _failed_at(pod), index_of(pod)), loss


def _stopped_before(pod: Pod, job: Job) -> bool:
    """Stopped when the Job was suspended, and still to be seen now that it goes on: startTime is of the last start."""
    if not pod.is_terminating or job.condition("Suspended"):
        return pod.is_terminating
    started, created = job.status.start_time, pod.metadata.creation_timestamp
    if not started or not created or parse_time(created) >= parse_time(started):
        return False
    return _is_being_removed(pod) or deletion_requested_at(pod) <= parse_time(started)


def _failed(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """A pod fails when its sidecar has kept what there was to keep: another one may be earlier, and not be the cause.

    From the first worker that failed by itself on, the Job controller ends the others.
    """
    if not any(pod.status.phase == "Failed" for pod in pods):
        return ()
    return tuple(pod for pod in pods if pod.status.phase == "Failed" or _failed_container(pod) is not None)


def classify_failure(pod: Pod, nodes: Mapping[str, Node], *, collateral: bool) -> WorkerFailure | None:
    """What became of a pod that has failed or was told to go.

    `collateral`: the Job controller is ending the others because one has failed.
    """
    if pod.status.phase == "Succeeded":
        return None
    end = _failed_container(pod)
    taken = _taken_away(pod, nodes)
    if taken is not None:
        return taken
    if _was_deleted_first(pod):
        if collateral:
            return None
        return WorkerFailure(cause="infrastructure", message=f"{worker_text(pod)} was deleted from outside")
    if end is None:
        why = sanitize(pod.status.message or pod.status.reason) or "without a word"
        return WorkerFailure(cause="application", message=f"{worker_text(pod)} failed: {why}")
    if end.reason == "OOMKilled":
        how = f"OOMKilled, exit code {end.exit_code}; raise resources.limits.memory"
        message = f"{worker_text(pod)} ran out of memory ({how})"
        return WorkerFailure(
            cause="outOfMemory", message=_with_termination_message(message, end), exit_code=end.exit_code
        )
    if end.reason in UNSEEN_ENDS:
        return WorkerFailure(cause="infrastructure", message=f"{_exited(pod, end)}: nobody saw how it ended")
    if pod.status.reason in REFUSED:
        message = f"{worker_text(pod)} can't run here: {sanitize(pod.status.message)}"
        return WorkerFailure(cause="application", message=message, permanent=True)
    if _init_container(pod, end):  # its code is not the training's own verdict
        return WorkerFailure(cause="application", message=_with_termination_message(_exited(pod, end), end))
    message = _with_termination_message(_exited(pod, end), end)
    return WorkerFailure(cause="application", message=message, exit_code=end.exit_code, permanent=is_permanent(end))


def _taken_away(pod: Pod, nodes: Mapping[str, Node]) -> WorkerFailure | None:
    """By the scheduler, an eviction, the kubelet or with the machine itself."""
    node = nodes.get(pod.spec.node_name)
    told = pod.condition("DisruptionTarget")
    reason = told.reason if told is not None else pod.status.reason
    if told is None and not reason.startswith(ADMISSION_REASONS) and reason not in (*KUBELETS_REASONS, "Preempting"):
        return _silent(pod, nodes)
    message = (told.message if told is not None else "") or pod.status.message
    because = sanitize(f"{reason}: {message}" if message else reason)
    if reason in ("PreemptionByScheduler", "Preempting"):
        return WorkerFailure(cause="preemption", message=f"{worker_text(pod)} was preempted ({because})")
    message = f"{worker_text(pod)} was taken away ({because})"
    return WorkerFailure(
        cause=failure_class_of_node(node), message=message, node_stopped=pod.status.reason in NODE_STOPPED
    )


def _silent(pod: Pod, nodes: Mapping[str, Node]) -> WorkerFailure | None:
    """Nobody can say what became of a worker whose node is lost."""
    node = nodes.get(pod.spec.node_name)
    if not pod.spec.node_name or (node is not None and node.is_ready):
        return None
    state = "is gone" if node is None else "is not ready"
    return WorkerFailure(cause=failure_class_of_node(node), message=f"{worker_text(pod)} was lost: its node {state}")


def failure_class_of_node(node: Node | None) -> FailureClass:
    """Whoever loses its place on a machine that is being taken back was preempted."""
    if node is None:
        return "infrastructure"
    is_spot = any(node.metadata.labels.get(label) == value for label, value in SPOT.items())
    return "preemption" if is_spot or has_preemption_notice(node) else "infrastructure"


def has_preemption_notice(node: Node) -> bool:
    """It has a notice."""
    marks = {taint.key for taint in node.spec.taints}
    marks |= {condition.type for condition in node.status.conditions if condition.status == "True"}
    return not marks.isdisjoint(PREEMPTION_TAINTS)


def _was_deleted_first(pod: Pod) -> bool:
    """Before it ended by itself."""
    if not pod.is_terminating:
        return False
    end = _failed_container(pod)
    if end is None or not end.finished_at or deletion_requested_at(pod) <= parse_time(end.finished_at):
        return True
    return _is_being_removed(pod) and _was_stopped(end)


def _is_being_removed(pod: Pod) -> bool:
    """It has ended, and the kubelet deletes it without grace: its timestamp moves and tells nothing any more."""
    return pod.is_finished and not pod.metadata.deletion_grace_period_seconds


def _was_stopped(end: ContainerStateTerminated) -> bool:
    return end.exit_code in STOPPED_EXIT_CODES and end.reason != "OOMKilled"


def deletion_requested_at(pod: Pod) -> datetime:
    """deletionTimestamp is the end of the grace; it was asked for that much earlier."""
    grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return parse_time(pod.metadata.deletion_timestamp) - grace


def _failed_at(pod: Pod) -> datetime:
    end = _failed_container(pod)
    return parse_time(end.finished_at) if end is not None and end.finished_at else BEGINNING_OF_TIME


def _failed_container(pod: Pod) -> ContainerStateTerminated | None:
    """How a container of the pod failed; an init container before the others, since these did not start then.

    The sidecar is started anew when it fails, and stopped last: its end says nothing about the training.
    """
    first = (status for status in pod.status.init_container_statuses if status.name != SIDECAR)
    statuses = (*first, *pod.status.container_statuses)
    ends = (status.state.terminated for status in statuses)
    return next((end for end in ends if end is not None and (end.exit_code or end.signal)), None)


def _exited(pod: Pod, end: ContainerStateTerminated) -> str:
    init = _init_container(pod, end)
    who = f"init container {init} of {worker_text(pod)}" if init else worker_text(pod)
    return f"{who} {how(end)}"


def _init_container(pod: Pod, end: ContainerStateTerminated) -> str:
    """Which one ended so; "" when it was the training itself."""
    return next((each.name for each in pod.status.init_container_statuses if each.state.terminated is end), "")


def _with_termination_message(message: str, end: ContainerStateTerminated) -> str:
    said = words(end)
    return f"{message}: {said}" if said else message


def worker_text(pod: Pod) -> str:
    """As people call it: worker 3 on gpu-7; a pod without a number is alone."""
    place = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    number = pod.metadata.labels.get(INDEX_LABEL)
    return f"worker {number}{place}" if number is not None else f"its pod{place}"


def index_of(pod: Pod) -> int:
    text = pod.metadata.labels.get(INDEX_LABEL, "")
    return int(text) if text.isdecimal() else -1
