"""Work that takes longer than a reconcile may: it runs beside the workers, and its result wakes its object.

Nothing here has to outlive the process: whatever was under way can be begun again, and finds what it has done before.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random

import structlog
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, NotLeading
from holdfast.errors import HoldfastError
from holdfast.machines.joining import JoinProgress
from holdfast.machines.work import Failed, MachineTask, Succeeded, TaskRunning, Value, Work
from holdfast.providers.errors import RateLimited
from holdfast.runtime.informer import Informers
from holdfast.runtime.process import Now
from holdfast.runtime.queue import backoff_s

AT_ONCE = 64
FIRST_RETRY_S, LONGEST_RETRY_S = 2.0, 60.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Background:
    """At most `at_once` tasks of a sort run at the same time; the others wait for their turn."""

    def __init__(self, *, now: Now, random: Random, at_once: int = AT_ONCE) -> None:
        self._now = now
        self._random = random
        self._turns = {task: asyncio.Semaphore(at_once) for task in MachineTask}
        self._work: dict[str, dict[MachineTask, Work]] = {}
        self._running: dict[tuple[str, MachineTask], asyncio.Task[None]] = {}
        self._wake: Callable[[Key], None] = lambda _: None
        self._stopped = False
        self._crashed = asyncio.Event()
        self._crash: NotLeading | None = None

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        """As an event source of the controller: each result queues the object that it is about."""
        self._wake = add

    async def run(self) -> None:
        """Lasts as long as this operator leads: what still runs when it is cancelled is cancelled, too."""
        try:
            await self._crashed.wait()
            if self._crash is not None:
                raise self._crash
        finally:
            self._stopped = True
            running = list(self._running.values())
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    def of(self, uid: str) -> dict[MachineTask, Work]:
        """What runs and what has ended for this object."""
        return dict(self._work.get(uid, {}))

    def start(
        self, key: Key, uid: str, task: MachineTask, work: Callable[[], Awaitable[Value]], *, cause: str = ""
    ) -> None:
        """Nothing is begun while the same task of the object still runs."""
        if self._stopped or (uid, task) in self._running:
            return
        before = self._work.get(uid, {}).get(task)
        again = before if isinstance(before, Failed) and before.cause == cause else None
        last_error = again.error if again is not None else None
        self._work.setdefault(uid, {})[task] = TaskRunning(self._now(), cause, last_error=last_error)
        self._running[uid, task] = asyncio.create_task(
            self._run(key, uid, task, work, cause, again.failures if again is not None else 0), name=f"{task} {key}"
        )

    def report(self, key: Key, uid: str, task: MachineTask, progress: JoinProgress) -> None:
        """What the running task waits for now."""
        running = self._work.get(uid, {}).get(task)
        if not isinstance(running, TaskRunning):
            return
        is_new_step = running.progress is None or running.progress.step != progress.step
        since = self._now() if is_new_step else running.step_since
        self._work[uid][task] = structs.replace(running, progress=progress, step_since=since)
        self._wake(key)

    def cancel(self, uid: str, task: MachineTask, *, if_queued: bool = False) -> None:
        """The object is queued again once the task has ended; no trace of it is left then.

        if_queued: one that has had its turn goes on.
        """
        work = self._work.get(uid, {}).get(task)
        if if_queued and not (isinstance(work, TaskRunning) and work.is_queued):
            return
        if (running := self._running.get((uid, task))) is not None:
            running.cancel()

    def forget(self, uid: str) -> None:
        """The object is gone."""
        for task in MachineTask:
            self.cancel(uid, task)
        self._work.pop(uid, None)

    async def _run(
        self, key: Key, uid: str, task: MachineTask, work: Callable[[], Awaitable[Value]], cause: str, failures: int
    ) -> None:
        result: Work | None = None
        try:
            turns = self._turns[task]
            self._note(uid, task, is_queued=turns.locked())
            async with turns:
                self._note(uid, task, is_queued=False)
                result = Succeeded(await work(), cause)
        except NotLeading as error:
            # As in a worker: another process may lead, and this one has to end.
            self._crash = error
            self._crashed.set()
        except Exception as error:
            if not isinstance(error, HoldfastError):
                log.exception("background work failed", task=task, key=str(key))
            now = self._now()
            result = Failed(error, now + self._pause(error, failures + 1), failures + 1, cause, now)
        finally:
            del self._running[uid, task]
            self._finish(key, uid, task, result)

    def _note(self, uid: str, task: MachineTask, *, is_queued: bool) -> None:
        """The time of a task counts from its turn."""
        of_object = self._work.get(uid, {})
        running = of_object.get(task)
        if isinstance(running, TaskRunning):
            of_object[task] = structs.replace(running, since=self._now(), is_queued=is_queued)

    def _finish(self, key: Key, uid: str, task: MachineTask, result: Work | None) -> None:
        of_object = self._work.get(uid)
        if of_object is None:
            return  # forgotten meanwhile
        if result is None:
            of_object.pop(task, None)
        else:
            of_object[task] = result
        if not self._stopped:
            self._wake(key)

    def _pause(self, error: Exception, failures: int) -> timedelta:
        pause_s = backoff_s(failures, base_s=FIRST_RETRY_S, cap_s=LONGEST_RETRY_S, random=self._random)
        asked_s = error.retry_after_s if isinstance(error, RateLimited | ClusterError) else None
        return timedelta(seconds=max(pause_s, asked_s or 0.0))
