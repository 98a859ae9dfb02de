"""Work beside the reconciles: how many at once, how it ends, and that nothing of it outlives the operator."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from structlog.testing import capture_logs

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotLeading
from holdfast.machines.background import AT_ONCE, Background
from holdfast.machines.joining import JoinProgress, JoinStep
from holdfast.machines.work import Failed, MachineTask, Succeeded, TaskRunning, Value
from holdfast.providers.errors import ProviderError, RateLimited
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from tests.runtime.virtual import settled, virtual

KEY, UID = Key("ml", "m"), "u1"
BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)


def now() -> datetime:
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


class Bench:
    def __init__(self) -> None:
        self.background = Background(now=now, random=Random(0))
        self.woken: list[Key] = []
        informers = Informers(None, (), metrics=Metrics(), random=Random(0))  # type: ignore[arg-type]
        self.background.attach(informers, self.woken.append)
        self.running = asyncio.create_task(self.background.run())

    def start(
        self, work: Callable[[], Awaitable[Value]], *, uid: str = UID, task: MachineTask = MachineTask.LAUNCH
    ) -> None:
        self.background.start(KEY, uid, task, work)

    def failure(self) -> Failed:
        found = self.background.of(UID)[MachineTask.LAUNCH]
        assert isinstance(found, Failed)
        return found


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await settled()
    try:
        yield made
    finally:
        made.running.cancel()
        with suppress(asyncio.CancelledError, NotLeading):
            await made.running


async def hang() -> None:
    await asyncio.Event().wait()


@virtual
async def test_the_time_of_a_task_counts_from_its_turn() -> None:
    async with bench() as it:
        ended, began = asyncio.Event(), now()
        for number in range(AT_ONCE):
            it.start(ended.wait, uid=f"before-{number}")  # type: ignore[arg-type]
        it.start(hang)
        await asyncio.sleep(100)
        queued = it.background.of(UID)[MachineTask.LAUNCH]
        assert isinstance(queued, TaskRunning)
        assert (queued.is_queued, queued.since) == (True, began)
        ended.set()
        await settled()
        running = it.background.of(UID)[MachineTask.LAUNCH]
        assert isinstance(running, TaskRunning)
        assert (running.is_queued, running.since) == (False, began + timedelta(seconds=100))


def raising(error: Exception) -> Callable[[], Awaitable[Value]]:
    async def work() -> None:
        raise error

    return work


async def nothing() -> None:
    return


@virtual
async def test_a_result_is_there_and_its_object_is_queued() -> None:
    async with bench() as it:
        it.start(nothing)
        assert it.background.of(UID) == {MachineTask.LAUNCH: TaskRunning(now())}
        await settled()
        assert (it.background.of(UID), it.woken) == ({MachineTask.LAUNCH: Succeeded(None)}, [KEY])


@virtual
async def test_the_same_task_of_an_object_runs_once_at_a_time() -> None:
    async with bench() as it:
        begun: list[int] = []

        async def count() -> None:
            begun.append(1)
            await asyncio.sleep(10)

        for _ in range(3):
            it.start(count)
            await settled()
        it.start(count, task=MachineTask.CHECK)
        await settled()
        assert len(begun) == 2
        await asyncio.sleep(11)
        it.start(count)
        await settled()
        assert len(begun) == 3


@virtual
async def test_of_a_task_so_many_run_at_the_same_time_and_other_tasks_do_not_wait_for_them() -> None:
    async with bench() as it:
        most, present = 0, 0

        async def work() -> None:
            nonlocal most, present
            present += 1
            most = max(most, present)
            await asyncio.sleep(5)
            present -= 1

        for number in range(200):
            it.start(work, uid=f"u{number}")
        deleted: list[int] = []

        async def delete() -> None:
            deleted.append(1)

        it.start(delete, uid="u0", task=MachineTask.DELETE)
        await settled()
        assert (present, deleted) == (AT_ONCE, [1])
        await asyncio.sleep(30)
        assert (most, present) == (AT_ONCE, 0)


@virtual
async def test_an_exception_is_a_result_and_the_pause_before_another_try_grows() -> None:
    async with bench() as it:
        pauses = []
        for _ in range(8):
            it.start(raising(ProviderError("503")))
            assert isinstance(it.background.of(UID)[MachineTask.LAUNCH], TaskRunning)
            await settled()
            pauses.append((it.failure().retry_at - now()).total_seconds())
        assert [str(it.failure().error), it.failure().failures] == ["503", 8]
        assert pauses[0] <= 2
        assert 30 <= pauses[-1] <= 60
        it.start(hang)
        running = it.background.of(UID)[MachineTask.LAUNCH]
        assert isinstance(running, TaskRunning)
        assert str(running.last_error) == "503", "what went wrong is known until a try ends well"


@virtual
async def test_a_cloud_that_asks_for_a_pause_gets_it() -> None:
    async with bench() as it:
        it.start(raising(RateLimited("slow down", retry_after_s=90)))
        await settled()
        assert it.failure().retry_at == now() + timedelta(seconds=90)


@virtual
async def test_a_defect_is_logged_and_an_error_on_purpose_is_not() -> None:
    async with bench() as it:
        with capture_logs() as logs:
            it.start(raising(ProviderError("503")))
            it.start(raising(AttributeError("a defect")), task=MachineTask.CHECK)
            await settled()
        assert [line["event"] for line in logs] == ["background work failed"]


@virtual
async def test_a_cancelled_task_leaves_no_trace_and_queues_its_object() -> None:
    async with bench() as it:
        it.start(hang)
        await settled()
        it.background.cancel(UID, MachineTask.LAUNCH)
        await settled()
        assert (it.background.of(UID), it.woken) == ({}, [KEY])


@virtual
async def test_a_forgotten_object_is_not_queued_any_more() -> None:
    async with bench() as it:
        it.start(hang)
        await settled()
        it.background.forget(UID)
        await settled()
        assert (it.background.of(UID), it.woken) == ({}, [])


@virtual
async def test_the_progress_of_a_task_is_there_with_the_beginning_of_its_step() -> None:
    async with bench() as it:
        it.start(hang, task=MachineTask.JOIN)
        began = now()
        for seconds, message in ((0, "none yet"), (3, "none at all")):
            await asyncio.sleep(seconds)
            progress = JoinProgress(step=JoinStep.LOGIN, deadline=began, message=message)
            it.background.report(KEY, UID, MachineTask.JOIN, progress)
            running = it.background.of(UID)[MachineTask.JOIN]
            assert isinstance(running, TaskRunning)
            assert (running.progress, running.step_since) == (progress, began)
        assert len(it.woken) == 2
        it.background.report(KEY, "unknown", MachineTask.JOIN, progress)
        assert len(it.woken) == 2


@virtual
async def test_when_the_operator_stops_all_that_runs_is_cancelled_and_nothing_is_begun() -> None:
    async with bench() as it:
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append("ended")

        it.start(work)
        await settled()
        it.running.cancel()
        with suppress(asyncio.CancelledError):
            await it.running
        assert (ended, it.woken) == (["ended"], [])
        it.start(work)
        await settled()
        assert it.background.of(UID) == {}


@virtual
async def test_an_operator_that_does_not_lead_any_more_ends() -> None:
    async with bench() as it:
        it.start(raising(NotLeading("another one leads")))
        with pytest.raises(NotLeading):
            await it.running


@virtual
async def test_a_later_step_begins_when_it_is_reported() -> None:
    async with bench() as it:
        it.start(hang, task=MachineTask.JOIN)
        for step in (JoinStep.LOGIN, JoinStep.KUBEADM):
            await asyncio.sleep(7)
            it.background.report(KEY, UID, MachineTask.JOIN, JoinProgress(step=step, deadline=now(), message="waiting"))
            running = it.background.of(UID)[MachineTask.JOIN]
            assert isinstance(running, TaskRunning)
            assert running.step_since == now()


@virtual
async def test_what_is_done_for_another_cause_begins_its_pauses_anew() -> None:
    async with bench() as it:
        for _ in range(6):
            it.background.start(KEY, UID, MachineTask.LAUNCH, raising(ProviderError("503")), cause="list 1")
            await settled()
        assert it.failure().failures == 6
        it.background.start(KEY, UID, MachineTask.LAUNCH, raising(ProviderError("503")), cause="list 2")
        running = it.background.of(UID)[MachineTask.LAUNCH]
        assert isinstance(running, TaskRunning)
        assert running.last_error is None
        await settled()
        assert it.failure().failures == 1
