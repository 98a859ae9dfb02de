"""The checkpoints of a job: the CheckpointBackup of one, which is the newest, and which may go. Pure.

Repositories are shared. Tags and labels carry the job's uid, so that another job's images are neither restored nor
deleted.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from holdfast.api.checkpointbackup import IMMEDIATELY, KIND, TERMINAL_PHASES, CheckpointBackup, RunMode
from holdfast.api.core.objects import Pod
from holdfast.api.spotinstancejob import KIND as JOB_KIND
from holdfast.api.spotinstancejob import REPLICA_LABEL, SpotInstanceJob
from holdfast.checkpoints.images.errors import InvalidImageReference
from holdfast.checkpoints.images.newest import OwnedImage
from holdfast.checkpoints.images.reference import (
    ImageReference,
    checked_host,
    checked_repository,
    parse_reference,
    parse_run_tag,
    run_tag,
    tag_prefix,
)
from holdfast.pods.restore.nodes import RestorableImage, restorable_image
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.template import containers, training_container
from holdfast.times import format_time

TIMEOUT_S = 600
# As many as spec.replicas may be, over the life of the job.
MOST_REPLICAS = 32
FINISHED_BACKUPS = 3
_REPLICA = re.compile(r"[0-9]{1,4}")
_TAG_TIME = "%Y%m%dT%H%M%SZ"


class SavedImage(Struct, frozen=True, kw_only=True):
    """The checkpoint of one container."""

    container: str
    image: str
    """host/repository:tag"""
    digest: str = ""
    """Of its manifest; empty where an agent of others did not tell it."""
    labels: Mapping[str, str] = {}
    """What the image tells about itself, such as base-image; empty unless it was read from the registry."""

    @property
    def reference(self) -> ImageReference:
        return parse_reference(self.image)

    @property
    def by_digest(self) -> str:
        """host/repository@digest, as a pod names it: a tag may be moved."""
        return str(self.reference.by_digest(self.digest)) if self.digest else self.image

    @property
    def with_digest(self) -> str:
        """host/repository:tag@digest, as status names it: people find the tag, and the digest can't be moved."""
        return f"{self.image}@{self.digest}" if self.digest and "@" not in self.image else self.image

    @property
    def restorable(self) -> RestorableImage:
        return restorable_image(self.container, self.by_digest, self.labels)


class CheckpointImages(Struct, frozen=True, kw_only=True):
    """One replica as it was saved: an image for each container that is saved. Numbers are the job's, and only grow."""

    number: int
    replica: int
    mode: RunMode
    images: tuple[SavedImage, ...]
    taken_at: str = ""
    """When it was asked for, by the operator's clock."""
    is_whole: bool = True
    """Whether no container's image is missing: a part of a replica is never restored."""

    @property
    def order(self) -> tuple[int, str, int]:
        return self.number, self.taken_at, self.replica


# Where checkpoints go.


def job_repository(job: SpotInstanceJob) -> ImageReference:
    """checkpointImageRepo, without tag. Raises InvalidImageReference with what to write."""
    written = job.spec.checkpoint_config.checkpoint_image_repo
    host, _, repository = written.partition("/")
    if not (host == "localhost" or "." in host or ":" in host):
        raise InvalidImageReference(
            f"checkpointImageRepo {written!a} names no registry: write its host in front, such as "
            f"registry.example.com/{written}"
        )
    return ImageReference(host=checked_host(host), repository=checked_repository(repository))


def saved_containers(job: SpotInstanceJob, mode: RunMode) -> tuple[str, ...]:
    """In application mode one image stands for the replica; in container mode each container has its own."""
    if mode == "application":
        return (training_container(job),)
    return tuple(each["name"] for each in containers(job))


def tag_prefixes(job: SpotInstanceJob) -> frozenset[str]:
    """What the tags of this job's images begin with, whichever replica and container they are of."""
    replicas, all_names = range(MOST_REPLICAS), [each["name"] for each in containers(job)]
    return frozenset(_prefix(job, replica, name) for replica in replicas for name in all_names)


def checkpoint_backup(
    job: SpotInstanceJob,
    *,
    replica: int,
    number: int,
    pod: Pod,
    mode: RunMode,
    now: datetime,
    timeout_s: int = TIMEOUT_S,
) -> dict[str, Any]:
    """A checkpoint of this replica, now. Every container's image is written, with a tag of the job's uid and number.

    Raises InvalidImageReference where checkpointImageRepo is no repository.
    """
    repository, meta = job_repository(job), job.metadata
    attempt = int(pod.metadata.labels.get(names.ATTEMPT_LABEL, "0"))
    credential = job.spec.checkpoint_config.checkpoint_repo_credential_ref
    registry: dict[str, Any] = {"url": repository.host, "repository": repository.repository}
    if credential is not None:
        registry["secretRef"] = {"name": credential.name, "namespace": credential.namespace or meta.namespace}
    images = [
        {
            "name": name,
            "image": f"{repository}:{run_tag(_replica_id(job, replica), name, number, now)}",
        }
        for name in saved_containers(job, mode)
    ]
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": names.child_metadata(
            job,
            names.backup_name(meta.name, replica, number),
            names.replica_labels(meta.name, replica, attempt),
        ),
        "spec": {
            "schedule": IMMEDIATELY,
            "podRef": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
            "resourceRef": {
                "apiVersion": JOB_KIND.api_version,
                "kind": JOB_KIND.kind,
                "name": meta.name,
                "namespace": meta.namespace,
            },
            "registry": registry,
            "containers": images,
            "mode": mode,
            "timeoutSeconds": timeout_s,
            # The job itself deletes old images: it knows which of them a restore uses.
            "retain": 0,
        },
    }


# What there is.


def backup_number(job: SpotInstanceJob, backup: CheckpointBackup) -> int | None:
    """The number in its name; None for a backup that this job has not made."""
    owner = backup.metadata.controller
    if owner is None or owner.uid != job.metadata.uid:
        return None
    found = re.fullmatch(rf"{re.escape(job.metadata.name)}-r[0-9]{{1,4}}-c([0-9]{{1,9}})", backup.metadata.name)
    return int(found[1]) if found else None


def checkpoint_of(job: SpotInstanceJob, backup: CheckpointBackup) -> CheckpointImages | None:
    """The checkpoint that a finished backup of this job has made; None unless all its images are pushed."""
    number, status = backup_number(job, backup), backup.status
    replica = backup.metadata.labels.get(REPLICA_LABEL, "")
    if number is None or status is None or status.phase not in TERMINAL_PHASES or not replica.isdecimal():
        return None
    built = {each.container_name: each for each in status.built_images}
    wanted = [each.name for each in backup.spec.containers]
    if not wanted or any(name not in built for name in wanted):
        return None
    return CheckpointImages(
        number=number,
        replica=int(replica),
        mode=status.mode or ("application" if backup.spec.mode == "application" else "container"),
        images=tuple(
            SavedImage(container=name, image=built[name].image_name, digest=built[name].digest) for name in wanted
        ),
        taken_at=status.last_checkpoint_time or status.start_time or "",
    )


def checkpoints_in_registry(job: SpotInstanceJob, images: Iterable[OwnedImage]) -> tuple[CheckpointImages, ...]:
    """The job's checkpoints, the newest first, also those that lack a container's image."""
    repository = job_repository(job)
    found: dict[tuple[int, int, RunMode], dict[str, tuple[str, OwnedImage]]] = {}
    for image in images:
        replica, tag = image.labels.get("replica", ""), parse_run_tag(image.tag)
        if image.owner_uid != job.metadata.uid or tag is None or not _REPLICA.fullmatch(replica):
            continue
        # The tag is what the operator has asked for; a label alone is what some pod says about itself.
        if tag.prefix != _prefix(job, int(replica), image.container):
            continue
        mode: RunMode = "application" if image.mode == "application" else "container"
        of_run = found.setdefault((tag.run, int(replica), mode), {})
        # A number is used once. Should a tag of it be there twice, the later one counts.
        if image.container not in of_run or of_run[image.container][0] < tag.time:
            of_run[image.container] = (tag.time, image)
    checkpoints = (
        CheckpointImages(
            number=number,
            replica=replica,
            mode=mode,
            images=tuple(_saved(repository, image) for _, image in of_run.values()),
            taken_at=_tag_time(max(time for time, _ in of_run.values())),
            is_whole=of_run.keys() >= set(saved_containers(job, mode)),
        )
        for (number, replica, mode), of_run in found.items()
    )
    return tuple(sorted(checkpoints, key=lambda each: each.order, reverse=True))


def _saved(repository: ImageReference, image: OwnedImage) -> SavedImage:
    return SavedImage(
        container=image.container, image=f"{repository}:{image.tag}", digest=image.digest, labels=image.labels
    )


def _tag_time(text: str) -> str:
    try:
        return format_time(datetime.strptime(text, _TAG_TIME).replace(tzinfo=UTC))
    except ValueError:
        return ""


# Which of them.


def status_image(job: SpotInstanceJob, checkpoint: CheckpointImages) -> str:
    """What status calls the checkpoint: the image of the first container with a GPU, else of the first."""
    name = training_container(job)
    chosen = next((each for each in checkpoint.images if each.container == name), checkpoint.images[0])
    return chosen.with_digest


def number_of_image(image: str) -> int:
    """The number of the checkpoint that it is an image of, as its tag has it; 0 without one."""
    tag = parse_run_tag(parse_reference(image).tag) if image else None
    return tag.run if tag is not None else 0


def newest(checkpoints: Iterable[CheckpointImages], set_aside: Collection[str] = ()) -> CheckpointImages | None:
    """The whole one with the highest number. set_aside: images, as status names them, that failed to restore."""
    return max(_valid(checkpoints, set_aside), key=lambda each: each.order, default=None)


def before(
    checkpoints: Iterable[CheckpointImages], image: str, set_aside: Collection[str] = ()
) -> CheckpointImages | None:
    """The newest of those before the one with this image: a replica goes one image back."""
    everything = tuple(checkpoints)
    limit = next((each.order for each in everything if _has(each, (image,))), None)
    if limit is None:
        tag = parse_run_tag(parse_reference(image).tag)
        limit = (tag.run if tag else 0, "", -1)
    return newest((each for each in everything if each.order < limit), set_aside)


def old_checkpoints(
    checkpoints: Iterable[CheckpointImages], retain: int, in_use: Collection[str] = (), set_aside: Collection[str] = ()
) -> tuple[CheckpointImages, ...]:
    """Those whose images are deleted: all before the newest `retain` valid ones, never one that a restore uses.

    in_use, set_aside: images as status names them. What failed to restore does not count: three bad images must not
    push out the last good one.
    """
    everything = sorted(checkpoints, key=lambda each: each.order)
    valid = _valid(everything, set_aside)
    if len(valid) <= retain or retain < 1:
        return ()
    limit = valid[-retain].order
    retained = [each for each in everything if each.order >= limit or _has(each, in_use)]
    # Deletion is by digest, and takes every tag of it.
    digests = {image.digest for each in retained for image in each.images}
    return tuple(
        each
        for each in everything
        if each not in retained and not any(image.digest in digests for image in each.images if image.digest)
    )


def old_backups(
    job: SpotInstanceJob, backups: Iterable[CheckpointBackup], in_use: Collection[str] = ()
) -> tuple[CheckpointBackup, ...]:
    """The finished objects that are deleted: all before the last three, but not the last that succeeded.

    in_use: names of those that a recovery waits for or uses.
    """
    finished: list[tuple[int, CheckpointBackup]] = []
    for backup in backups:
        number = backup_number(job, backup)
        if number is not None and backup.status is not None and backup.status.phase in TERMINAL_PHASES:
            finished.append((number, backup))
    finished.sort(key=lambda each: each[0])
    succeeded = [backup.metadata.name for _, backup in finished if checkpoint_of(job, backup) is not None]
    kept = {*in_use, *succeeded[-1:]}
    return tuple(backup for _, backup in finished[:-FINISHED_BACKUPS] if backup.metadata.name not in kept)


def _valid(checkpoints: Iterable[CheckpointImages], set_aside: Collection[str]) -> list[CheckpointImages]:
    return [each for each in checkpoints if each.is_whole and not _has(each, set_aside)]


def _has(checkpoint: CheckpointImages, images: Collection[str]) -> bool:
    return any(_is_same(image.with_digest, each) for image in checkpoint.images for each in images)


def _is_same(one: str, other: str) -> bool:
    """By digest, where both have one: status may name an image without its tag."""
    name, _, digest = one.partition("@")
    other_name, _, other_digest = other.partition("@")
    return digest == other_digest if digest and other_digest else name == other_name


def _replica_id(job: SpotInstanceJob, replica: int) -> str:
    # The uid comes first: long names are cut at their end.
    return f"{job.metadata.uid}-r{replica}"


def _prefix(job: SpotInstanceJob, replica: int, container: str) -> str:
    return tag_prefix(_replica_id(job, replica), container)
