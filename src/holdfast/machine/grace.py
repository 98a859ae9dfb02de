"""The time that what is to stop is given to do so. It can become shorter while it runs, never longer."""

import asyncio


class GracePeriod:
    def __init__(self) -> None:
        self._deadline: float | None = None
        self._changed = asyncio.Event()

    @property
    def began(self) -> bool:
        return self._deadline is not None

    def begin(self, seconds: float) -> None:
        """Count from now; a period that would end earlier already stays."""
        deadline = asyncio.get_running_loop().time() + seconds
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            self._changed.set()

    async def start(self) -> None:
        """Until it has begun."""
        while not self.began:
            await self._changed.wait()

    async def wait_expired(self) -> None:
        """Until it has begun and is used up."""
        while (left := self.left) is None or left > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    @property
    def left(self) -> float | None:
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()
