"""Whether and why an attempt is lost, and which of the failure classes that is. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.core.objects import find_condition as find
from holdfast.api.machine_ends import is_ending
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.spotinstancejob_status import ReplicaStatus, SpotInstanceJobStatus
from holdfast.pods.failure import WorkerFailure, classify_failure, could_not_start, failure_class_of_node
from holdfast.pods.restore.failure import CreationFailure, creation_failure, sidecar_failure
from holdfast.pods.restore.nodes import RestorableImage
from holdfast.pods.restore.protocol import Fault
from holdfast.pods.start_problems import problem_of
from holdfast.spotinstancejob.decide.failure_policy import is_final
from holdfast.spotinstancejob.snapshot import (
    STARTED,
    SpotInstanceJobSnapshot,
    SpotInstanceJobTiming,
    after,
    is_preempted,
    machine_condition,
)
from holdfast.spotinstancejob.template import containers
from holdfast.times import parse_optional_time


class LostAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that another one has to follow."""

    replica: ReplicaStatus
    failure: WorkerFailure
    is_announced: bool = False
    """The machine is about to be taken away, and the attempt still runs: it may be saved."""
    image_is_unusable: bool = False
    """Nothing goes on from the image, wherever that is tried."""

    @property
    def may_keep_machine(self) -> bool:
        """The training or its image failed, and nothing is wrong with the machine."""
        return self.image_is_unusable or not self.failure.is_free


def find_lost_attempts(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime, timing: SpotInstanceJobTiming
) -> tuple[LostAttempt, ...]:
    started = (each for each in status.job_statuses if each.phase in STARTED)
    return tuple(lost for each in started if (lost := find_lost_attempt(observed, each, now, timing)) is not None)


def find_lost_attempt(
    observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, now: datetime, timing: SpotInstanceJobTiming
) -> LostAttempt | None:
    pod = observed.pod_of(replica.name)
    if pod is not None and pod.status.phase == "Succeeded":
        return None  # its Job will report the success
    announced = _announced(observed, replica)
    if announced is not None:
        runs = pod is not None and not pod.is_finished and not _is_machine_ending(observed, replica)
        return LostAttempt(replica=replica, failure=announced, is_announced=runs)
    if pod is not None and (refusal := _not_restored(replica, pod, observed, now, timing)) is not None:
        return LostAttempt(
            replica=replica,
            failure=WorkerFailure(cause="infrastructure", message=refusal.message),
            image_is_unusable=refusal.fault is Fault.IMAGE,
        )
    failure = (
        _machine_ended(observed, replica)
        or _failed_pod(observed, replica, pod)
        or _lost_node(observed, replica, now, timing)
        or _lost_job(observed, replica, pod)
        or _unbound(observed, replica, pod, now, timing)
    )
    return LostAttempt(replica=replica, failure=failure) if failure is not None else None


def lost_attempts_ahead(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, timing: SpotInstanceJobTiming
) -> Iterator[datetime]:
    """When an attempt is lost though nothing else happens."""
    for replica in status.job_statuses:
        if replica.phase not in STARTED:
            continue
        node, pod = observed.nodes.get(replica.node_name or ""), observed.pod_of(replica.name)
        if node is not None and (silent := _silent_since(node)) is not None:
            yield silent + timedelta(seconds=timing.lost_node_s)
        job = observed.jobs.get(replica.name)
        if pod is None and job is not None and job.status.start_time:
            yield after(job.status.start_time, timing.explain_s)
        if pod is not None and replica.phase == "Starting":
            limits = (timing.bind_timeout_s, timing.restore_timeout_s)
            yield from (after(pod.metadata.creation_timestamp, limit) for limit in limits)


def _announced(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> WorkerFailure | None:
    """The cloud takes the machine away: whatever happens to the pod from now on, this is why."""
    node_name = replica.node_name or ""
    machine = observed.machine_on(node_name) or observed.machine_of(replica)
    if machine is not None and is_preempted(machine):
        said = machine_condition(machine, "Preempted")
        text = f": {said.message}" if said is not None and said.message else ""
        return WorkerFailure(cause="preemption", message=f"machine {machine.metadata.name} was preempted{text}")
    if observed.is_announced(node_name):
        return WorkerFailure(cause="preemption", message=f"node {node_name} is being preempted")
    return None


def _is_machine_ending(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> bool:
    """The cloud has taken it back already: its pods may be there yet, and nothing of them runs."""
    machine = observed.machine_on(replica.node_name or "") or observed.machine_of(replica)
    return machine is not None and is_ending(machine)


def _machine_ended(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> WorkerFailure | None:
    machine = observed.machine_on(replica.node_name or "") or observed.machine_of(replica)
    if machine is None or not is_ending(machine):
        return None
    said = machine_status(machine).message
    text = f"machine {machine.metadata.name} was given back"
    return WorkerFailure(cause="infrastructure", message=f"{text}: {said}" if said else text)


def _failed_pod(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, pod: Pod | None) -> WorkerFailure | None:
    if pod is None or not (pod.status.phase == "Failed" or pod.is_terminating):
        return None
    failure = classify_failure(pod, observed.nodes, collateral=False)
    if failure is None:
        return None
    node = observed.nodes.get(pod.spec.node_name)
    if (
        failure.cause == "preemption"
        and node is not None
        and not node.is_ready
        and _runs_on(observed, pod.spec.node_name)
    ):
        failure = structs.replace(failure, cause="infrastructure")
    if failure.is_free:
        return failure
    if is_final(observed.job, pod):
        return structs.replace(failure, permanent=True, message=f"{failure.message}; podFailurePolicy calls that final")
    # In a later attempt the command was found before.
    return structs.replace(failure, permanent=True) if replica.attempt == 0 and could_not_start(pod) else failure


def _lost_node(
    observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, now: datetime, timing: SpotInstanceJobTiming
) -> WorkerFailure | None:
    """A node may be silent for a moment: a restarted kubelet, a control plane that was away."""
    name = replica.node_name or ""
    node = observed.nodes.get(name)
    if node is None:
        return WorkerFailure(cause="infrastructure", message=f"node {name} is gone")
    silent = _silent_since(node)
    if silent is None or now < silent + timedelta(seconds=timing.lost_node_s):
        return None
    message = f"node {name} has been silent for {timing.lost_node_s:.0f} s"
    cause = "infrastructure" if _runs_on(observed, name) else failure_class_of_node(node)
    return WorkerFailure(cause=cause, message=message)


def _runs_on(observed: SpotInstanceJobSnapshot, node: str) -> bool:
    """The cloud was asked about the silent node, and says that its machine was not taken back."""
    machine = observed.machine_on(node)
    said = machine_condition(machine, "Preempted") if machine is not None else None
    return said is not None and said.status == "False"


def _silent_since(node: Node) -> datetime | None:
    """None while the node is ready, and while nobody says since when it is not."""
    if node.is_ready:
        return None
    ready = find(node.status.conditions, "Ready")
    return parse_optional_time(ready.last_transition_time) if ready is not None else None


def _lost_job(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, pod: Pod | None) -> WorkerFailure | None:
    """Somebody else deletes what an attempt consists of."""
    job = observed.jobs.get(replica.name)
    if job is None:
        if replica.phase == "Starting":
            return None  # the Job is still to be made
        return WorkerFailure(cause="infrastructure", message=f"Job {replica.name} was deleted from outside")
    if job.metadata.deletion_timestamp:
        return WorkerFailure(cause="infrastructure", message=f"Job {replica.name} was deleted from outside")
    # A pod that failed by itself is there to be seen; one that seems to run will be seen to have failed.
    if pod is None and _is_over(job):
        return WorkerFailure(cause="infrastructure", message=f"the pod of Job {replica.name} was deleted from outside")
    return None


def _unbound(
    observed: SpotInstanceJobSnapshot,
    replica: ReplicaStatus,
    pod: Pod | None,
    now: datetime,
    timing: SpotInstanceJobTiming,
) -> WorkerFailure | None:
    """On a machine of its own the pod waits for whoever took its room; elsewhere another node may have room."""
    if pod is None or pod.spec.node_name or replica.machine is not None:
        return None
    if now < after(pod.metadata.creation_timestamp, timing.bind_timeout_s) or not _is_unschedulable(pod):
        return None
    message = f"its pod did not get node {replica.node_name} within {timing.bind_timeout_s:.0f} s"
    because = problem_of(pod)
    return WorkerFailure(cause="infrastructure", message=f"{message}: {because}" if because else message)


def _not_restored(
    replica: ReplicaStatus,
    pod: Pod,
    observed: SpotInstanceJobSnapshot,
    now: datetime,
    timing: SpotInstanceJobTiming,
) -> CreationFailure | None:
    """Nothing goes on from the image. A registry that does not answer may do so later."""
    if not replica.restored_from:
        return None
    if observed.status.checkpoint_mode != "container":
        return sidecar_failure(pod) if replica.phase == "Starting" else None
    images = [RestorableImage(container=each["name"], image=replica.restored_from) for each in containers(observed.job)]
    failure = creation_failure(pod, images)
    if failure is None:
        return None
    is_over = now >= after(pod.metadata.creation_timestamp, timing.restore_timeout_s)
    return failure if is_over or not failure.may_pass else None


def _is_over(job: Job) -> bool:
    return any(job.condition(kind) is not None for kind in ("Failed", "FailureTarget"))


def _is_unschedulable(pod: Pod) -> bool:
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions)
