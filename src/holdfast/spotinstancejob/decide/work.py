"""What is to be done for a status that is written: the objects that it names are made, the others go. Pure."""

from collections.abc import Iterator
from datetime import datetime

from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup
from holdfast.api.core.objects import Job
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancejob import REPLICA_LABEL
from holdfast.scheduling.machine_pools import ZoneChoice
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.decide.actions import (
    Action,
    DeleteBackup,
    DeleteImagePod,
    GiveBack,
    OrderMachine,
    SaveReplica,
    StartReplica,
    StopJob,
)
from holdfast.spotinstancejob.decide.checkpoints import timeout_s
from holdfast.spotinstancejob.decide.needs import unmade_machines
from holdfast.spotinstancejob.decide.replicas import current_jobs
from holdfast.spotinstancejob.decide.start import blocking_pods, given_up_at, is_prepared
from holdfast.spotinstancejob.images import old_backups
from holdfast.spotinstancejob.snapshot import (
    PREPARING,
    SpotInstanceJobSnapshot,
    SpotInstanceJobTiming,
    replica_of,
)


def work(observed: SpotInstanceJobSnapshot, now: datetime, timing: SpotInstanceJobTiming) -> Iterator[Action]:
    """In the order of haste: a machine that goes away leaves seconds for a save, and a new one takes minutes."""
    yield from _saves(observed, timing)
    yield from _orders(observed)
    yield from (StopJob(job) for job in observed.jobs.values() if _is_to_stop(observed, job, now, timing))
    for replica in observed.status.job_statuses:
        is_unmade = replica.phase == "Starting" and replica.name not in observed.jobs
        if is_unmade and not blocking_pods(observed, replica, now, timing):
            yield StartReplica(replica)
    yield from (GiveBack(each) for each in unneeded_machines(observed, now, timing))
    yield from (DeleteBackup(each) for each in unneeded_backups(observed))
    awaited = _awaited_image_pods(observed)
    yield from (DeleteImagePod(pod) for name, pod in observed.image_pods.items() if name not in awaited)


def clean_up_ended(observed: SpotInstanceJobSnapshot) -> Iterator[Action]:
    """What a job that has ended still has: all is given back but the Jobs that have ended by themselves."""
    for job in observed.jobs.values():
        if not job.metadata.deletion_timestamp and not _has_ended(job):
            yield StopJob(job)
    for machine in observed.machines.values():
        if not machine.metadata.deletion_timestamp:
            yield GiveBack(machine)
    for backup in observed.backups.values():
        if not _is_over(backup) and not backup.metadata.deletion_timestamp:
            yield DeleteBackup(backup)
    yield from (DeleteImagePod(pod) for pod in observed.image_pods.values() if not pod.is_terminating)


def _saves(observed: SpotInstanceJobSnapshot, timing: SpotInstanceJobTiming) -> Iterator[Action]:
    for wanted in observed.status.checkpoints_in_progress:
        pod = observed.pod_of(wanted.job)
        if pod is not None and observed.backup(wanted.replica, wanted.number) is None:
            yield SaveReplica(wanted, pod, timeout_s(observed, wanted, timing))


def _orders(observed: SpotInstanceJobSnapshot) -> Iterator[Action]:
    for replica in unmade_machines(observed, observed.status):
        zone = observed.zones.get(replica.replica)
        if isinstance(zone, ZoneChoice):
            yield OrderMachine(replica, zone.zone)


def _is_to_stop(observed: SpotInstanceJobSnapshot, job: Job, now: datetime, timing: SpotInstanceJobTiming) -> bool:
    """The Job of an attempt that is over stays while nothing can follow it: until then it may still succeed."""
    if job.metadata.deletion_timestamp or job.metadata.name in current_jobs(observed.status):
        return False
    pod = observed.pod_of(job.metadata.name)
    if pod is not None and pod.status.phase == "Succeeded":
        return False  # the Job is about to say that the training is done
    replica = replica_of(observed.status, int(job.metadata.labels.get(REPLICA_LABEL, "-1")))
    if replica is not None and replica.phase == "Failed":
        return job.metadata.name != replica.name  # the last one stays for whoever wants to know why
    return replica is None or replica.phase not in PREPARING or is_prepared(replica, now, timing)


def unneeded_machines(
    observed: SpotInstanceJobSnapshot, now: datetime, timing: SpotInstanceJobTiming
) -> Iterator[ProvisionedInstance]:
    """Those of no replica. While its node is heard of, what still runs there ends in peace: it may yet be saved.

    What does not end although it was told to, such as a process that hangs in a driver, ends with the machine.
    """
    needed = {each.machine for each in observed.status.job_statuses}
    for name, machine in observed.machines.items():
        if name in needed or machine.metadata.deletion_timestamp:
            continue
        node = observed.nodes.get(machine_status(machine).node_name or "")
        on_node = (pod for pod in observed.pods if node is not None and pod.spec.node_name == node.metadata.name)
        if (
            node is None
            or not node.is_ready
            or all(pod.is_finished or (pod.is_terminating and now >= given_up_at(pod, timing)) for pod in on_node)
        ):
            yield machine


def unneeded_backups(observed: SpotInstanceJobSnapshot) -> Iterator[CheckpointBackup]:
    """Finished ones but the last three, and what nobody waits for any more."""
    status, name = observed.status, observed.job.metadata.name
    wanted = {names.backup_name(name, each.replica, each.number) for each in status.checkpoints_in_progress}
    old = {each.metadata.name for each in old_backups(observed.job, observed.backups.values(), wanted)}
    for backup in observed.backups.values():
        is_called_off = not _is_over(backup) and backup.metadata.name not in wanted
        if (backup.metadata.name in old or is_called_off) and not backup.metadata.deletion_timestamp:
            yield backup


def _awaited_image_pods(observed: SpotInstanceJobSnapshot) -> set[str]:
    """The pods that bring base images for an attempt whose Job is not made yet."""
    return {
        names.base_image_pod_name(observed.job.metadata.name, each.replica, each.attempt)
        for each in observed.status.job_statuses
        if each.phase == "Starting" and each.name not in observed.jobs
    }


def _has_ended(job: Job) -> bool:
    return any(job.condition(kind) is not None for kind in ("Complete", "Failed"))


def _is_over(backup: CheckpointBackup) -> bool:
    return backup.status is not None and backup.status.phase in TERMINAL_PHASES
