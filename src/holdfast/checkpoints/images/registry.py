"""A client of OCI registries. Everything streams: 20 GiB never sit in memory.

async with RegistryClient(registry_address(url), credential, deadline_s=time.monotonic() + 600) as registry:
    pushed = await push_image(registry, repository, tag, facts, file_blob(archive))
"""

import asyncio
import hashlib
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlencode

import msgspec
from aiohttp import ClientResponse

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.errors import DigestMismatch, ImageNotFound, RegistryError
from holdfast.checkpoints.images.image import (
    LAYER_TYPE,
    MANIFEST_TYPE,
    MAX_MANIFEST,
    Blob,
    BytesBlob,
    Descriptor,
    ImageFacts,
    build_image,
    sha256_digest,
)
from holdfast.checkpoints.images.reference import DIGEST, ImageReference, RegistryAddress, checked_repository
from holdfast.checkpoints.images.retries import RetryPauses, RetryTiming, TemporaryFailure
from holdfast.checkpoints.images.transport import (
    MAX_ERROR,
    RegistryRequest,
    RegistryTransport,
)
from holdfast.checkpoints.images.untrusted import UnreadableJson, decode_json
from holdfast.checkpoints.images.upload import BlobUpload

_DOCKER = "application/vnd.docker.distribution.manifest"
ACCEPT = f"{MANIFEST_TYPE}, application/vnd.oci.image.index.v1+json, {_DOCKER}.v2+json, {_DOCKER}.list.v2+json"
TAGS_PER_PAGE = 1000
MAX_TAGS = 200_000
MAX_PAGE = 16 << 20


class _TagList(msgspec.Struct, frozen=True):
    tags: tuple[str, ...] | None = None


class PushedImage(NamedTuple):
    """`reference` has the tag; a pod that is restored names `reference.by_digest(digest)`."""

    reference: ImageReference
    digest: str
    layer: Descriptor


class RegistryClient:
    """One registry with one credential until a deadline, which is a time of `clock`. Used inside `async with`."""

    def __init__(
        self,
        address: RegistryAddress,
        credential: RegistryCredential | None = None,
        *,
        deadline_s: float,
        plain_http: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        idle_s: float = 60.0,
    ) -> None:
        timing = RetryTiming(deadline_s, clock, sleep, chance, idle_s)
        self.address = address
        self._transport = RegistryTransport(address, credential or RegistryCredential(), plain_http, timing)

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def has_blob(self, repository: str, digest: str) -> bool:
        what = f"look for a blob in {self._named(repository)}"
        response, _ = await self._transport.answer(
            RegistryRequest(
                "HEAD", self._url(repository, "blobs", digest), what, _pull(repository), (200, 404), is_blob=True
            ),
            MAX_ERROR,
        )
        return response.status == 200

    async def mount_blob(self, repository: str, digest: str, source: str) -> bool:
        """Have the registry take a blob from another of its repositories; False if it does not."""
        query = urlencode({"mount": digest, "from": source})
        url = f"{self._url(repository, 'blobs', 'uploads')}/?{query}"
        scope = f"{_push(repository)} {_pull(source)}"
        what = f"mount a blob of {source} into {self._named(repository)}"
        response, _ = await self._transport.answer(RegistryRequest("POST", url, what, scope, (201, 202)), MAX_ERROR)
        if response.status == 201:
            return True
        # The registry has begun an upload instead.
        if location := response.headers.get("Location"):
            place = self._transport.resolve(url, location)
            await self._transport.answer(
                RegistryRequest("DELETE", place, what, scope, (202, 204, 400, 404, 405), is_blob=True), MAX_ERROR
            )
        return False

    async def push_blob(self, repository: str, blob: Blob, digest: str = "") -> str:
        """The digest, when the registry has the blob. With a digest given, what is there already is not sent."""
        checked_repository(repository)
        if digest and await self.has_blob(repository, digest):
            return digest
        upload = BlobUpload(self._transport, repository, _push(repository), blob)
        try:
            found = await self._transport.persist(upload.what, upload.attempt)
        except BaseException:
            await upload.abandon()
            raise
        finally:
            upload.close()
        if digest and found != digest:
            raise DigestMismatch(f"can't {upload.what}: the content should be {digest}, and is {found}: it has changed")
        return found

    async def put_manifest(self, repository: str, content: bytes, reference: str) -> None:
        """By digest or by tag. All blobs that it names must be there."""
        what = f"put the manifest {reference} into {self._named(repository)}"
        request = RegistryRequest(
            "PUT",
            self._url(repository, "manifests", reference),
            what,
            _push(repository),
            (200, 201, 202),
            headers={"Content-Type": MANIFEST_TYPE},
            body=_SmallBody(content),
        )
        response, _ = await self._transport.answer(request, MAX_ERROR)
        found = response.headers.get("Docker-Content-Digest")
        if found is not None and found != sha256_digest(content):
            raise DigestMismatch(f"can't {what}: {self.address.host} took it as {found}, not {sha256_digest(content)}")

    async def manifest(self, repository: str, reference: str) -> bytes:
        """By digest or by tag; by digest it is verified."""
        what = f"get the manifest {reference} of {self._named(repository)}"
        _, content = await self._transport.answer(
            self._manifest_request("GET", repository, reference, what), MAX_MANIFEST
        )
        if DIGEST.fullmatch(reference) and sha256_digest(content) != reference:
            raise DigestMismatch(f"can't {what}: its content has the digest {sha256_digest(content)}")
        return content

    async def resolve_tag(self, repository: str, tag: str) -> str | None:
        """The digest that a tag names now; None if there is no such tag."""
        what = f"look for the tag {tag} in {self._named(repository)}"
        request = self._manifest_request("HEAD", repository, tag, what)._replace(accepts=(200, 404))
        response, _ = await self._transport.answer(request, MAX_ERROR)
        if response.status == 404:
            return None
        digest = response.headers.get("Docker-Content-Digest", "")
        return digest if DIGEST.fullmatch(digest) else sha256_digest(await self.manifest(repository, tag))

    async def blob(self, repository: str, blob: Descriptor) -> AsyncIterator[bytes]:
        """The content in pieces. Size and digest are verified at the end: what came before must not be used until then.

        After a broken connection the download goes on from where it broke.
        """
        what = f"get {blob.size} bytes from {self._named(repository)}"
        digest, done = hashlib.sha256(), 0
        pauses = RetryPauses(self._transport.timing, what, self.address.host)
        while done < blob.size:
            began_at = done
            response = await self._transport.persist(what, partial(self._open_blob, repository, blob, what, done))
            async with response:
                skip = done if response.status == 200 else 0
                try:
                    async for chunk in self._transport.read(response, what):
                        fresh = chunk[skip:]
                        skip = max(0, skip - len(chunk))
                        done += len(fresh)
                        if done > blob.size:
                            raise DigestMismatch(f"can't {what}: there are more: it was changed in the registry")
                        digest.update(fresh)
                        if fresh:
                            yield fresh
                except TemporaryFailure as failure:
                    failure.progressed = done > began_at
                    await self._transport.timing.sleep(pauses.after(failure))
                    continue
            if done < blob.size:
                raise DigestMismatch(f"can't {what}: there are {done}: it is truncated in the registry")
        if f"sha256:{digest.hexdigest()}" != blob.digest:
            raise DigestMismatch(f"can't {what}: their digest is not {blob.digest}: they were changed in the registry")

    async def tags(self, repository: str) -> list[str]:
        """All tags, from as many pages as there are; none if the repository does not exist."""
        what = f"list the tags of {self._named(repository)}"
        url: str | None = f"{self._url(repository, 'tags', 'list')}?n={TAGS_PER_PAGE}"
        found: dict[str, None] = {}
        while url is not None:
            request = RegistryRequest("GET", url, what, _pull(repository), (200, 404))
            response, content = await self._transport.answer(request, MAX_PAGE)
            if response.status == 404:
                break
            before = len(found)
            try:
                found.update(dict.fromkeys(decode_json(content, _TagList).tags or ()))
            except UnreadableJson as error:
                raise RegistryError(f"can't {what}: the answer can't be read: {error}") from None
            target = _link_target(response.headers.getall("Link", []))
            # A registry that names the same page again and again would never come to an end.
            if target is None or len(found) == before or len(found) > MAX_TAGS:
                break
            url = self._transport.joined(url, target, what)
            if not self._transport.is_own(url):
                raise RegistryError(f"can't {what}: the next page is on another host")
        return list(found)

    async def delete(self, repository: str, digest: str) -> None:
        """Delete an image with all its tags; one that is gone already is no error. May raise DeletionUnsupported."""
        what = f"delete {digest} from {self._named(repository)}"
        url = self._url(repository, "manifests", digest)
        scope = f"repository:{repository}:delete,pull,push"
        await self._transport.answer(RegistryRequest("DELETE", url, what, scope, (200, 202, 204, 404)), MAX_ERROR)

    async def _open_blob(self, repository: str, blob: Descriptor, what: str, offset: int) -> ClientResponse:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        url = self._url(repository, "blobs", blob.digest)
        return await self._transport.send(
            RegistryRequest(
                "GET", url, what, _pull(repository), (200, 206), headers=headers, is_blob=True, missing=ImageNotFound
            )
        )

    def _manifest_request(self, method: str, repository: str, reference: str, what: str) -> RegistryRequest:
        url = self._url(repository, "manifests", reference)
        return RegistryRequest(
            method, url, what, _pull(repository), (200,), headers={"Accept": ACCEPT}, missing=ImageNotFound
        )

    def _url(self, repository: str, *rest: str) -> str:
        return "/".join((self.address.origin, "v2", checked_repository(repository), *rest))

    def _named(self, repository: str) -> str:
        return f"{self.address.host}/{repository}"


async def push_image(
    registry: RegistryClient,
    repository: str,
    tag: str,
    facts: ImageFacts,
    blob: Blob,
    *,
    media_type: str = LAYER_TYPE,
    diff_id: str = "",
) -> PushedImage:
    """Layer, config, the manifest by its digest, and last the tag: no tag ever names half an image.

    diff_id: of a compressed layer, the digest of what it was before.
    """
    digest = await registry.push_blob(repository, blob)
    layer = Descriptor(media_type=media_type, digest=digest, size=blob.size)
    image = build_image(facts, layer, diff_id or digest)
    await registry.push_blob(repository, BytesBlob(image.config), sha256_digest(image.config))
    await registry.put_manifest(repository, image.manifest, image.digest)
    await registry.put_manifest(repository, image.manifest, tag)
    reference = ImageReference(host=registry.address.host, repository=repository, tag=tag)
    return PushedImage(reference, image.digest, layer)


class _SmallBody:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    async def chunks(self, alive: Callable[[], None]) -> AsyncIterator[bytes | memoryview]:
        yield self._content


def _pull(repository: str) -> str:
    return f"repository:{repository}:pull"


def _push(repository: str) -> str:
    return f"repository:{repository}:pull,push"


def _link_target(headers: Iterable[str], relation: str = "next") -> str | None:
    """The target of a Link header, as lists with several pages have it."""
    for header in headers:
        if found := re.search(rf'<([^>]*)>\s*;[^,<]*\brel="?{relation}"?', header):
            return found[1]
    return None
