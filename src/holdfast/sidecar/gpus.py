"""How busy the GPUs are, for a training that does not say so itself: only where this container sees them, too."""

import asyncio

from msgspec import structs

from holdfast.reports.wire import MOST_METRICS, Progress
from holdfast.train.gpus import METRIC, Gpus

LOOK_S = 5.0


class Busy:
    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._percent: float | None = None

    async def run(self) -> None:
        await self.look()
        while self._gpus.is_there:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        self._percent = await asyncio.to_thread(self._gpus.utilization_percent)

    def added(self, entry: Progress) -> Progress:
        """What is not known is left out, and what the training says counts."""
        if self._percent is None or METRIC in entry.metrics or len(entry.metrics) >= MOST_METRICS:
            return entry
        return structs.replace(entry, metrics={**entry.metrics, METRIC: self._percent})
