"""Plain requests to the API server, as its administrator.

The tests' own hands on the cluster: they share nothing with the client under test.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import msgspec

JSON: TypeAlias = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
LONGEST_LINE = 2**20
# The server has done nothing: it is busy, or has just learnt of a kind.
TOO_MANY = 429
TRIES = 60


class Refused(Exception):
    """The API server's answer was an error."""

    def __init__(self, method: str, path: str, code: int, message: str) -> None:
        super().__init__(f"{method} {path}: {code} {message}")
        self.code = code


class Session:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def request(
        self,
        method: str,
        path: str,
        body: JSON | None = None,
        *,
        content_type: str = "application/json",
        **query: str,
    ) -> JSON:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content_type}
        patience = TRIES
        while True:
            async with self._http.request(method, path, data=data, headers=headers, params=query) as response:
                answer: JSON = msgspec.json.decode(await response.read(), type=dict[str, Any])
            if response.status < 400:
                return answer
            patience -= 1
            if response.status != TOO_MANY or not patience:
                raise Refused(method, path, response.status, str(answer.get("message")))
            await asyncio.sleep(1.0)

    async def watch(self, path: str, since: str) -> AsyncIterator[bytes]:
        """What changed after version `since`, a line each, until the server ends the watch."""
        query = {"watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true"}
        endless = aiohttp.ClientTimeout(total=None)
        async with self._http.get(path, params=query, timeout=endless, read_bufsize=LONGEST_LINE) as response:
            async for line in response.content:
                yield line


class Api:
    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self._url = url
        self._ca_file = ca_file
        self._token = token

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Several requests over the same connections."""
        trust = ssl.create_default_context(cafile=self._ca_file)
        connector = aiohttp.TCPConnector(ssl=trust, limit=20)
        headers = {"Authorization": f"Bearer {self._token}"}
        async with aiohttp.ClientSession(self._url, connector=connector, headers=headers) as http:
            yield Session(http)

    async def request(self, method: str, path: str, body: JSON | None = None, **query: str) -> JSON:
        """One request over a connection of its own."""
        async with self.session() as session:
            return await session.request(method, path, body, **query)
