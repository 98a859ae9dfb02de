"""The registry's side of the OCI distribution specification, for programs of this machine's user alone.

It has no TLS and no passwords: it listens on a loopback address, and looks up which user a connection is from.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlencode

import structlog
from aiohttp import web

from holdfast.checkpoints.images.errors import InvalidImageReference
from holdfast.checkpoints.images.image import MANIFEST_TYPE, MAX_MANIFEST
from holdfast.checkpoints.images.reference import DIGEST, TAG, checked_repository
from holdfast.errors import HoldfastError
from holdfast.httpserver import BadBody, Limits, listening, read_body
from holdfast.local.registry.storage import CHUNK, RegistryRefusal, RegistryStorage, StoredManifest
from holdfast.peers import is_own_client

HOST = "127.0.0.1"
PORT_FILE = "port"
TAGS_PER_PAGE = 1000
MANIFEST_WITHIN_S = 60.0
LIMITS = Limits(connections=256)
_CONTENT_RANGE = re.compile(r"(?:bytes )?([0-9]+)-([0-9]+)(?:/.*)?")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class CannotServeRegistry(HoldfastError):
    """The local registry can't be served."""


class RegistryHandler:
    def __init__(self, storage: RegistryStorage) -> None:
        self._storage = storage

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_errors], client_max_size=MAX_MANIFEST)
        route, repository = app.router.add_route, "/v2/{repository:.+}"
        route("GET", "/v2/", self._version)
        route("GET", f"{repository}/tags/list", self._tags)
        route("GET", f"{repository}/manifests/{{reference}}", self._manifest)
        route("HEAD", f"{repository}/manifests/{{reference}}", self._manifest)
        route("PUT", f"{repository}/manifests/{{reference}}", self._put_manifest)
        route("DELETE", f"{repository}/manifests/{{reference}}", self._delete_manifest)
        route("POST", f"{repository}/blobs/uploads/", self._begin_upload)
        route("GET", f"{repository}/blobs/uploads/{{upload}}", self._upload_status)
        route("PATCH", f"{repository}/blobs/uploads/{{upload}}", self._append)
        route("PUT", f"{repository}/blobs/uploads/{{upload}}", self._finish_upload)
        route("DELETE", f"{repository}/blobs/uploads/{{upload}}", self._cancel_upload)
        route("GET", f"{repository}/blobs/{{digest}}", self._blob)
        route("HEAD", f"{repository}/blobs/{{digest}}", self._blob)
        return app

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async def _tags(self, request: web.Request) -> web.StreamResponse:
        repository = _repository(request)
        after, count = request.query.get("last", ""), request.query.get("n", "")
        limit = min(int(count), TAGS_PER_PAGE) if count.isdecimal() else TAGS_PER_PAGE
        found = [tag for tag in await asyncio.to_thread(self._storage.tags, repository) if tag > after]
        page, headers = found[:limit], {}
        if len(found) > limit and page:
            following = urlencode({"n": limit, "last": page[-1]})
            headers["Link"] = f'</v2/{repository}/tags/list?{following}>; rel="next"'
        return web.json_response({"name": repository, "tags": page}, headers=headers)

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(self._storage.manifest, _repository(request), _reference(request))
        headers = {"Docker-Content-Digest": found.digest, "Content-Type": found.media_type}
        return web.Response(body=found.content, headers=headers)  # for HEAD without the body

    async def _put_manifest(self, request: web.Request) -> web.StreamResponse:
        repository, reference = _repository(request), _reference(request)
        media_type = request.content_type if "Content-Type" in request.headers else MANIFEST_TYPE
        manifest = StoredManifest(media_type=media_type, content=await read_body(request, MANIFEST_WITHIN_S))
        await asyncio.to_thread(self._storage.put_manifest, repository, reference, manifest)
        location = f"/v2/{repository}/manifests/{manifest.digest}"
        return web.Response(status=201, headers={"Location": location, "Docker-Content-Digest": manifest.digest})

    async def _delete_manifest(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self._storage.delete_manifest, _repository(request), _reference(request))
        return web.Response(status=202)

    async def _begin_upload(self, request: web.Request) -> web.StreamResponse:
        repository = _repository(request)
        mounted = request.query.get("mount", "")
        # All repositories share their blobs.
        if DIGEST.fullmatch(mounted) and self._storage.blob(mounted) is not None:
            return _created(repository, mounted)
        upload = await asyncio.to_thread(self._storage.begin_upload)
        if digest := request.query.get("digest"):
            await self._receive(request, upload)
            await asyncio.to_thread(self._storage.finish_upload, upload, _digest(digest))
            return _created(repository, digest)
        return self._accepted(repository, upload, 0)

    async def _upload_status(self, request: web.Request) -> web.StreamResponse:
        upload = request.match_info["upload"]
        size = await asyncio.to_thread(self._storage.upload_size, upload)
        return self._accepted(_repository(request), upload, size, status=204)

    async def _append(self, request: web.Request) -> web.StreamResponse:
        repository, upload = _repository(request), request.match_info["upload"]
        size = await asyncio.to_thread(self._storage.upload_size, upload)
        if given := request.headers.get("Content-Range"):
            found = _CONTENT_RANGE.fullmatch(given)
            if found is None or int(found[1]) != size:
                refusal = self._accepted(repository, upload, size, status=416)
                refusal.force_close()  # the body is not read
                return refusal
        await self._receive(request, upload)
        return self._accepted(repository, upload, await asyncio.to_thread(self._storage.upload_size, upload))

    async def _finish_upload(self, request: web.Request) -> web.StreamResponse:
        repository, upload = _repository(request), request.match_info["upload"]
        digest = _digest(request.query.get("digest", ""))
        await self._receive(request, upload)
        await asyncio.to_thread(self._storage.finish_upload, upload, digest)
        return _created(repository, digest)

    async def _cancel_upload(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self._storage.cancel_upload, request.match_info["upload"])
        return web.Response(status=204)

    async def _receive(self, request: web.Request, upload: str) -> None:
        """Write the body as it comes: it never sits in memory, and what has come stays when the connection breaks."""
        async for chunk in request.content.iter_chunked(CHUNK):
            await asyncio.to_thread(self._storage.append, upload, chunk)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        digest = _digest(request.match_info["digest"])
        path = await asyncio.to_thread(self._storage.blob, digest)
        if path is None:
            raise RegistryRefusal(404, "BLOB_UNKNOWN", f"there is no blob {digest}")
        headers = {"Docker-Content-Digest": digest, "Content-Type": "application/octet-stream"}
        return web.FileResponse(path, chunk_size=CHUNK, headers=headers)  # with ranges, and without a body for HEAD

    def _accepted(self, repository: str, upload: str, size: int, *, status: int = 202) -> web.Response:
        headers = {
            "Location": f"/v2/{repository}/blobs/uploads/{upload}",
            "Docker-Upload-UUID": upload,
            "Range": f"0-{max(0, size - 1)}",
        }
        return web.Response(status=status, headers=headers)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        await _must_be_own(request)
        return await handler(request)
    except RegistryRefusal as refusal:
        return _refusal(refusal.status, refusal.code, str(refusal))
    except InvalidImageReference as error:
        return _refusal(400, "NAME_INVALID", str(error))
    except BadBody as error:
        return _refusal(error.status, "SIZE_INVALID", str(error))
    except (ConnectionResetError, web.HTTPException):
        raise
    except OSError as error:
        log.warning("the registry can't use its folder", reason=error.strerror)
        return _refusal(507, "UNKNOWN", f"the registry can't write: {error.strerror}")


async def _must_be_own(request: web.Request) -> None:
    transport = request.transport
    client, server = (
        (transport.get_extra_info(name) for name in ("peername", "sockname")) if transport else (None, None)
    )
    if not client or not server:
        raise ConnectionResetError("the client is gone")
    if not await asyncio.to_thread(is_own_client, client[:2], server[:2]):
        raise RegistryRefusal(403, "DENIED", "this registry serves only the user who runs holdfast up")


def _refusal(status: int, code: str, message: str) -> web.Response:
    response = web.json_response({"errors": [{"code": code, "message": message}]}, status=status)
    response.force_close()  # a body may be left unread
    return response


def _created(repository: str, digest: str) -> web.Response:
    headers = {"Location": f"/v2/{repository}/blobs/{digest}", "Docker-Content-Digest": digest}
    return web.Response(status=201, headers=headers)


def _repository(request: web.Request) -> str:
    return checked_repository(request.match_info["repository"])


def _reference(request: web.Request) -> str:
    reference = request.match_info["reference"]
    if not TAG.fullmatch(reference) and not DIGEST.fullmatch(reference):
        raise RegistryRefusal(400, "TAG_INVALID", f"{reference[:150]!a} is neither a tag nor a digest of sha256")
    return reference


def _digest(text: str) -> str:
    if not DIGEST.fullmatch(text):
        raise RegistryRefusal(400, "DIGEST_INVALID", f"{text[:150]!a} is no digest: sha256: and 64 hexadecimal digits")
    return text


@asynccontextmanager
async def serve_registry(folder: Path, *, host: str = HOST, port: int = 0) -> AsyncIterator[str]:
    """Serve inside the block; yields host and port.

    The port of the last time is taken again if it is free: images are known by it.
    """
    storage = await asyncio.to_thread(RegistryStorage, folder)
    await asyncio.to_thread(storage.collect_garbage)
    handler = RegistryHandler(storage)
    async with AsyncExitStack() as stack:
        wanted = (port,) if port else (*_last_port(folder), 0)
        for each in wanted:
            try:
                bound = await stack.enter_async_context(
                    listening(handler.application(), host=host, port=each, limits=LIMITS)
                )
                break
            except OSError as error:
                if each == wanted[-1]:
                    raise CannotServeRegistry(f"can't listen on {host}:{each}: {error.strerror or error}") from None
        if not port:
            (folder / PORT_FILE).write_text(f"{bound}\n")
        yield f"{host}:{bound}"


def _last_port(folder: Path) -> tuple[int, ...]:
    try:
        text = (folder / PORT_FILE).read_text().strip()
    except OSError:
        return ()
    return (int(text),) if text.isdecimal() and 0 < int(text) < 65536 else ()
