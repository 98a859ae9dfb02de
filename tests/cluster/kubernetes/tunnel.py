"""A proxy that tunnels, and remembers to where."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .listening import listening


class Tunnel:
    """Answers CONNECT with `code`; with 200 it passes everything on."""

    def __init__(self, code: int = 200) -> None:
        self.code = code
        self.heads: list[str] = []
        self.address = ""

    @property
    def targets(self) -> list[str]:
        return [head.split(" ")[1] for head in self.heads]

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        async with listening(self._serve, tls=tls) as self.address:
            yield f"{'https' if tls else 'http'}://{self.address}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(f"HTTP/1.1 {self.code} Whatever\r\n\r\n".encode())
        await writer.drain()
        if self.code == 200:
            await _tunnel(head.split(" ")[1], reader, writer)


async def _tunnel(target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    host, _, port = target.rpartition(":")
    far_reader, far_writer = await asyncio.open_connection(host, int(port))
    try:
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
    finally:
        far_writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
