"""Since when the operator has been able to hear: only from then on does a worker's silence mean anything."""

import asyncio
from collections.abc import Callable

from holdfast.api.meta import Key

CHECK_S = 1.0
# A loop that comes back so late was stopped, asleep or swamped, and reports may have been lost meanwhile.
LATE_S = 5.0


class ReceiverUptime:
    """`clock` also counts while the machine sleeps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._jobs: dict[Key, float] = {}

    def since_s(self, job: Key) -> float:
        return max(self._since_s, self._jobs.get(job, 0.0))

    def reset(self, job: Key | None = None) -> None:
        """A report could not be taken, for a reason that is ours or the cluster's.

        Without a job everybody is excused: nothing that a stranger sends may lead to that.
        """
        if job is not None:
            self._jobs[job] = self._clock()
        else:
            self._since_s = self._clock()

    def forget(self, job: Key) -> None:
        """The job has ended, or is gone."""
        self._jobs.pop(job, None)

    async def run(self) -> None:
        """Notices when this process itself stood still."""
        while True:
            before_s = self._clock()
            await asyncio.sleep(CHECK_S)
            if self._clock() - before_s > CHECK_S + LATE_S:
                self.reset()
