"""The shutdown of a training: it is asked to save, and the sidecar waits for the save, before the kubelet stops it."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import structlog

from holdfast.api.reports import UNUSABLE_IMAGE, NodeNotice, ReportReply, TerminationReport, node_leaves_text
from holdfast.checkpoints.images.errors import UnusableImage
from holdfast.errors import HoldfastError
from holdfast.sidecar import persister
from holdfast.sidecar.http import AttemptState
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.reporter import Reporter
from holdfast.sidecar.settings import KUBELET_LOG, SidecarSettings

# Before a stop, the time to ask the operator whether the attempt still counts.
REPORT_BEFORE_STOP_S = 2.0
# The time that a training has to save before it must stop.
FINAL_SAVE_S = 60.0
# The part of the grace period that is reserved for what follows the last upload.
END_S = 2.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ShutdownCoordinator:
    """`persister` and `reporter` are set once the sidecar has started them; they stay None where it does not."""

    def __init__(self, settings: SidecarSettings, state: AttemptState) -> None:
        self._settings = settings
        self._state = state
        self.persister: CheckpointPersister | None = None
        self.reporter: Reporter | None = None
        self._pre_stop_task: asyncio.Task[str] | None = None
        self._pre_stop_at_s: float | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._save_task: asyncio.Task[str] | None = None
        self._save_requested = ""
        self._node_notice: NodeNotice | None = None

    async def pre_stop(self) -> str:
        """The preStop hook of the training: the pod is about to terminate. Concurrent calls share one result."""
        if self._pre_stop_task is None or self._pre_stop_task.done():
            self._pre_stop_at_s = asyncio.get_running_loop().time()
            self._pre_stop_task = asyncio.create_task(self._save_before_stop())
        return await asyncio.shield(self._pre_stop_task)

    def on_reply(self, reply: ReportReply) -> None:
        """Apply the operator's reply to a report: the state of the attempt, and requests to save or stop."""
        self._state.trainer_succeeded = reply.ended_well
        if reply.attempt_over and not reply.is_graceful and not self._state.is_over:
            self._state.is_over = True
            log.warning("this attempt is over: the training is to be stopped", current=reply.attempt)
        if reply.stop and not self._state.stop:
            self._state.stop = reply.stop
            log.info("the training is to save and end", reason=reply.stop)
            self._stop_task = asyncio.create_task(self._save_and_stop(reply.stop))
        elif reply.save and reply.save != self._save_requested and not self.is_saving:
            self._save_requested = reply.save
            self._save_task = asyncio.create_task(self._request_save(reply.save, FINAL_SAVE_S))

    def on_node_notice(self, notice: NodeNotice) -> str:
        """The cloud takes this node back: the training saves at once, and once for a notice, however it arrives."""
        reason, last_notice = node_leaves_text([notice.node]), self._node_notice
        self._node_notice = notice
        if notice == last_notice or (last_notice is None and reason == self._save_requested):
            return "the training was asked already"
        if self._state.stop or not self._state.is_live:
            return "the training is to end already"
        if self.is_saving:
            return "the training is asked to save already"
        self._save_requested = reason  # the operator's reply to the next report will ask for the same
        self._save_task = asyncio.create_task(self._request_save(reason, FINAL_SAVE_S))
        return "the training is asked to save"

    @property
    def is_saving(self) -> bool:
        """Whether the sidecar waits for a save already."""
        tasks = (self._pre_stop_task, self._stop_task, self._save_task)
        return any(task is not None and not task.done() for task in tasks)

    @property
    def is_pod_terminating(self) -> bool:
        """Whether the preStop hook was called."""
        return self._pre_stop_at_s is not None

    def trainer_saves_on_notice(self) -> bool:
        """Whether the training reacts to a request to save."""
        file = self._settings.notice_file
        return file is not None and self.persister is not None and persister.trainer_saves_on_notice(file)

    def left_s(self) -> float:
        """The rest of the grace period, which began with the preStop hook."""
        elapsed_s = asyncio.get_running_loop().time() - self._pre_stop_at_s if self._pre_stop_at_s is not None else 0.0
        return max(END_S, self._settings.grace_s - elapsed_s - END_S)

    async def _save_and_stop(self, reason: str) -> None:
        await self._request_save(f"the training is to end: {reason}", FINAL_SAVE_S)
        self._state.is_saved = True

    async def _save_before_stop(self) -> str:
        if self.reporter is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_BEFORE_STOP_S):
                    await self.reporter.send()
        if not self._state.is_live:
            return "the training need not save"
        if self._stop_task is not None:
            await self._stop_task
            return "the training was to end"
        return await self._request_save("the pod is about to end", persister.save_timeout_s(self._settings.grace_s))

    async def _request_save(self, reason: str, timeout_s: float) -> str:
        file, checkpoint_persister = self._settings.notice_file, self.persister
        if file is None or checkpoint_persister is None:
            return "no checkpoints are kept"
        try:
            if not persister.trainer_saves_on_notice(file):
                persister.write_notice(file, reason)  # the training may check the file without having announced it
                return "the training does not heed notices"
            name = await checkpoint_persister.request_save(
                lambda: persister.write_notice(file, reason), timeout_s, lambda: self._state.is_over
            )
        except OSError as error:
            log.warning("the training can't be asked to save", file=str(file), reason=error.strerror)
            return "the training can't be asked to save"
        outcome = f"saved {name}" if name is not None else "no checkpoint came"
        log.info("asked the training to save", why=reason, outcome=outcome)
        return outcome


# The sidecar's termination message: the pod's status holds it, so it survives a lost connection to the operator.

# The kubelet stores no more.
MOST_BYTES = 4096
MOST_REASON = 1000


def write_termination_report(file: Path, report: TerminationReport) -> None:
    content = msgspec.json.encode(report)
    if len(content) > MOST_BYTES and report.progress is not None:
        content = msgspec.json.encode(msgspec.structs.replace(report, progress=None))
    _write(file, content)


def write_failure_reason(file: Path, error: HoldfastError) -> None:
    """The job's status shows this reason why the training can't start."""
    text = str(error)
    if isinstance(error, UnusableImage):
        text = msgspec.json.encode({"reason": UNUSABLE_IMAGE, "message": text[:MOST_REASON]}).decode()
    if file != Path(KUBELET_LOG) or file.exists():  # outside a pod nobody would read the file
        _write(file, text.encode())


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content[:MOST_BYTES])
    except OSError as error:
        log.warning("can't leave a termination message", file=str(file), reason=error.strerror)
