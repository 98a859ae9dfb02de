"""The observation of a CheckpointBackup at one moment, as `decide` reads it."""

from datetime import timedelta

from msgspec import Struct, structs

from holdfast.api.backup_runs import BackupProgress
from holdfast.api.checkpointbackup import IMMEDIATELY, TERMINAL_PHASES, CheckpointBackup, CheckpointBackupStatus
from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Condition
from holdfast.checkpointbackup.mode import BackedUpPod
from holdfast.decisions import Snapshot
from holdfast.pods.template import SIDECAR_CONTAINER

# The condition of a backup with a schedule: whether further runs follow.
SCHEDULED = "Scheduled"
SUSPENDED = "Suspended"
# Reasons for which a schedule is over for good; every other reason ends with what caused it.
POD_ENDED, POD_DELETED = "PodEnded", "PodDeleted"
ENDED_FOR_GOOD = (POD_ENDED, POD_DELETED)


class BackupTiming(Struct, frozen=True, kw_only=True):
    late_s: float = 30.0
    """After so long without a sign of whoever carries a run out, the backup says what is missing."""
    grace_s: float = 10.0
    """How long after the deadline an agent or a sidecar may still say by itself how the run ended."""


TIMING = BackupTiming()


class CheckpointBackupSnapshot(Snapshot, frozen=True, kw_only=True):
    backup: CheckpointBackup
    pod: Pod | None = None
    """The pod of the name that the spec gives, whatever its uid."""
    details: BackedUpPod | None = None
    """The same pod with its volumes and probes; only when a run may begin."""
    node: Node | None = None
    """The node of the run, or of the pod for the next one."""
    has_ready_agent: bool = False
    """Whether a ready agent is seen on that node."""
    runs_containers: bool = True
    """Whether pods are containers; on one machine they are processes, whose memory nothing saves."""
    has_external_agent: bool = False
    """Whether runs are carried out by an agent of others, which is not known by its pods."""
    other_backup: str = ""
    """The backup that has a run of this pod under way."""
    progress: BackupProgress | None = None
    """What the sidecar said last about the run, in application mode."""
    run_age_s: float = 0.0
    """Since the run began, by a clock that nobody sets."""
    due_age_s: float = 0.0
    """Since the next run has been due, likewise."""
    has_old_images: bool = False
    """Whether the last run has pushed images, and older ones have not been looked for since."""

    @property
    def status(self) -> CheckpointBackupStatus:
        return status_of(self.backup)

    @property
    def runs_once(self) -> bool:
        return self.backup.spec.schedule == IMMEDIATELY

    @property
    def is_under_way(self) -> bool:
        return is_under_way(self.backup)

    @property
    def finished(self) -> bool:
        """No further run follows, whatever happens."""
        if self.status.phase not in TERMINAL_PHASES:
            return False
        if self.runs_once:
            return self.status.run > 0
        scheduled = condition_of(self.status, SCHEDULED)
        return scheduled is not None and scheduled.status == "False" and scheduled.reason in ENDED_FOR_GOOD

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.backup.spec.timeout_seconds)

    @property
    def pod_name(self) -> str:
        return self.backup.spec.pod_ref.name

    @property
    def training_container(self) -> str:
        """In application mode one image stands for the pod: that of the container that the training runs in."""
        if self.backup.spec.containers:
            return self.backup.spec.containers[0].name
        containers = self.pod.spec.containers if self.pod is not None else ()
        return next((each.name for each in containers if each.name != SIDECAR_CONTAINER), "")

    @property
    def pod_of_run(self) -> Pod | None:
        """The pod that the run under way saves; None when it is gone."""
        pod = self.pod
        return pod if pod is not None and pod.metadata.uid == self.status.pod_uid else None


def status_of(backup: CheckpointBackup) -> CheckpointBackupStatus:
    return backup.status or CheckpointBackupStatus()


def is_under_way(backup: CheckpointBackup) -> bool:
    """A run has begun and has not ended."""
    status = status_of(backup)
    return status.run > 0 and status.phase not in TERMINAL_PHASES


def condition_of(status: CheckpointBackupStatus, kind: str) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)


def with_backup(observed: CheckpointBackupSnapshot, backup: CheckpointBackup) -> CheckpointBackupSnapshot:
    """The snapshot after a write: a run that has just begun has no age."""
    is_new = status_of(backup).run != observed.status.run
    return structs.replace(observed, backup=backup, run_age_s=0.0 if is_new else observed.run_age_s)
