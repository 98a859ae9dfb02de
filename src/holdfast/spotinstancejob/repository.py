"""What a job's repository holds, asked of the registry: its checkpoints, what their images tell, and their deletion."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec import structs

from holdfast.api.credentials import RegistryCredential
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.checkpoints.images.errors import (
    DeletionUnsupported,
    ImageError,
    ImageNotFound,
    RegistryUnreachable,
    RepositoryNotFound,
)
from holdfast.checkpoints.images.newest import images_of, owned_image
from holdfast.checkpoints.images.reference import parse_reference, registry_address
from holdfast.checkpoints.images.registry import RegistryClient
from holdfast.cluster.errors import ClusterError
from holdfast.errors import HoldfastError
from holdfast.providers.errors import CloudUnauthorized, ProviderError
from holdfast.runtime.secrets import SecretUnavailable
from holdfast.spotinstancejob.images import (
    CheckpointImages,
    SavedImage,
    checkpoints_in_registry,
    job_repository,
    tag_prefixes,
)

WITHIN_S = 60.0
REPO_FIELD = "spec.checkpointConfig.checkpointRepoCredentialRef"


class RepositoryProblem(HoldfastError):
    """The repository can't be asked, with what would change that. `may_pass` where a later try may succeed."""

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class RepositoryCredentials(Protocol):
    async def credential(self, job: SpotInstanceJob) -> RegistryCredential:
        """Raises a `SecretUnavailable`, an `ImageError`, a `ProviderError` or a `ClusterError`."""
        ...


class CheckpointRepository:
    """Every method takes at most a minute, and raises a `RepositoryProblem`: call it beside a reconcile.

    plain_http: registries, with their ports, that may be reached without TLS.
    """

    def __init__(self, credentials: RepositoryCredentials, *, plain_http: Collection[str] = ()) -> None:
        self._credentials = credentials
        self._plain_http = plain_http

    async def checkpoints(self, job: SpotInstanceJob) -> tuple[CheckpointImages, ...]:
        """All checkpoints of this job in its repository, the newest first, with their labels.

        Also those that lack a container's image: they are never restored, and have to be deleted some day.
        """
        async with self._registry(job) as registry:
            repository = job_repository(job).repository
            images = await images_of(registry, repository, job.metadata.uid, tag_prefixes(job))
            return checkpoints_in_registry(job, images)

    async def described(self, job: SpotInstanceJob, checkpoint: CheckpointImages) -> CheckpointImages | None:
        """The checkpoint with the labels of its images, as a restore needs them; None if an image is gone."""
        async with self._registry(job) as registry:
            try:
                images = [await _described(registry, image) for image in checkpoint.images]
            except (ImageNotFound, RepositoryNotFound):
                return None
            return structs.replace(checkpoint, images=tuple(images))

    async def delete(self, job: SpotInstanceJob, checkpoints: Iterable[CheckpointImages]) -> int:
        """How many images were deleted; those that are gone already are no error."""
        digests = dict.fromkeys(
            (image.reference.repository, image.digest) for each in checkpoints for image in each.images if image.digest
        )
        async with self._registry(job) as registry:
            for repository, digest in digests:
                await registry.delete(repository, digest)
        return len(digests)

    @asynccontextmanager
    async def _registry(self, job: SpotInstanceJob) -> AsyncIterator[RegistryClient]:
        loop = asyncio.get_running_loop()
        try:
            address = registry_address(job_repository(job).host, self._plain_http)
            credential = await self._credentials.credential(job)
            client = RegistryClient(
                address,
                credential,
                deadline_s=loop.time() + WITHIN_S,
                plain_http=self._plain_http,
                clock=loop.time,
            )
            async with client:
                yield client
        except DeletionUnsupported as error:
            raise RepositoryProblem(f"images of old checkpoints stay: {error}", may_pass=False) from None
        except (SecretUnavailable, ImageError, ProviderError, ClusterError) as error:
            passing = isinstance(error, (RegistryUnreachable, ClusterError)) or (
                isinstance(error, ProviderError) and not isinstance(error, CloudUnauthorized)
            )
            # A registry's refusals name the field of a CheckpointBackup, which takes its value from this one.
            raise RepositoryProblem(str(error).replace("registry.secretRef", REPO_FIELD), may_pass=passing) from None


async def _described(registry: RegistryClient, image: SavedImage) -> SavedImage:
    reference = parse_reference(image.image)
    content = await registry.manifest(reference.repository, image.digest or reference.digest or reference.tag)
    found = owned_image(reference.tag, content)
    # An agent of others need not write our labels: then nothing is known but the image.
    return structs.replace(image, digest=found.digest, labels=found.labels) if found is not None else image
