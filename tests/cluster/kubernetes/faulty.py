"""A server that answers as a test says, byte for byte: what a well-behaved one could not be made to do."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from .listening import listening


class Request(NamedTuple):
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    def header(self, name: str) -> str:
        return ", ".join(value for key, value in self.headers if key == name.lower())


Reply: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


class FaultyServer:
    """Gives its `replies` in order, one per request, and remembers the requests."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = deque(replies)
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""

    def then(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    @asynccontextmanager
    async def running(
        self, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> AsyncIterator[str]:
        async with listening(self._serve, tls=tls, host=host, port=port) as address:
            self.url = f"{'https' if tls else 'http'}://{address}"
            yield self.url

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        while True:
            request = await _read_request(reader, connection)
            self.requests.append(request)
            await self.replies.popleft()(writer)
            await writer.drain()


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = int(dict(headers).get("content-length", "0"))
    return Request(method, target, headers, await reader.readexactly(length), connection)


def answer(status: int, body: object = b"", **headers: str) -> Reply:
    """One whole answer; a body that is not bytes is sent as JSON. Retry_After stands for Retry-After."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return raw(_head(status, {"Content-Length": str(len(content)), **_dashed(headers)}) + content)


def raw(content: bytes) -> Reply:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    return reply


def stream(*chunks: bytes, end: bool = True, hold: asyncio.Event | None = None) -> Reply:
    """An answer in chunks. Not to `end` it is to cut the connection; with `hold` that waits for the event."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(_head(200, {"Transfer-Encoding": "chunked"}))
        for chunk in chunks:
            if chunk:
                writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                await writer.drain()
        if hold:
            await hold.wait()
        if end:
            writer.write(b"0\r\n\r\n")
        else:
            writer.close()

    return reply


async def cut(writer: asyncio.StreamWriter) -> None:
    """The request has arrived, and the connection goes without an answer."""
    writer.transport.abort()


async def silence(writer: asyncio.StreamWriter) -> None:
    """Nothing at all, for as long as the server runs."""
    await asyncio.Event().wait()


def status(code: int, reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message, **more}


def _head(code: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
