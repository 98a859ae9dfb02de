"""Writes the phases of a run into its CheckpointBackup: one patch each, and never one of another run."""

from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec
import structlog

from holdfast.api.checkpointbackup import (
    TERMINAL_PHASES,
    CheckpointBackup,
    CheckpointBackupStatus,
    Phase,
    run_conditions,
)
from holdfast.api.meta import merge_conditions
from holdfast.cluster.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS
from holdfast.decisions import MAX_MESSAGE
from holdfast.errors import HoldfastError
from holdfast.runtime.process import Now
from holdfast.times import format_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

PHASES: tuple[Phase, ...] = get_args(Phase)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0


class RunSuperseded(HoldfastError):
    """The backup is gone, or this run is no longer under way: another process has ended it."""


class StatusNotWritten(HoldfastError):
    """The API server did not take the status in time."""


def status_of(backup: CheckpointBackup) -> CheckpointBackupStatus:
    return backup.status or CheckpointBackupStatus()


def is_under_way(backup: CheckpointBackup | None, uid: str, run: int) -> bool:
    if backup is None or backup.metadata.uid != uid or backup.metadata.deletion_timestamp:
        return False
    status = status_of(backup)
    return status.run == run and status.phase not in TERMINAL_PHASES


class RunStatusWriter:
    """left_s: how long writes may be tried again."""

    def __init__(
        self,
        cluster: Cluster,
        backup: CheckpointBackup,
        *,
        now: Now,
        sleep: Callable[[float], Awaitable[object]],
        left_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self.backup = backup
        self._uid = backup.metadata.uid
        self._run = status_of(backup).run
        self._now = now
        self._sleep = sleep
        self._left_s = left_s

    @property
    def phase(self) -> Phase | None:
        return status_of(self.backup).phase

    def has_reached(self, phase: Phase) -> bool:
        return self.phase is not None and PHASES.index(self.phase) >= PHASES.index(phase)

    async def write(self, phase: Phase, *, reason: str, message: str, **fields: Any) -> None:
        """fields: of the status, in camelCase; None removes one."""
        pause_s, is_stale = FIRST_PAUSE_S, False
        while True:
            try:
                if is_stale and await self._was_written(phase):
                    return
                self.backup = await self._patch(phase, reason, message, fields)
                return
            except Conflict:
                is_stale = True
                continue
            except NotFound:
                raise RunSuperseded("the CheckpointBackup was deleted") from None
            except (Invalid, Forbidden) as error:
                raise StatusNotWritten(f"the API server refuses the status: {error}") from None
            except ClusterError as error:
                log.warning("status not written yet", key=str(self.backup.metadata.key), phase=phase, error=str(error))
                if self._left_s() < pause_s:
                    raise StatusNotWritten(f"the API server did not take the status: {error}") from None
            is_stale = True  # the answer may have been lost
            await self._sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _patch(self, phase: Phase, reason: str, message: str, fields: dict[str, Any]) -> CheckpointBackup:
        metadata, message = self.backup.metadata, message[:MAX_MESSAGE]
        conditions = merge_conditions(
            status_of(self.backup).conditions,
            run_conditions(
                phase, reason=reason, message=message, generation=metadata.generation, at=format_time(self._now())
            ),
        )
        body = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "status": {
                "phase": phase,
                "message": message,
                "conditions": msgspec.to_builtins(conditions),
                **fields,
            },
        }
        return await self._cluster.patch_status(CHECKPOINT_BACKUPS, metadata.key, body)

    async def _was_written(self, phase: Phase) -> bool:
        """Another one has changed the object, or an answer was lost: whether the run goes on is to be seen from it."""
        self.backup = await self._cluster.get(CHECKPOINT_BACKUPS, self.backup.metadata.key)
        is_same_run = self.backup.metadata.uid == self._uid and status_of(self.backup).run == self._run
        if is_same_run and self.phase == phase:
            return True
        if not is_under_way(self.backup, self._uid, self._run):
            raise RunSuperseded("the run was ended by another")
        return False
