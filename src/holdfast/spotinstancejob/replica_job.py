"""The Job of one attempt of a replica, from the job's template; and what surrounds it. Pure."""

from typing import Any

from msgspec import Struct

from holdfast.api.checkpointbackup import RunMode
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.pods.template import Defaults
from holdfast.spotinstancejob.images import Checkpoint


class ReplicaAttempt(Struct, frozen=True, kw_only=True):
    """What the Job of an attempt is made of besides the template."""

    replica: int
    attempt: int
    mode: RunMode
    node: str = ""
    """The one node that it runs on; empty for any."""
    checkpoint: Checkpoint | None = None
    """What it goes on from, with the labels of its images; None for a start from nothing."""
    reservation: str = ""
    """The label by which the ledger knows the attempt's pod."""
    pull_secret: str = ""
    """The name of the Secret that the operator has written for the repository; empty without one."""


def replica_job(job: SpotInstanceJob, attempt: ReplicaAttempt, defaults: Defaults) -> dict[str, Any]:
    raise NotImplementedError


def base_image_pod(job: SpotInstanceJob, attempt: ReplicaAttempt, defaults: Defaults) -> dict[str, Any] | None:
    """A pod that brings the base images to the node before a container checkpoint is restored there.

    None if there is nothing to bring. It is done when `pods.restore.failure.has_base_images` says so, and failed when
    `base_image_failure` says why.
    """
    raise NotImplementedError


def reports_config_map(job: SpotInstanceJob, endpoint: str) -> dict[str, Any]:
    """Where the sidecars report; `endpoint` as `holdfast.api.reports` encodes it. Needed in application mode alone."""
    raise NotImplementedError


def save_mode(job: SpotInstanceJob, *, can_restore: bool) -> RunMode:
    """How replicas are saved. can_restore: whether nodes can create containers from checkpoints."""
    raise NotImplementedError


def foreign_pull_credential(job: SpotInstanceJob) -> str:
    """A sentence where pods can't pull with checkpointRepoCredentialRef, since it is in another namespace; else empty.

    It says what to copy.
    """
    raise NotImplementedError
