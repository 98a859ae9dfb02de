"""How busy the worker's GPUs are: as its training reports it, else as NVML shows them to this container."""

import asyncio

from holdfast.reports.wire import Progress
from holdfast.train.gpus import METRIC, Gpus

GPU_POLL_S = 5.0


class GpuUtilization:
    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._seen: float | None = None
        self._reported: float | None = None

    @property
    def percent(self) -> float | None:
        """None while it is unknown. The training knows which GPUs are its own: its value counts where there is one."""
        return self._seen if self._reported is None else self._reported

    async def run(self) -> None:
        await self.look()
        while self._gpus.is_there:
            await asyncio.sleep(GPU_POLL_S)
            await self.look()

    async def look(self) -> None:
        """NVML only reads counters of the driver: no GPU memory and no CUDA context is allocated."""
        self._seen = await asyncio.to_thread(self._gpus.utilization_percent)

    def reported(self, entry: Progress) -> None:
        percent = entry.metrics.get(METRIC)
        if percent is not None and 0 <= percent <= 100:  # the operator refuses a report with any other
            self._reported = percent
