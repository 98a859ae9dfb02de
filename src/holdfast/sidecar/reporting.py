"""Tells the operator what is new: every few seconds, at once when an epoch has ended, and half as often that we live.

An operator that can't be reached is never a reason to stop anything: what it missed is told when it is back.
"""

import asyncio
from collections.abc import Callable

import structlog
from msgspec import structs

from holdfast.reports.wire import ReportReply
from holdfast.sidecar.backlog import ReportOutbox
from holdfast.sidecar.operator import OperatorClient, ReportNotDelivered, ReportRejected

# The operator takes about one report a second from each pod.
GAP_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Reporter:
    """`wall` is the clock of the world, in seconds since 1970; `heeds` tells whether the training saves when asked.

    `gpu_percent` is the utilization of the worker's GPUs: every report carries it, and no report is sent for its sake.
    """

    def __init__(
        self,
        backlog: ReportOutbox,
        operator: OperatorClient,
        heard: Callable[[ReportReply], None],
        *,
        every_s: float,
        wall: Callable[[], float],
        heeds: Callable[[], bool] = lambda: False,
        gpu_percent: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._backlog = backlog
        self._operator = operator
        self._heard = heard
        self._every_s = every_s
        self._wall = wall
        self._heeds = heeds
        self._gpu_percent = gpu_percent
        self._urgent = asyncio.Event()
        self._turn = asyncio.Lock()
        self._trouble = ""

    def send_now(self) -> None:
        self._urgent.set()

    async def run(self) -> None:
        while True:
            self._urgent.clear()
            is_heard = await self.send()
            await asyncio.sleep(GAP_S)
            if is_heard and not self._backlog.is_empty:
                continue
            is_urgent = await self._is_urgent_within(max(0.0, self._every_s - GAP_S))
            if not is_urgent and is_heard and self._backlog.is_empty:
                # With nothing new every second turn is enough: the operator misses nobody before three have passed.
                await self._is_urgent_within(self._every_s)

    async def _is_urgent_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._urgent.wait()
        except TimeoutError:
            return False

    async def send(self) -> bool:
        """Whether the operator has heard a batch."""
        async with self._turn:
            clock = asyncio.get_running_loop()
            try:
                batch = self._backlog.batch(clock.time(), self._wall())
                answer = await self._operator.report(
                    structs.replace(batch, saves_on_notice=self._heeds(), gpu_utilization_percent=self._gpu_percent())
                )
            except ReportNotDelivered as error:
                self._say(str(error))
                return False
            except ReportRejected as error:
                self._backlog.drop_rejected()
                self._say(str(error))
                return False
            self._say("")
            self._backlog.acknowledged(answer, clock.time())
            self._heard(answer)
            return True

    def _say(self, trouble: str) -> None:
        """Once for each change: an operator that is away for a day is two lines."""
        if trouble and trouble != self._trouble:
            log.warning("the operator was not told", reason=trouble)
        elif self._trouble and not trouble:
            log.info("the operator hears us again")
        self._trouble = trouble
