"""The checkpoints of a job: the CheckpointBackup of one, which is the newest, and which may go. Pure.

Repositories are shared. Tags and labels carry the job's uid, so that another job's images are neither restored nor
deleted.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast.api.checkpointbackup import CheckpointBackup, RunMode
from holdfast.api.core.objects import Pod
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.checkpoints.images.newest import OwnedImage
from holdfast.pods.restore.nodes import RestorableImage


class SavedImage(Struct, frozen=True, kw_only=True):
    """The checkpoint of one container."""

    container: str
    image: str
    """host/repository:tag"""
    digest: str
    labels: Mapping[str, str] = {}
    """What the image tells about itself, such as base-image; empty unless it was read from the registry."""

    @property
    def by_digest(self) -> str:
        """host/repository@digest, as a pod names it."""
        raise NotImplementedError

    @property
    def restorable(self) -> RestorableImage:
        raise NotImplementedError


class Checkpoint(Struct, frozen=True, kw_only=True):
    """One replica as it was saved: an image for each of its containers. Numbers are the job's, and only grow."""

    number: int
    replica: int
    mode: RunMode
    images: tuple[SavedImage, ...]
    taken_at: str = ""


def checkpoint_backup(
    job: SpotInstanceJob, *, replica: int, number: int, pod: Pod, mode: RunMode, now: datetime
) -> dict[str, Any]:
    """A checkpoint of this replica, now. Every container's image is written, with a tag of the job's uid and number."""
    raise NotImplementedError


def checkpoint_of(job: SpotInstanceJob, backup: CheckpointBackup) -> Checkpoint | None:
    """The checkpoint that a finished backup of this job has made; None unless all its images are pushed."""
    raise NotImplementedError


def checkpoints_in_registry(job: SpotInstanceJob, images: Iterable[OwnedImage]) -> tuple[Checkpoint, ...]:
    """The job's checkpoints that have an image of every container that is saved, the newest first."""
    raise NotImplementedError


def newest(checkpoints: Iterable[Checkpoint], set_aside: Collection[str] = ()) -> Checkpoint | None:
    """The one with the highest number. set_aside: images, as status names them, that failed to restore."""
    raise NotImplementedError


def before(checkpoints: Iterable[Checkpoint], image: str, set_aside: Collection[str] = ()) -> Checkpoint | None:
    """The newest of those before the one with this image: a replica goes one image back."""
    raise NotImplementedError


def status_image(job: SpotInstanceJob, checkpoint: Checkpoint) -> str:
    """What status calls the checkpoint: the image of the first container with a GPU, else of the first, by tag and
    digest."""
    raise NotImplementedError


def old_backups(backups: Iterable[CheckpointBackup], retain: int = 3) -> tuple[CheckpointBackup, ...]:
    """The finished objects that are deleted: all before the last three."""
    raise NotImplementedError


def old_checkpoints(
    checkpoints: Iterable[Checkpoint], retain: int, in_use: Collection[str], set_aside: Collection[str] = ()
) -> tuple[Checkpoint, ...]:
    """Those whose images are deleted: all before the newest `retain` valid ones, never one that a restore uses.

    in_use, set_aside: images as status names them.
    """
    raise NotImplementedError
