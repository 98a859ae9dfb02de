"""The agent of one node: it watches the CheckpointBackups with its node's label, and carries out one run at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import NamedTuple

import structlog

from holdfast.api.checkpointbackup import NODE_LABEL, TERMINAL_PHASES, CheckpointBackup
from holdfast.api.meta import Key
from holdfast.checkpoints.errors import CheckpointError
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.resources import CHECKPOINT_BACKUPS
from holdfast.node.journal import RunRecord
from holdfast.node.parts import RunParts, in_thread
from holdfast.node.progress import RunInterrupted
from holdfast.node.run import NodeBackupRun, RunOutcome, remove_record
from holdfast.node.status import RunSuperseded, StatusNotWritten, is_under_way, status_of
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Informers, Store
from holdfast.runtime.metrics import Metrics

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# How long a step may go on after the agent was asked to end; the pod's grace period is longer.
STOP_S = 20.0


class _CurrentRun(NamedTuple):
    key: Key
    uid: str
    number: int
    run: NodeBackupRun
    task: "asyncio.Task[RunOutcome]"

    def is_wanted_as(self, backup: CheckpointBackup | None) -> bool:
        """A run that writes its end itself is not ended by what it wrote."""
        return self.run.is_ending or is_under_way(backup, self.uid, self.number)


class CheckpointAgent:
    """One node's agent. `metrics` is of the process, the parts' own metrics are in its registry."""

    def __init__(self, parts: RunParts, *, metrics: Metrics, random: Random) -> None:
        self._parts = parts
        self._informers = Informers(parts.cluster, (), metrics=metrics, random=random)
        informer = self._informers.of(CHECKPOINT_BACKUPS)
        informer.select(f"{NODE_LABEL}={parts.node}")
        informer.handlers.append(self._changed)
        self._store: Store[CheckpointBackup] = informer.store
        self.recorder = Recorder(
            parts.cluster, instance=f"holdfast-node-{parts.node}", now=parts.clocks.now, metrics=metrics
        )
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._records: dict[tuple[str, int], RunRecord] = {}
        self._ended: dict[str, int] = {}
        self._begun: dict[str, tuple[int, float]] = {}
        """By uid, the last run that was seen to begin, and when: clocks of nodes differ."""
        self._current: _CurrentRun | None = None

    def stop(self) -> None:
        """End the present step, and leave the rest to the next process."""
        self._stop.set()
        self._wake.set()

    def unready_reasons(self) -> list[str]:
        return ["stopping"] if self._stop.is_set() else self._informers.unready_reasons()

    async def run(self) -> None:
        """Work until `stop`."""
        self._records = {(each.uid, each.run): each for each in await in_thread(self._parts.journal.open)}
        await self._informers.sync()
        await self._remove_old_records()
        async with self._in_background():
            while not self._stop.is_set():
                self._wake.clear()
                backup = self._next()
                if backup is None:
                    await self._wake.wait()
                else:
                    await self._carry_out(backup)

    @contextlib.asynccontextmanager
    async def _in_background(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._informers.run(), name="watches")
        writing = asyncio.create_task(self.recorder.run(), name="events")
        watching.add_done_callback(lambda _: self.stop())
        try:
            yield
        finally:
            self.recorder.stop()
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await writing

    async def _remove_old_records(self) -> None:
        """Of runs that are over, or whose backup is gone: their files, and nothing else."""
        for record in list(self._records.values()):
            backup = self._store.get(record.key)
            if not is_under_way(backup, record.uid, record.run) or (backup and not self._is_ours(backup)):
                await self._forget(record)
            else:
                # A call of the process before may be a moment ago.
                for container in record.containers:
                    self._parts.call_times.called(record.pod_uid, container.name, self._parts.clocks.clock())

    async def _forget(self, record: RunRecord) -> None:
        """What can't be removed is left to the next start: it must not keep the node's other runs waiting."""
        self._records.pop((record.uid, record.run), None)
        try:
            await remove_record(self._parts, record)
        except CheckpointError as error:
            log.warning("files of an old run not removed", key=str(record.key), run=record.run, error=str(error))
        else:
            log.info("files of an old run removed", key=str(record.key), run=record.run)

    def _is_ours(self, backup: CheckpointBackup) -> bool:
        status = status_of(backup)
        return (
            status.node_name == self._parts.node
            and status.mode == "container"
            and status.run > self._ended.get(backup.metadata.uid, 0)
            and status.phase not in TERMINAL_PHASES
            and not backup.metadata.deletion_timestamp
            # The operator deletes the pod and writes the last phase.
            and not (status.phase == "ImagePushed" and backup.spec.stop_pod)
        )

    def _next(self) -> CheckpointBackup | None:
        """The run that has waited longest."""
        waiting = [backup for backup in self._store if self._is_ours(backup)]
        return min(waiting, key=lambda each: (status_of(each).start_time or "", each.metadata.key), default=None)

    def _changed(self, old: CheckpointBackup | None, new: CheckpointBackup | None) -> None:
        seen, current = new or old, self._current
        is_current = current is not None and seen is not None and seen.metadata.key == current.key
        # Once: it may be waiting for the kubelet's answer.
        if current and is_current and not current.is_wanted_as(new) and not current.task.cancelling():
            current.task.cancel()
        if new is None and old is not None:
            self._ended.pop(old.metadata.uid, None)
            self._begun.pop(old.metadata.uid, None)
        if new is not None and old is not None and status_of(old).run < status_of(new).run:
            self._begun[new.metadata.uid] = (status_of(new).run, self._parts.clocks.clock())
        self._wake.set()

    async def _carry_out(self, backup: CheckpointBackup) -> None:
        uid, run, key = backup.metadata.uid, status_of(backup).run, backup.metadata.key
        begun, seen_s = self._begun.get(uid, (0, 0.0))
        one = NodeBackupRun(
            self._parts,
            backup,
            earlier=self._records.get((uid, run)),
            is_stopping=self._stop.is_set,
            seen_s=seen_s if begun == run else None,
        )
        log.info("run begins", key=str(key), run=run, pod=backup.spec.pod_ref.name)
        self._parts.metrics.running(True)
        task = asyncio.create_task(one.execute(), name=f"run {run} of {key}")
        self._current = _CurrentRun(key, uid, run, one, task)
        try:
            await self._until_ended(task)
            await self._conclude(one, task)
        finally:
            self._current = None
            self._parts.metrics.running(False)
        if not self._stop.is_set():
            self._ended[uid] = run
            self._records.pop((uid, run), None)

    async def _until_ended(self, task: "asyncio.Task[RunOutcome]") -> None:
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                _, late = await asyncio.wait([task], timeout=STOP_S)
                if late:
                    task.cancel()
                    await asyncio.wait([task])
        finally:
            stopping.cancel()

    async def _conclude(self, one: NodeBackupRun, task: "asyncio.Task[RunOutcome]") -> None:
        key, run = str(one.backup.metadata.key), status_of(one.backup).run
        try:
            outcome = task.result()
        except RunInterrupted:
            log.info("run left to the next agent", key=key, run=run)
        except asyncio.CancelledError:
            if self._stop.is_set():
                log.info("run left to the next agent", key=key, run=run)
                return
            log.info("run given up: it is no longer wanted", key=key, run=run)
            await self._give_up(one, "RunSuperseded")
        except (RunSuperseded, StatusNotWritten, ClusterError) as error:
            log.warning("run given up", key=key, run=run, error=str(error))
            await self._give_up(one, type(error).__name__)
        except Exception:
            # One run must not end the agent, which would take it up again and again.
            log.exception("run given up", key=key, run=run)
            await self._give_up(one, "InternalError")
        else:
            self._report_outcome(one.backup, run, outcome)

    async def _give_up(self, one: NodeBackupRun, result: str) -> None:
        """What can't be removed now is removed by the next process: the journal still names it."""
        self._parts.metrics.run_ended(result)
        try:
            await one.discard()
        except CheckpointError as error:
            log.warning("files not removed", key=str(one.backup.metadata.key), error=str(error))

    def _report_outcome(self, backup: CheckpointBackup, run: int, outcome: RunOutcome) -> None:
        is_good = outcome.phase in ("Completed", "ImagePushed")
        log.info("run ended", key=str(backup.metadata.key), run=run, phase=outcome.phase, reason=outcome.reason)
        self._parts.metrics.run_ended(outcome.phase if is_good else outcome.reason)
        record = self.recorder.normal if is_good else self.recorder.warning
        record(CHECKPOINT_BACKUPS, backup, outcome.phase, f"run {run}: {outcome.message}")
