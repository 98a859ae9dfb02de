"""Deletes the images of old runs: all before the newest `retain` runs of one backup and its owner."""

import time
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol

import structlog
from msgspec import Struct

from holdfast.api.checkpointbackup import SUCCESSFUL_PHASES, CheckpointBackup
from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Key
from holdfast.checkpointbackup.apply import owner_of
from holdfast.checkpointbackup.snapshot import status_of
from holdfast.checkpoints.images.errors import DeletionUnsupported, ImageError
from holdfast.checkpoints.images.newest import expired_images, tagged_images, tags_by_run
from holdfast.checkpoints.images.reference import registry_address, tag_prefix
from holdfast.checkpoints.images.registry import RegistryClient
from holdfast.checkpoints.images.target import target_repository
from holdfast.cluster.errors import ClusterError
from holdfast.runtime.authentication import HttpRefusal

# A registry that takes longer is asked again after the next run.
WITHIN_S = 60.0
# Of the operator's workers, as many may wait for registries at once; the others go on with what backups need.
AT_ONCE = 3
# Of thousands of old runs so many go at once; of the newest as many may lack a container.
OLDEST_AT_ONCE, SPARE_RUNS = 200, 20
# How soon a backup that found no turn looks again.
AGAIN_S = 2.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class CredentialReader(Protocol):
    async def credential(self, backup: CheckpointBackup) -> RegistryCredential:
        """The credential of the backup's registry. Raises `HttpRefusal` with a sentence, or a `ClusterError`."""
        ...


class RetentionResult(Struct, frozen=True):
    deleted: int = 0
    problem: str = ""
    """Why old images stay, in a sentence; said once for a registry that deletes nothing."""


def runs_to_look_at(runs: Sequence[int], retain: int) -> Sequence[int]:
    """The newest, which say what is retained, and the oldest, which go; those in between with later runs.

    Among fewer runs, fewer are newer than an image: none is deleted that would stay among all.
    """
    newest = retain + SPARE_RUNS
    return runs if len(runs) <= newest + OLDEST_AT_ONCE else (*runs[:OLDEST_AT_ONCE], *runs[-newest:])


class ImageRetention:
    """Remembers after which run old images were looked for. A new process looks again after the next run."""

    def __init__(self, credentials: CredentialReader, *, plain_http: Collection[str] = ()) -> None:
        self._credentials = credentials
        self._plain_http = plain_http
        self._looked: dict[Key, tuple[str, int]] = {}
        self._undeletable: set[str] = set()
        self._under_way = 0

    def begun(self, backup: CheckpointBackup) -> None:
        """A run is under way: when it has pushed images, older ones may go."""
        self._looked[backup.metadata.key] = (backup.metadata.uid, status_of(backup).run - 1)

    def is_due(self, backup: CheckpointBackup) -> bool:
        """Whether this process saw the last run under way, all its images are pushed, and there are more than are kept.

        What a run has pushed that lacks a container does not say which containers a whole run has.
        """
        status, meta = status_of(backup), backup.metadata
        uid, run = self._looked.get(meta.key, ("", 0))
        has_more = 0 < backup.spec.retain < status.run
        is_whole = status.phase in SUCCESSFUL_PHASES and bool(status.built_images)
        return has_more and is_whole and uid == meta.uid and run < status.run

    def forget(self, key: Key) -> None:
        self._looked.pop(key, None)

    async def delete_old_images(self, backup: CheckpointBackup) -> RetentionResult:
        """While others take long, nothing is done: it stays due."""
        if self._under_way >= AT_ONCE:
            return RetentionResult()
        status, meta = status_of(backup), backup.metadata
        self._looked[meta.key] = (meta.uid, status.run)
        host = backup.spec.registry.url
        if host in self._undeletable:
            return RetentionResult()
        self._under_way += 1
        try:
            return RetentionResult(deleted=await self._delete(backup))
        except DeletionUnsupported as error:
            self._undeletable.add(host)
            return RetentionResult(problem=f"images of old runs stay: {error}")
        except (ImageError, HttpRefusal, ClusterError) as error:
            return RetentionResult(problem=f"images of old runs stay until after the next run: {error}")
        finally:
            self._under_way -= 1

    async def _delete(self, backup: CheckpointBackup) -> int:
        credential = await self._credentials.credential(backup)
        address = registry_address(backup.spec.registry.url, self._plain_http)
        containers = tuple(image.container_name for image in status_of(backup).built_images)
        by_repository: dict[str, list[str]] = {}
        for container in containers:
            by_repository.setdefault(target_repository(backup, container).repository, []).append(container)
        deleted, owner = 0, owner_of(backup).uid
        async with RegistryClient(
            address, credential, deadline_s=time.monotonic() + WITHIN_S, plain_http=self._plain_http
        ) as registry:
            for repository, names in by_repository.items():
                prefixes = {tag_prefix(backup.metadata.name, name) for name in names}
                tags = await tags_by_run(registry, repository, prefixes)
                looked_at = chain.from_iterable(tags[run] for run in runs_to_look_at(tuple(tags), backup.spec.retain))
                images = await tagged_images(registry, repository, owner, looked_at)
                for image in expired_images(images, owner, backup.spec.retain, names):
                    await registry.delete(repository, image.digest)
                    deleted += 1
        return deleted
