"""Starts an attempt that has its node and its image, once nothing of an earlier attempt can run any more. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancejob import REPLICA_LABEL
from holdfast.api.spotinstancejob_status import (
    MOST_RECOVERIES,
    Recovery,
    RecoverySource,
    ReplicaStatus,
    SpotInstanceJobStatus,
)
from holdfast.pods.restore.nodes import RESTORE_LABEL, RESTORE_VALUE
from holdfast.spotinstancejob.decide.recovery import known_checkpoints, set_aside
from holdfast.spotinstancejob.images import number_of_image, status_image
from holdfast.spotinstancejob.replica_job import save_mode
from holdfast.spotinstancejob.snapshot import (
    PREPARING,
    SpotInstanceJobSnapshot,
    SpotInstanceJobTiming,
    is_off,
    is_owned_by,
    with_replica,
)
from holdfast.times import format_time, parse_time


def start(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime, timing: SpotInstanceJobTiming
) -> SpotInstanceJobStatus:
    for replica in status.job_statuses:
        if not is_prepared(replica, now, timing) or blocking_machines(observed, replica):
            continue
        if not blocking_pods(observed, replica, now, timing):
            status = _started(observed, status, replica, now)
    return status


def is_prepared(replica: ReplicaStatus, now: datetime, timing: SpotInstanceJobTiming) -> bool:
    """Whether it has all that its Job is made of: what is left of the attempt before it has to go now."""
    if replica.phase not in PREPARING or replica.node_name is None or replica.source is None:
        return False
    pause_s = (parse_time(replica.retry_time) - now).total_seconds() if replica.retry_time is not None else 0.0
    # No pause is longer than the longest one: the clock was ahead, and has been put back.
    return pause_s <= 0 or pause_s > timing.retry_cap_s


def _started(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, replica: ReplicaStatus, now: datetime
) -> SpotInstanceJobStatus:
    replica = _from_newest(observed, status, replica)
    started = structs.replace(replica, phase="Starting")
    mode = status.checkpoint_mode or save_mode(observed.job, can_restore=observed.can_restore)
    status = structs.replace(with_replica(status, started), checkpoint_mode=mode)
    if replica.cause is None or replica.source is None:
        return status
    recovery = Recovery(
        time=format_time(now),
        replica=replica.replica,
        cause=replica.cause,
        source=replica.source,
        image=replica.restored_from,
        lost_seconds=_lost_s(observed, status, replica),
    )
    return structs.replace(status, recoveries=(*status.recoveries, recovery)[-MOST_RECOVERIES:])


def _from_newest(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, replica: ReplicaStatus
) -> ReplicaStatus:
    """A machine may have been hours in coming, and other replicas were saved meanwhile."""
    newest = status.last_checkpoint_image
    if not newest or newest in set_aside(status) | observed.missing_images or not _may_restore(observed, replica):
        return replica
    if number_of_image(newest) <= number_of_image(replica.restored_from or ""):
        return replica
    source: RecoverySource | None = "repository" if replica.source == "start" else replica.source
    return structs.replace(replica, source=source, restored_from=newest)


def _may_restore(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> bool:
    """For an attempt that was to begin anew a node may have been chosen that makes no containers from checkpoints."""
    if replica.source != "start" or replica.machine is not None or observed.status.checkpoint_mode != "container":
        return True
    node = observed.nodes.get(replica.node_name or "")
    return node is not None and node.metadata.labels.get(RESTORE_LABEL) == RESTORE_VALUE


def _lost_s(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, replica: ReplicaStatus) -> int:
    """From the moment that the image shows to the loss; from the start where there is no image."""
    taken = taken_at(observed, status, replica.restored_from) or status.start_time
    if taken is None or replica.lost_time is None:
        return 0
    return max(0, int((parse_time(replica.lost_time) - parse_time(taken)).total_seconds()))


def taken_at(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, image: str | None) -> str | None:
    """When the checkpoint of that image was taken, if anybody knows."""
    if image is None:
        return None
    known = {each.last_checkpoint_image: each.last_checkpoint_time for each in status.job_statuses}
    known[status.last_checkpoint_image] = status.last_checkpoint_time
    listed = observed.repository.checkpoints if observed.repository is not None else ()
    checkpoints = (*known_checkpoints(observed), *listed)
    found = (each.taken_at for each in checkpoints if status_image(observed.job, each) == image)
    return known.get(image) or next(found, None)


# What is left of earlier attempts.


def blocking_pods(
    observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, now: datetime, timing: SpotInstanceJobTiming
) -> tuple[Pod, ...]:
    """Pods of earlier attempts that may still run, also of a Job that is gone: no replica runs twice."""
    job = observed.jobs.get(replica.name)
    pods = (pod for pod in observed.pods if pod.metadata.labels.get(REPLICA_LABEL) == str(replica.replica))
    return tuple(
        pod for pod in pods if not (job is not None and is_owned_by(pod, job)) and may_run(observed, pod, now, timing)
    )


def blocking_machines(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> tuple[ProvisionedInstance, ...]:
    """Machines of earlier attempts that nobody hears of: what ran there may still run, until they are gone."""
    return tuple(
        machine
        for name, machine in observed.machines.items()
        if machine.metadata.labels.get(REPLICA_LABEL) == str(replica.replica)
        and name != replica.machine
        and not is_off(machine)
        and _is_unheard_of(observed, machine)
    )


def may_run(observed: SpotInstanceJobSnapshot, pod: Pod, now: datetime, timing: SpotInstanceJobTiming) -> bool:
    """On a machine until the cloud says that it is off; on another node that is only silent for some time."""
    if pod.is_finished:
        return False
    if not pod.spec.node_name:
        return True  # until the pod is deleted, which takes a moment, the scheduler may bind it
    machine, node = observed.machine_on(pod.spec.node_name), observed.nodes.get(pod.spec.node_name)
    if machine is not None:
        return not is_off(machine)
    if node is None:
        return False
    return node.is_ready or not pod.is_terminating or now < given_up_at(pod, timing)


def _is_unheard_of(observed: SpotInstanceJobSnapshot, machine: ProvisionedInstance) -> bool:
    name = machine_status(machine).node_name
    node = observed.nodes.get(name) if name else None
    return bool(name) and (node is None or not node.is_ready)


def given_up_at(pod: Pod, timing: SpotInstanceJobTiming) -> datetime:
    """A terminating pod has had its grace, and some time more."""
    return parse_time(pod.metadata.deletion_timestamp) + timedelta(seconds=timing.lost_pod_timeout_s)


def starts_ahead(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, timing: SpotInstanceJobTiming
) -> Iterator[datetime]:
    """When an attempt may start though nothing else happens."""
    yield from (parse_time(each.retry_time) for each in status.job_statuses if each.retry_time)
    yield from (given_up_at(pod, timing) for pod in observed.pods if pod.is_terminating and not pod.is_finished)
