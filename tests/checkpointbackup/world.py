"""A backup in virtual time: an operator that may forget all it has in memory, and an agent that completes every run.

The operator here is what the controller is: observe, decide, status. Nothing else decides.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from holdfast.api.checkpointbackup import CheckpointBackup, CheckpointBackupStatus
from holdfast.api.meta import Key
from holdfast.checkpointbackup.decision import decide, requeue_in_s
from holdfast.checkpointbackup.observe import Stopwatch, ages
from holdfast.checkpointbackup.snapshot import TIMING, CheckpointBackupSnapshot, is_under_way, status_of
from holdfast.checkpointbackup.status import next_status
from holdfast.times import format_time, parse_time
from tests.checkpointbackup.backups import backup, scheduled, seen

KEY = Key("ml", "save")
RUNNING = seen(backup())
AWAY = seen(backup(), pod=None, details=None)
# How often a backup is looked at though nothing happens.
RESYNC_S = 86400.0


class BackupWorld:
    """`run_s`: how long the agent takes. The clock on the wall may be set; `passed_s` may not."""

    def __init__(self, start: datetime, schedule: str, *, run_s: float = 20.0, **spec: Any) -> None:
        self.wall = start
        self.passed_s = 0.0
        self.run_s = run_s
        it = scheduled(schedule, **spec)
        metadata = structs.replace(it.metadata, creation_timestamp=format_time(start))
        self.backup: CheckpointBackup = structs.replace(it, metadata=metadata)
        self.begun: list[datetime] = []
        """When each run began, by the clock on the wall."""
        self.writes: Counter[str] = Counter()
        self.pod_runs = True
        self._ends_s: float | None = None
        self.restart()

    def restart(self) -> None:
        self.stopwatch = Stopwatch(lambda: self.passed_s)

    @property
    def status(self) -> CheckpointBackupStatus:
        return status_of(self.backup)

    def reconcile(self) -> CheckpointBackupSnapshot:
        observed = structs.replace(RUNNING if self.pod_runs else AWAY, backup=self.backup)
        run_age_s, due_age_s = ages(observed, self.stopwatch, self.wall)
        observed = structs.replace(observed, run_age_s=run_age_s, due_age_s=due_age_s)
        for action in decide(observed, self.wall, TIMING):
            status = next_status(observed, action, self.wall)
            if status != self.backup.status:
                self._write(type(action).__name__, status)
            observed = structs.replace(observed, backup=self.backup)
        self._must_be_true()
        return observed

    def _write(self, action: str, status: CheckpointBackupStatus) -> None:
        self.writes[action] += 1
        if status.run != self.status.run:
            assert status.run == self.status.run + 1
            if status.phase is None:
                self.begun.append(self.wall)
                self._ends_s = self.passed_s + self.run_s
        self.backup = structs.replace(self.backup, status=status)

    def _must_be_true(self) -> None:
        """What status says about the next run: a moment ahead, or one since which it waits for its pod."""
        told = self.status.next_checkpoint_time
        if told is not None and self.pod_runs:
            assert parse_time(told) > self.wall, (told, self.wall)

    def advance(self, until_s: float, *, each: Callable[["BackupWorld"], None] = lambda _: None) -> None:
        """Let so many seconds pass; `each` happens after every step of it."""
        end_s = self.passed_s + until_s
        while self.passed_s < end_s:
            observed = self.reconcile()
            waits = [*requeue_in_s(observed, self.wall, TIMING), RESYNC_S, end_s - self.passed_s]
            if self._ends_s is not None:
                waits.append(self._ends_s - self.passed_s)
            self._pass(max(0.001, min(waits)))
            each(self)

    def _pass(self, seconds: float) -> None:
        self.passed_s += seconds
        self.wall += timedelta(seconds=seconds)
        if self._ends_s is not None and self.passed_s >= self._ends_s and is_under_way(self.backup):
            self._ends_s = None
            self.backup = structs.replace(self.backup, status=structs.replace(self.status, phase="Completed"))
