"""Fetches a checkpoint that a CheckpointBackup has pushed in application mode (checkpoint.resumeFrom: oci://…).

A damaged image is refused, and the one before it is used: the next lower run of the same owner in that repository.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.errors import CheckpointNotFound, Corrupt, UnsafeContent
from holdfast.checkpoints.images.docker_config import CA, DOCKER_CONFIG, credential_from_secret
from holdfast.checkpoints.images.errors import ImageError, ImageNotFound, UnusableImage
from holdfast.checkpoints.images.image import Descriptor, parse_manifest
from holdfast.checkpoints.images.layer import Place, unpack_layer_as
from holdfast.checkpoints.images.newest import (
    OwnedImage,
    batches_from_the_newest,
    owned_image,
    tagged_images,
    tags_by_run,
)
from holdfast.checkpoints.images.reference import ImageReference, parse_reference, parse_run_tag, registry_address
from holdfast.checkpoints.images.registry import RegistryClient
from holdfast.checkpoints.manifest import CheckpointManifest

SCHEME = "oci://"
# How long a registry that does not answer is asked before the caller gets the error; the slowest download.
REGISTRY_TIMEOUT_S = 15.0
DOWNLOAD_S, SLOWEST_BYTES_PER_S = 60.0, 1 << 20

Result = TypeVar("Result")
Secrets = Sequence[Mapping[str, bytes]]


class RefusedImage(NamedTuple):
    address: str
    reason: str


class FetchedImage(NamedTuple):
    """`address` names the image by its digest."""

    address: str
    manifest: CheckpointManifest
    refused: tuple[RefusedImage, ...]


def read_secrets(folder: Path | None) -> Secrets:
    """The Secrets of a folder with files such as 0.dockerconfigjson and 0.ca.crt; none without a folder."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
        number, _, key = path.name.partition(".")
        if number.isdecimal() and path.is_file():
            found.setdefault(number, {})[CA if key == CA else f".{key}"] = path.read_bytes()
    return list(found.values())


def fetch_image(address: str, target: Place, *, secrets: Secrets = (), plain_http: Sequence[str] = ()) -> FetchedImage:
    """Unpack the image where `target` says. Blocks on network and disk: call it in a thread of its own.

    Raises RegistryUnreachable where a later try may succeed.
    """
    with asyncio.Runner() as runner:
        return _Fetch(parse_reference(address.removeprefix(SCHEME)), target, secrets, plain_http, runner).run()


class _Fetch:
    def __init__(
        self,
        reference: ImageReference,
        target: Place,
        secrets: Secrets,
        plain_http: Sequence[str],
        runner: asyncio.Runner,
    ) -> None:
        self._reference = reference
        self._target = target
        self._credential = _credential(secrets, reference)
        self._plain_http = plain_http
        self._runner = runner

    def run(self) -> FetchedImage:
        refused: list[RefusedImage] = []
        for image in self._candidates():
            address = f"{SCHEME}{self._reference.by_digest(image.digest)}"
            try:
                return FetchedImage(address, self._unpack(image), tuple(refused))
            except (Corrupt, UnsafeContent, ImageNotFound) as error:
                refused.append(RefusedImage(address, str(error)))
        reasons = "; ".join(f"{each.address}: {each.reason}" for each in refused[:3])
        raise CheckpointNotFound(
            f"none of the {len(refused)} images of this owner up to that run can be used: {reasons}"
        )

    def _candidates(self) -> Iterator[OwnedImage]:
        """The image itself, then those before it from the newest on, which are looked for only when they are needed."""
        first = self._first()
        yield first
        # Without a tag, the manifests of all runs in the repository have to be looked at.
        tag = parse_run_tag(self._reference.tag) if self._reference.tag else None
        prefixes = (tag.prefix,) if tag is not None else ()
        tags = self._asked(lambda registry: tags_by_run(registry, self._reference.repository, prefixes))
        for batch in batches_from_the_newest({run: tags[run] for run in tags if run < first.run}):
            yield from self._earlier(first, batch)

    def _earlier(self, first: OwnedImage, tags: list[str]) -> list[OwnedImage]:
        """The images of these tags that are of the same training, the newest first."""
        repository = self._reference.repository
        found = self._asked(lambda registry: tagged_images(registry, repository, first.owner_uid, tags))
        same = [
            image
            for image in found
            if image.run < first.run and (image.container, image.mode) == (first.container, first.mode)
        ]
        return sorted(same, key=lambda image: image.run, reverse=True)

    def _first(self) -> OwnedImage:
        wanted = self._reference.digest or self._reference.tag
        if not wanted:
            raise ImageError(f"{self._reference} has neither a tag nor a digest: correct checkpoint.resumeFrom")
        content = self._asked(lambda registry: registry.manifest(self._reference.repository, wanted))
        found = owned_image(self._reference.tag, content)
        if found is None or found.mode != "application":
            raise UnusableImage(
                f"{self._reference} is not a checkpoint that a training has saved: name an image that a "
                "CheckpointBackup has pushed in the mode application"
            )
        return found

    def _unpack(self, image: OwnedImage) -> CheckpointManifest:
        repository = self._reference.repository
        content = self._asked(lambda registry: registry.manifest(repository, image.digest))
        layers = parse_manifest(content, image.digest).layers
        if len(layers) != 1:
            raise UnsafeContent(f"the image has {len(layers)} layers: a checkpoint has one")
        client = self._client(DOWNLOAD_S + layers[0].size / SLOWEST_BYTES_PER_S)
        self._runner.run(client.__aenter__())
        try:
            return unpack_layer_as(self._chunks(client, layers[0]), layers[0], self._target)
        finally:
            self._runner.run(client.__aexit__(None, None, None))

    def _chunks(self, client: RegistryClient, layer: Descriptor) -> Iterator[bytes]:
        """The layer, piece by piece as the disk takes it: never more than a piece of it is in memory."""
        stream = client.blob(self._reference.repository, layer)

        async def following() -> bytes | None:
            return await anext(stream, None)

        while (chunk := self._runner.run(following())) is not None:
            yield chunk

    def _asked(self, ask: Callable[[RegistryClient], Awaitable[Result]]) -> Result:
        """The answer to a small request."""

        async def asked() -> Result:
            async with self._client(REGISTRY_TIMEOUT_S) as registry:
                return await ask(registry)

        return self._runner.run(asked())

    def _client(self, for_s: float) -> RegistryClient:
        address = registry_address(self._reference.host, self._plain_http)
        return RegistryClient(
            address, self._credential, deadline_s=time.monotonic() + for_s, plain_http=self._plain_http
        )


def _credential(secrets: Secrets, reference: ImageReference) -> RegistryCredential:
    """Of the first Secret that has one for this repository; anonymous if none has."""
    found = RegistryCredential()
    for secret in secrets:
        if DOCKER_CONFIG in secret:
            found = credential_from_secret(secret, reference.host, reference.repository)
            if not found.is_anonymous:
                break
    return found
