"""Runs of CheckpointBackups that this sidecar is to carry out: one at a time, and each of them once.

What a run needs, a client of registries above all, is loaded when the first one is wanted: most sidecars never are.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import TypeAlias

import structlog

from holdfast.api.backup_runs import BackupProgress, WantedBackup
from holdfast.api.reports import ReportReply

# An operator that starts anew may ask again for a run that has ended.
MOST_REMEMBERED = 8

Report: TypeAlias = Callable[[BackupProgress], None]
CarryOut: TypeAlias = Callable[[WantedBackup, Report], Coroutine[None, None, None]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BackupRuns:
    """`carry_out` reports how a run ends and raises nothing; `send_now` has the operator told at once."""

    def __init__(self, carry_out: CarryOut, send_now: Callable[[], None]) -> None:
        self._carry_out = carry_out
        self._send_now = send_now
        self._task: asyncio.Task[None] | None = None
        self._wanted: WantedBackup | None = None
        self._ended: OrderedDict[tuple[str, int], BackupProgress] = OrderedDict()
        self.progress: BackupProgress | None = None
        """Of the current or last run; every report repeats it, until the run is no longer wanted."""

    def on_reply(self, reply: ReportReply) -> None:
        """Begin a run that is wanted, and stop one that is not.

        A run that the answer merely does not name goes on: an operator that has just started does not know it yet.
        """
        wanted = reply.backup
        if reply.attempt_over or reply.backup_withdrawn:
            self._stop("it is no longer wanted")
        if wanted is not None and not (self._wanted is not None and self._wanted.is_of == wanted.is_of):
            self._stop("another is wanted")
            self._begin(wanted)
        elif wanted is None and self.progress is not None and self.progress.is_final:
            self._wanted = self.progress = None

    async def finish(self) -> None:
        """Wait for the run that is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def end(self) -> None:
        """Stop what is under way, and wait until it has let go of the registry."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _begin(self, wanted: WantedBackup) -> None:
        self._wanted, self.progress = wanted, self._ended.get(wanted.is_of)
        if self.progress is None:
            log.info("backup begins", backup=f"{wanted.namespace}/{wanted.backup}", run=wanted.run)
            self._task = asyncio.create_task(self._carry_out(wanted, lambda told: self._report(wanted, told)))
        self._send_now()

    def _report(self, wanted: WantedBackup, told: BackupProgress) -> None:
        if told.is_final:
            log.info(
                "backup ends",
                backup=f"{wanted.namespace}/{wanted.backup}",
                run=wanted.run,
                state=told.state,
                image=told.image,
                reason=told.message,
            )
            self._ended[told.is_of] = told
            while len(self._ended) > MOST_REMEMBERED:
                self._ended.popitem(last=False)
        if self._wanted is wanted:
            self.progress = told
            self._send_now()

    def _stop(self, why: str) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            if self._wanted is not None:
                name = f"{self._wanted.namespace}/{self._wanted.backup}"
                log.info("backup stopped", backup=name, run=self._wanted.run, reason=why)
        self._wanted = self.progress = None
