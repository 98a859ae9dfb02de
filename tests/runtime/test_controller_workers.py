"""What comes of each thing that a reconcile can return or raise."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random

import pytest
from structlog.testing import capture_logs

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, Conflict, NotLeading, Unreachable
from holdfast.runtime.controller import (
    RECONCILE_TIMEOUT_S,
    Controller,
    ControllerWorkers,
    Done,
    RequeueAfter,
    Result,
    TerminalError,
    Watch,
    owned_by,
)
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.read_your_writes import WriteTracker
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import PARTS, THINGS, A, part, running, thing
from tests.runtime.virtual import now_s, settled, virtual

Outcome = Result | Exception | Callable[[Key], Awaitable[Result]]


class Scripted:
    """A reconciler that does what it is told, one outcome after another, then `Done`."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.seen: list[tuple[float, str]] = []
        self.reported: list[tuple[str, str, str]] = []
        self.report_errors: list[Exception] = []

    async def reconcile(self, key: Key) -> Result:
        self.seen.append((now_s(), key.name))
        outcome = self.outcomes.pop(0) if self.outcomes else Done()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome if isinstance(outcome, Done | RequeueAfter) else await outcome(key)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        if self.report_errors:
            raise self.report_errors.pop(0)
        self.reported.append((key.name, error.reason, error.message))

    def pauses(self) -> list[float]:
        times = [when for when, _ in self.seen]
        return [later - earlier for earlier, later in pairwise(times)]


class Rig:
    def __init__(self, *outcomes: Outcome) -> None:
        self.cluster = ScriptedCluster()
        self.metrics = Metrics()
        self.informers = Informers(self.cluster, (), metrics=self.metrics, random=Random(1))
        self.writer = WriteTracker(self.cluster, self.informers)
        self.reconciler = Scripted(*outcomes)
        controller = Controller(
            "thing", THINGS, self.reconciler, self.writer, watches=(Watch(PARTS, owned_by(THINGS)),)
        )
        self.workers = ControllerWorkers(controller, self.informers, metrics=self.metrics, random=Random(1))

    @asynccontextmanager
    async def working(self, count: int = 3) -> AsyncIterator["Rig"]:
        await self.informers.sync()
        async with running(self.informers.run()), running(self.workers.run(count)):
            await settled()
            yield self

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, {"controller": "thing", **labels}) or 0.0

    def results(self, result: str) -> float:
        return self.count("holdfast_reconciles_total", result=result)


@virtual
async def test_done_is_quiet_until_something_changes() -> None:
    async with Rig().working() as rig:
        rig.cluster.put(THINGS, thing("a"))
        await asyncio.sleep(1000.0)
        assert [name for _, name in rig.reconciler.seen] == ["a"]
        rig.cluster.put(PARTS, part("p", "a"))
        await settled()
        rig.cluster.drop(THINGS, A)
        await settled()
        assert [name for _, name in rig.reconciler.seen] == ["a", "a", "a"]
        assert rig.results("done") == rig.count("holdfast_reconcile_duration_seconds_count") == 3


@virtual
async def test_requeue_after_comes_back_when_it_said() -> None:
    async with Rig(RequeueAfter(42.0)).working() as rig:
        rig.cluster.put(THINGS, thing("a"))
        await asyncio.sleep(100.0)
        assert rig.reconciler.pauses() == [42.0]
        assert rig.results("requeue") == rig.results("done") == 1


@virtual
async def test_a_terminal_error_is_reported_and_not_tried_again_until_the_object_changes() -> None:
    async with Rig(TerminalError("BadImage", "write another image")).working() as rig:
        rig.cluster.put(THINGS, thing("a"))
        await asyncio.sleep(1000.0)
        assert rig.reconciler.reported == [("a", "BadImage", "write another image")]
        assert len(rig.reconciler.seen) == 1
        rig.cluster.put(THINGS, thing("a", 1))
        await settled()
        assert len(rig.reconciler.seen) == 2
        assert rig.results("terminal") == 1


@virtual
async def test_a_terminal_error_that_cannot_be_reported_is_tried_again() -> None:
    rig = Rig(TerminalError("Bad", "no"), TerminalError("Bad", "no"))
    rig.reconciler.report_errors = [Conflict("status changed meanwhile")]
    async with rig.working():
        rig.cluster.put(THINGS, thing("a"))
        await asyncio.sleep(10.0)
        assert rig.reconciler.reported == [("a", "Bad", "no")]
        assert (rig.results("conflict"), rig.results("terminal")) == (1, 1)


@pytest.mark.parametrize("error", [Conflict("it changed"), AlreadyExists("it is there")])
def test_a_conflict_is_tried_again_soon_and_is_no_error(error: Exception) -> None:
    @virtual
    async def conflicts() -> None:
        with capture_logs() as logs:
            async with Rig(error).working() as rig:
                rig.cluster.put(THINGS, thing("a"))
                await asyncio.sleep(0.2)
                assert len(rig.reconciler.seen) == 2
                assert (rig.results("conflict"), rig.results("error")) == (1, 0)
                assert rig.count("holdfast_reconcile_retries_total") == 1
        assert {line["log_level"] for line in logs} == {"debug"}

    conflicts()


@virtual
async def test_any_other_error_is_logged_and_tried_again_later_and_later() -> None:
    with capture_logs() as logs:
        async with Rig(*[Unreachable("no answer")] * 3, ValueError("a bug"), Done()).working() as rig:
            rig.cluster.put(THINGS, thing("a"))
            await asyncio.sleep(60.0)
            assert len(rig.reconciler.seen) == 5
            assert rig.reconciler.pauses() == sorted(rig.reconciler.pauses())
            assert (rig.results("error"), rig.results("done")) == (4, 1)
            assert rig.workers.queue.failures(A) == 0
    failed = [line for line in logs if line["event"] == "reconcile failed"]
    assert [line["failures"] for line in failed] == [1, 2, 3, 4]
    assert all(line["key"] == "ns/a" and line["controller"] == "thing" for line in failed)
    # The cluster's own words suffice; a bug comes with its traceback.
    assert [line.get("reason") for line in failed] == ["no answer"] * 3 + [None]
    assert [bool(line.get("exc_info")) for line in failed] == [False, False, False, True]


@virtual
async def test_failures_are_forgotten_once_a_terminal_error_is_reported() -> None:
    async with Rig(ValueError("sick"), TerminalError("Bad", "no")).working() as rig:
        rig.cluster.put(THINGS, thing("a"))
        await asyncio.sleep(10.0)
        assert rig.results("terminal") == 1
        assert rig.workers.queue.failures(A) == 0


@virtual
async def test_one_sick_object_does_not_hold_up_the_others() -> None:
    async with Rig(*[ValueError("sick")] * 5).working(count=1) as rig:
        rig.cluster.put(THINGS, thing("a"))
        await asyncio.sleep(10.0)
        rig.cluster.put(THINGS, thing("b"))
        await settled()
        assert rig.reconciler.seen[-1][1] == "b"


@virtual
async def test_a_reconcile_that_hangs_is_given_up_and_tried_again() -> None:
    async def hang(key: Key) -> Result:
        await asyncio.Event().wait()
        return Done()

    with capture_logs() as logs:
        async with Rig(hang).working(count=1) as rig:
            rig.cluster.put(THINGS, thing("a"))
            await asyncio.sleep(RECONCILE_TIMEOUT_S + 1)
            assert len(rig.reconciler.seen) == 2
    assert [line["log_level"] for line in logs] == ["error"]


@virtual
async def test_not_leading_ends_the_workers() -> None:
    rig = Rig(NotLeading("the Lease is gone"))
    await rig.informers.sync()
    async with running(rig.informers.run()):
        work = asyncio.create_task(rig.workers.run(3))
        rig.cluster.put(THINGS, thing("a"))
        with pytest.raises(ExceptionGroup) as raised:
            await work
    assert raised.group_contains(NotLeading)
    assert len(rig.reconciler.seen) == 1


@virtual
async def test_a_key_changed_while_it_is_reconciled_is_reconciled_again_and_never_twice_at_once() -> None:
    at_once: list[int] = []
    inside = 0

    async def slow(key: Key) -> Result:
        nonlocal inside
        inside += 1
        at_once.append(inside)
        await asyncio.sleep(5.0)
        inside -= 1
        return Done()

    async with Rig(slow, slow, slow).working() as rig:
        for size in range(4):
            rig.cluster.put(THINGS, thing("a", size))
            await asyncio.sleep(1.0)
        await asyncio.sleep(60.0)
        assert len(rig.reconciler.seen) == 2
        assert at_once == [1, 1]


@virtual
async def test_the_next_reconcile_waits_until_the_store_shows_what_the_last_one_wrote() -> None:
    found: list[int] = []

    async def make_one_part(key: Key) -> Result:
        parts = rig.informers.store(PARTS).list()
        found.append(len(parts))
        if not parts:
            rig.cluster.delivering.clear()
            await rig.writer.for_key(key).create(PARTS, part(f"p{len(found)}", key.name), namespace="ns")
        return Done()

    rig = Rig(*[make_one_part] * 10)
    async with rig.working():
        rig.cluster.put(THINGS, thing("a"))
        for _ in range(2):
            await asyncio.sleep(10.0)
            rig.workers.queue.add(A)
        await settled()
        assert found == [0]
        rig.cluster.delivering.set()
        await settled()
        assert found == [0, 1]
        assert len(rig.cluster.all_of(PARTS)) == 1


@virtual
async def test_a_key_that_waits_for_a_store_comes_by_itself_when_nothing_wakes_it() -> None:
    async def write_unwatched(key: Key) -> Result:
        await rig.writer.for_key(key).create(PARTS, {"metadata": {"name": "nobodys"}}, namespace="ns")
        return RequeueAfter(0.5)

    rig = Rig(write_unwatched)
    async with rig.working():
        rig.cluster.put(THINGS, thing("a"))
        await settled()
        assert len(rig.reconciler.seen) == 1
        rig.cluster.delivering.clear()
        rig.informers.store(PARTS).set_resource_version("1")
        await asyncio.sleep(20.0)
        assert len(rig.reconciler.seen) == 1
        rig.informers.store(PARTS).set_resource_version("9999")
        await asyncio.sleep(1.0)
        assert len(rig.reconciler.seen) == 2


@virtual
async def test_resync_looks_at_every_object_once_per_interval_and_not_at_all_of_them_at_once() -> None:
    rig = Rig()
    for number in range(100):
        rig.cluster.put(THINGS, thing(f"t{number}"))
    async with rig.working(), running(rig.workers.resync(300.0)):
        await asyncio.sleep(299.0)
        rig.reconciler.seen.clear()
        began = now_s()
        await asyncio.sleep(300.0)
        assert sorted(name for _, name in rig.reconciler.seen) == sorted(f"t{number}" for number in range(100))
        minutes = [int((when - began) // 60) for when, _ in rig.reconciler.seen]
        assert all(5 < minutes.count(minute) < 50 for minute in range(5))


@virtual
async def test_resync_leaves_out_what_is_gone() -> None:
    rig = Rig()
    rig.cluster.put(THINGS, thing("a"))
    async with rig.working(), running(rig.workers.resync(300.0)):
        rig.cluster.drop(THINGS, A)
        await settled()
        rig.reconciler.seen.clear()
        await asyncio.sleep(1000.0)
        assert rig.reconciler.seen == []


@virtual
async def test_the_queue_depth_is_a_metric() -> None:
    rig = Rig()
    rig.cluster.put(THINGS, thing("a"))
    rig.cluster.put(THINGS, thing("b"))
    await rig.informers.sync()
    assert rig.count("holdfast_queue_depth") == 2
    async with running(rig.workers.run(1)):
        await settled()
        assert rig.count("holdfast_queue_depth") == 0


@virtual
async def test_after_shut_down_what_runs_ends_and_nothing_new_begins() -> None:
    ended: list[str] = []

    async def slow(key: Key) -> Result:
        await asyncio.sleep(5.0)
        ended.append(key.name)
        return Done()

    rig = Rig(slow, slow, slow)
    for name in "abc":
        rig.cluster.put(THINGS, thing(name))
    await rig.informers.sync()
    work = asyncio.create_task(rig.workers.run(2))
    await settled()
    rig.workers.queue.shut_down()
    await work
    assert sorted(ended) == ["a", "b"]
