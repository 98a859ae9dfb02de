"""A local registry for tests, and clients of it."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from holdfast.checkpoints.images.reference import registry_address
from holdfast.checkpoints.images.registry import RegistryClient
from holdfast.local.registry.server import serve_registry


def client(host: str, *, for_s: float = 60.0) -> RegistryClient:
    return RegistryClient(registry_address(host, (host,)), deadline_s=time.monotonic() + for_s, plain_http=(host,))


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[str, RegistryClient]]:
    """The registry's host, and a client of it."""
    async with serve_registry(folder) as host, client(host) as registry:
        yield host, registry


@asynccontextmanager
async def raw(host: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{host}") as session:
        yield session
