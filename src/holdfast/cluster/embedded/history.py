"""What happened lately to each kind, for any number of watchers to read at their own pace.

Watchers share one window of writes for each kind instead of a buffer each. One that falls behind the window is cut
off; it then learns from `Expired` that it has to list again.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable

from holdfast.cluster.embedded.stored import StoredWrite
from holdfast.cluster.errors import Expired


class _Log:
    """The window of one kind. Positions count all writes that ever were, so that a reader's stays good."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.first = 0
        self.writes: deque[StoredWrite] = deque()
        self.grown = asyncio.Event()

    @property
    def end(self) -> int:
        return self.first + len(self.writes)

    def position_after(self, version: int) -> int:
        position = self.end
        for write in reversed(self.writes):
            if write.version <= version:
                break
            position -= 1
        return position

    def compact(self, keep: int) -> None:
        while len(self.writes) > keep:
            self.floor = self.writes.popleft().version
            self.first += 1


class WatchCache:
    def __init__(self, version: int, *, window: int, bookmark_s: float) -> None:
        self._window = window
        self._bookmark_s = bookmark_s
        self._logs: dict[str, _Log] = defaultdict(lambda: _Log(version))
        self._closed = False

    def append(self, writes: Iterable[StoredWrite]) -> None:
        for write in writes:
            log = self._logs[write.new.resource]
            log.writes.append(write)
            log.compact(self._window)
            log.grown.set()

    def compact(self, resource: str, version: int) -> None:
        """Versions of the kind before `version` can no longer be watched from."""
        log = self._logs[resource]
        log.compact(0)
        log.floor = version

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for log in self._logs.values():
            log.grown.set()

    async def watch_from(self, resource: str, version: int) -> AsyncGenerator[StoredWrite | None, None]:
        """Every write to the kind after `version`, for ever; None now and then when nothing more has happened."""
        log = self._logs[resource]
        if version < log.floor:
            raise Expired(f"too old resource version: {version} ({log.floor})")
        position = log.position_after(version)
        bookmark_at = self._next_bookmark()
        while not self._closed and position >= log.first:
            if position < log.end:
                write = log.writes[position - log.first]
                position += 1
                if write.version > version:
                    yield write
            elif not await self._grows_before(bookmark_at, log):
                bookmark_at = self._next_bookmark()
                yield None

    def _next_bookmark(self) -> float:
        return asyncio.get_running_loop().time() + self._bookmark_s

    async def _grows_before(self, deadline: float, log: _Log) -> bool:
        log.grown.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await log.grown.wait()
        except TimeoutError:
            return False
        return True
