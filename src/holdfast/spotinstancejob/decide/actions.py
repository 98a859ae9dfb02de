"""What can be done for a SpotInstanceJob. Pure.

`Record` comes first: what is done after it follows from status, so that it is done again after a crash, and not twice.
"""

from typing import TypeAlias

from msgspec import Struct

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Job, Pod
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancejob_status import CheckpointInProgress, ReplicaStatus, SpotInstanceJobStatus
from holdfast.decisions import CleanUp, Finish


class Record(Struct, frozen=True):
    """What was decided: status has it before anything is done."""

    status: SpotInstanceJobStatus


class SaveReplica(Struct, frozen=True):
    """The CheckpointBackup of a checkpoint is made."""

    checkpoint: CheckpointInProgress
    pod: Pod
    timeout_s: int


class OrderMachine(Struct, frozen=True):
    """The ProvisionedInstance of an attempt is made."""

    replica: ReplicaStatus
    zone: str


class StartReplica(Struct, frozen=True):
    """The Job of an attempt is made, after the base images of its checkpoint are on its node."""

    replica: ReplicaStatus


class StopJob(Struct, frozen=True):
    """A Job that is not wanted any more is deleted, and its pods with it."""

    job: Job


class GiveBack(Struct, frozen=True):
    """A machine that no replica needs any more is deleted."""

    machine: ProvisionedInstance


class DeleteBackup(Struct, frozen=True):
    """A CheckpointBackup that has ended, or is called off."""

    backup: CheckpointBackup


class DeleteImagePod(Struct, frozen=True):
    """A pod that has brought base images to a node, or need not."""

    pod: Pod


class Follow(Struct, frozen=True):
    """All is done: status says what is waited for now."""


Action: TypeAlias = (
    CleanUp
    | Finish
    | Record
    | SaveReplica
    | OrderMachine
    | StartReplica
    | StopJob
    | GiveBack
    | DeleteBackup
    | DeleteImagePod
    | Follow
)
