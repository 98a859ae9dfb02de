"""What a training says about its progress without asking anybody: in PROGRESS_FILE, or as Prometheus metrics."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import aiohttp
import structlog

from holdfast.reports.wire import Progress
from holdfast.sidecar import metrics
from holdfast.sidecar.tail import Tail
from holdfast.sidecar.told import InvalidProgress
from holdfast.sidecar.users import is_own_server

FILE_POLL_S = 0.5
SCRAPE_S = 5.0
WITHIN_S = 4.0
LARGEST_PAGE = 4 << 20

Tell: TypeAlias = Callable[[Progress], None]
log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ProgressFileReader:
    """Of a file with progress, such as PROGRESS_FILE. What can't be used is counted, and told once.

    While it `is_full`, what hears of them, they are left in the file.
    """

    def __init__(
        self,
        file: Path,
        tell: Tell,
        parse: Callable[[bytes], Progress],
        *,
        is_full: Callable[[], bool],
    ) -> None:
        self._file = file
        self._tail = Tail(file)
        self._tell = tell
        self._parse = parse
        self._is_full = is_full
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self.rejected_lines = 0

    def wake(self) -> None:
        self._news.set()

    async def run(self) -> None:
        try:
            while True:
                self._news.clear()
                if not self._is_full() and await self.read():
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FILE_POLL_S):
                        await self._news.wait()
        finally:
            self._tail.close()

    async def read(self) -> bool:
        """Whether there was anything."""
        try:
            async with self._turn:
                lines = await asyncio.to_thread(self._tail.lines)
        except OSError as error:
            self._count(1, f"it can't be read: {error.strerror}")
            return False
        if self._tail.too_long:
            self._count(self._tail.too_long, "a line is too long")
            self._tail.too_long = 0
        for line in lines:
            try:
                self._tell(self._parse(line))
            except InvalidProgress as error:
                self._count(1, str(error))
        return bool(lines)

    def _count(self, lines: int, reason: str) -> None:
        if not self.rejected_lines:
            log.warning("a line is not used; this is said once", file=str(self._file), reason=reason)
        self.rejected_lines += lines


class MetricsScraper:
    """The metrics that the training serves, once it does, at the first of the hosts that answers.

    `shared`: the network is that of a machine with other users, whose servers are not asked.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        port: int,
        names: Mapping[str, str],
        tell: Tell,
        wall: Callable[[], float],
        *,
        shared: bool = False,
    ) -> None:
        self._hosts = hosts
        self._port = port
        self._shared = shared
        self._names = names
        self._tell = tell
        self._wall = wall
        self._scraped = metrics.ScrapeState()

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S)) as session:
            while True:
                await self.read(session)
                await asyncio.sleep(SCRAPE_S)

    async def read(self, session: aiohttp.ClientSession) -> None:
        for host in self._hosts:
            if self._shared and not await asyncio.to_thread(is_own_server, host, self._port):
                log.debug("no metrics: another user's server is at the port", host=host, port=self._port)
                continue
            page = await _page(session, f"http://{f'[{host}]' if ':' in host else host}:{self._port}/metrics")
            if page is not None:
                numbers = metrics.read_samples(page.decode(errors="replace"), self._names)
                for entry in self._scraped.new_entries(numbers, self._wall()):
                    self._tell(entry)
                return


async def _page(session: aiohttp.ClientSession, url: str) -> bytes | None:
    try:
        async with session.get(url, allow_redirects=False) as response:
            return await _at_most(response.content, LARGEST_PAGE) if response.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        log.debug("no metrics", url=url, reason=type(error).__name__)
        return None


async def _at_most(content: aiohttp.StreamReader, limit: int) -> bytes | None:
    page = bytearray()
    async for chunk in content.iter_chunked(64 << 10):
        page += chunk
        if len(page) > limit:
            return None
    return bytes(page)
