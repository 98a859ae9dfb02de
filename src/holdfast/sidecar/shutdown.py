"""How a training comes to its end: it is asked to save, and waited for, before the kubelet stops it."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import structlog

from holdfast.api.reports import ReportReply, TerminationReport
from holdfast.sidecar import persister
from holdfast.sidecar.http import AttemptState
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.reporter import Reporter
from holdfast.sidecar.settings import KUBELET_LOG, Settings

# How long the operator is asked, before a stop, whether the attempt counts at all.
ASK_S = 2.0
# A training that is to end has this long to save.
FINAL_SAVE_S = 60.0
# Of the grace period: for what comes after the last upload.
END_S = 2.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ShutdownCoordinator:
    """`keeping` and `reporting` come when there are any."""

    def __init__(self, settings: Settings, standing: AttemptState) -> None:
        self._settings = settings
        self._standing = standing
        self.keeping: CheckpointPersister | None = None
        self.reporting: Reporter | None = None
        self._asked: asyncio.Task[str] | None = None
        self._asked_s: float | None = None
        self._ending: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[str] | None = None
        self._told = ""

    async def pre_stop(self) -> str:
        """The pod is about to end: what the preStop of the training waits for. Who asks meanwhile gets the same."""
        if self._asked is None or self._asked.done():
            self._asked_s = asyncio.get_running_loop().time()
            self._asked = asyncio.create_task(self._save_before_stop())
        return await asyncio.shield(self._asked)

    def on_reply(self, answer: ReportReply) -> None:
        """What the operator knows and wants."""
        self._standing.trainer_succeeded = answer.ended_well
        if answer.attempt_over and not answer.is_graceful and not self._standing.is_over:
            self._standing.is_over = True
            log.warning("this attempt is over: the training is to be stopped", current=answer.attempt)
        if answer.stop and not self._standing.stop:
            self._standing.stop = answer.stop
            log.info("the training is to save and end", reason=answer.stop)
            self._ending = asyncio.create_task(self._end(answer.stop))
        elif answer.save and answer.save != self._told and not self.is_saving:
            self._told = answer.save
            self._saving = asyncio.create_task(self._ask_to_save(answer.save, FINAL_SAVE_S))

    @property
    def is_saving(self) -> bool:
        """A save is waited for already."""
        tasks = (self._asked, self._ending, self._saving)
        return any(task is not None and not task.done() for task in tasks)

    @property
    def is_pod_terminating(self) -> bool:
        """The pod was told to go."""
        return self._asked_s is not None

    def trainer_saves_on_notice(self) -> bool:
        """Whether asking the training to save is of any use."""
        file = self._settings.notice_file
        return file is not None and self.keeping is not None and persister.trainer_saves_on_notice(file)

    def left_s(self) -> float:
        """Of the grace period, which began with the preStop."""
        gone_s = asyncio.get_running_loop().time() - self._asked_s if self._asked_s is not None else 0.0
        return max(END_S, self._settings.grace_s - gone_s - END_S)

    async def _end(self, reason: str) -> None:
        await self._ask_to_save(f"the training is to end: {reason}", FINAL_SAVE_S)
        self._standing.is_saved = True

    async def _save_before_stop(self) -> str:
        if self.reporting is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await self.reporting.send()
        if not self._standing.is_live:
            return "the training need not save"
        if self._ending is not None:
            await self._ending
            return "the training was to end"
        return await self._ask_to_save("the pod is about to end", persister.save_timeout_s(self._settings.grace_s))

    async def _ask_to_save(self, reason: str, patience_s: float) -> str:
        file, keeping = self._settings.notice_file, self.keeping
        if file is None or keeping is None:
            return "no checkpoints are kept"
        try:
            if not persister.trainer_saves_on_notice(file):
                persister.write_notice(file, reason)  # it may look there all the same
                return "the training does not heed notices"
            name = await keeping.request_save(
                lambda: persister.write_notice(file, reason), patience_s, lambda: self._standing.is_over
            )
        except OSError as error:
            log.warning("the training can't be asked to save", file=str(file), reason=error.strerror)
            return "the training can't be asked to save"
        said = f"saved {name}" if name is not None else "no checkpoint came"
        log.info("asked the training to save", why=reason, outcome=said)
        return said


# What a sidecar leaves in its termination message: it is in the pod's status, and survives a lost connection.

# The kubelet keeps no more.
MOST_BYTES = 4096


def write_termination_report(file: Path, word: TerminationReport) -> None:
    content = msgspec.json.encode(word)
    if len(content) > MOST_BYTES and word.progress is not None:
        content = msgspec.json.encode(msgspec.structs.replace(word, progress=None))
    _write(file, content)


def write_failure_reason(file: Path, reason: str) -> None:
    """Why the training can't start; the job's status shows it."""
    if file != Path(KUBELET_LOG) or file.exists():  # elsewhere than in a pod nobody would read it
        _write(file, reason.encode())


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content[:MOST_BYTES])
    except OSError as error:
        log.warning("can't leave a termination message", file=str(file), reason=error.strerror)
