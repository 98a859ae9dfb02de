"""Since when the operator has been able to hear: only from then on does a worker's silence mean anything."""

import asyncio
from collections.abc import Callable

CHECK_S = 1.0
# A loop that comes back so late was stopped, asleep or swamped, and reports may have been lost meanwhile.
LATE_S = 5.0


class Hearing:
    """`clock` also counts while the machine sleeps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()

    @property
    def since_s(self) -> float:
        return self._since_s

    def interrupted(self) -> None:
        """A report could not be taken, for a reason that is ours or the cluster's."""
        self._since_s = self._clock()

    async def run(self) -> None:
        """Notices when this process itself stood still."""
        while True:
            before_s = self._clock()
            await asyncio.sleep(CHECK_S)
            if self._clock() - before_s > CHECK_S + LATE_S:
                self.interrupted()
