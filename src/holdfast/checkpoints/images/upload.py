"""The upload of one blob: one POST, one PATCH with the whole stream, one PUT with the digest.

Google's Artifact Registry takes no chunks, so there is one PATCH unless a connection breaks. Then the upload goes on
from the offset that the registry names, or from the beginning where it names none.
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

from holdfast.checkpoints.images.errors import DigestMismatch, ImageNotFound, RegistryError, RepositoryNotFound
from holdfast.checkpoints.images.image import Blob
from holdfast.checkpoints.images.retries import TemporaryFailure
from holdfast.checkpoints.images.transport import RegistryRequest, RegistryTransport

# A registry may copy or verify the whole blob before it answers the PUT.
COMMIT_S = 600.0
ABANDON_S = 5.0
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


class BlobUpload:
    """Sends a blob to a repository and digests it meanwhile, in a thread: each byte once, however often it is sent."""

    def __init__(self, transport: RegistryTransport, repository: str, scope: str, blob: Blob) -> None:
        self._transport = transport
        self._blobs_url = f"{transport.address.origin}/v2/{repository}/blobs"
        self.what = f"push {blob.size} bytes to {transport.address.host}/{repository}"
        self._scope = scope
        self._blob = blob
        self._digest = _RunningDigest()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="blob")
        self._location: str | None = None
        self._offset = 0
        self._began_at = 0
        self._is_broken = False

    @property
    def digest(self) -> str | None:
        """Known when all has been read."""
        return self._digest.value if self._digest.position == self._blob.size else None

    async def attempt(self) -> str:
        """Go on from where the last attempt ended, and return the digest when the registry has the blob."""
        if self._is_broken:
            # The answer to the last PUT may have been lost.
            if self.digest is not None and await self._has(self.digest):
                return self.digest
            await self._find_offset()
        if self._location is None:
            await self._begin()
        has_progressed = self._offset > self._began_at
        self._began_at, self._is_broken = self._offset, True
        try:
            if self._offset < self._blob.size or not self._blob.size:
                await self._send()
            await self._commit()
        except ImageNotFound:
            # The registry has forgotten the upload.
            self._location = None
            raise TemporaryFailure("the registry no longer knows the upload") from None
        except TemporaryFailure as failure:
            failure.progressed = has_progressed
            raise
        return self._digest.value

    async def abandon(self) -> None:
        """Have the registry free what it has of the blob, if it answers soon."""
        if self._location is not None:
            with contextlib.suppress(RegistryError, TemporaryFailure, TimeoutError):
                ask = self._ask("DELETE", self._location, (202, 204, 404))
                ask = ask._replace(idle_s=ABANDON_S, is_cleanup=True)
                async with asyncio.timeout(ABANDON_S), await self._transport.send(ask):
                    pass
            self._location = None

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _has(self, digest: str) -> bool:
        async with await self._transport.send(self._ask("HEAD", f"{self._blobs_url}/{digest}", (200, 404))) as response:
            return response.status == 200

    async def _begin(self) -> None:
        url = f"{self._blobs_url}/uploads/"
        ask = self._ask("POST", url, (202,))._replace(is_blob=False, missing=RepositoryNotFound)
        async with await self._transport.send(ask) as response:
            self._move(url, response.headers.get("Location"))
        self._offset = 0

    async def _find_offset(self) -> None:
        """How much the registry has; where it does not say so, the upload begins anew."""
        if self._location is None:
            return
        ask = self._ask("GET", self._location, (200, 202, 204, 400, 404, 405, 416))
        async with await self._transport.send(ask) as response:
            found = _RANGE.fullmatch(response.headers.get("Range", "")) if response.status < 300 else None
            # A registry says 0-0 of an upload that is empty, too.
            offset = int(found[1]) + 1 if found and found[1] != "0" else 0
            if 0 < offset <= self._digest.position:
                self._move(self._location, response.headers.get("Location", self._location))
                self._offset = offset
                return
        await self.abandon()

    async def _send(self) -> None:
        assert self._location is not None
        body = _BlobBody(self._blob, self._offset, self._digest, self._reader)
        headers = {"Content-Type": "application/octet-stream"}
        if self._offset:
            headers["Content-Range"] = f"{self._offset}-{self._blob.size - 1}"
        ask = self._ask("PATCH", self._location, (201, 202, 204, 416))._replace(headers=headers, body=body)
        try:
            async with await self._transport.send(ask) as response:
                if response.status == 416:
                    await self.abandon()
                    raise TemporaryFailure("the registry does not go on from the offset that it named")
                self._move(self._location, response.headers.get("Location", self._location))
                found = _RANGE.fullmatch(response.headers.get("Range", ""))
        except (TemporaryFailure, RegistryError):
            if body.failure is not None:
                raise body.failure from None
            raise
        if found and int(found[1]) + 1 < self._blob.size:
            raise TemporaryFailure(f"the registry has {int(found[1]) + 1} of {self._blob.size} bytes")
        self._offset = self._blob.size

    async def _commit(self) -> None:
        assert self._location is not None
        assert self.digest is not None, "all was sent, so all was read"
        separator = "&" if "?" in self._location else "?"
        url = f"{self._location}{separator}{urlencode({'digest': self.digest})}"
        ask = self._ask("PUT", url, (201, 202, 204))._replace(idle_s=COMMIT_S)
        async with await self._transport.send(ask) as response:
            found = response.headers.get("Docker-Content-Digest", self.digest)
        if found != self.digest:
            raise DigestMismatch(
                f"can't {self.what}: {self._blob.size} bytes with the digest {self.digest} were sent, and the registry "
                f"has {found}: nothing is tagged"
            )
        self._location = None

    def _ask(self, method: str, url: str, accepts: tuple[int, ...]) -> RegistryRequest:
        return RegistryRequest(method, url, self.what, self._scope, accepts, is_blob=True, missing=ImageNotFound)

    def _move(self, base: str, location: str | None) -> None:
        if not location:
            raise RegistryError(f"can't {self.what}: the registry does not say where the upload goes on")
        self._location = self._transport.resolve(base, location)


class _RunningDigest:
    """The digest of a stream of which parts may come twice."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.position = 0

    @property
    def value(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"

    def update(self, start: int, chunk: bytes | memoryview) -> None:
        end = start + len(chunk)
        if start <= self.position < end:
            self._digest.update(memoryview(chunk)[self.position - start :])
            self.position = end


class _BlobBody:
    """A blob from an offset on. The next chunk is read and digested in a thread while one is sent.

    failure: why the blob can't be read; aiohttp makes a broken connection of it.
    """

    def __init__(self, blob: Blob, offset: int, digest: _RunningDigest, reader: ThreadPoolExecutor) -> None:
        self.size = blob.size - offset
        self.failure: Exception | None = None
        self._blob = blob
        self._offset = offset
        self._digest = digest
        self._reader = reader

    async def chunks(self, alive: Callable[[], None]) -> AsyncIterator[bytes | memoryview]:
        source, at = self._blob.read(self._offset), self._offset

        def following() -> bytes | memoryview | None:
            nonlocal at
            chunk = next(source, None)
            if chunk is not None:
                self._digest.update(at, chunk)
                at += len(chunk)
            return chunk

        pending = self._reader.submit(following)
        try:
            while (chunk := await asyncio.wrap_future(pending)) is not None:
                pending = self._reader.submit(following)
                alive()
                yield chunk
        except Exception as error:
            self.failure = error
            raise
        finally:
            # A generator can't be closed while it runs in the thread.
            pending.add_done_callback(lambda _: _close(source))


def _close(source: Iterator[bytes | memoryview]) -> None:
    close = getattr(source, "close", None)
    if close is not None:
        close()
