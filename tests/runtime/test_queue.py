"""The queue against a naive model of itself, on a clock that jumps."""

import asyncio
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.runtime.queue import Queue
from tests.runtime.virtual import VirtualLoop, now_s, settled, virtual

NAMES = st.sampled_from("abcd")


def new_queue() -> Queue[str]:
    return Queue(Random(1))


class QueueAgainstModel(RuleBasedStateMachine):
    """One due time per key, one set of running keys: what the queue hands out follows from these."""

    @initialize()
    def begin(self) -> None:
        self.loop = VirtualLoop()
        self.queue = new_queue()
        self.due: dict[str, float] = {}
        self.running: set[str] = set()

    @rule(key=NAMES)
    def add(self, key: str) -> None:
        self._do(lambda: self.queue.add(key))
        self.due[key] = min(self.due.get(key, self.now), self.now)

    @rule(key=NAMES, seconds=st.integers(-1, 20))
    def add_after(self, key: str, seconds: int) -> None:
        self._do(lambda: self.queue.add_after(key, seconds))
        self.due[key] = min(self.due.get(key, float("inf")), self.now + max(seconds, 0))

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule()
    def get(self) -> None:
        free = {key for key, due in self.due.items() if due <= self.now and key not in self.running}
        got = self.loop.run_until_complete(self._get())
        if not free:
            assert got is None
            return
        assert got in free
        assert got is not None
        del self.due[got]
        self.running.add(got)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self._do(lambda: self.queue.done(key))
        self.running.remove(key)

    @invariant()
    def depth_is_what_waits(self) -> None:
        assert self.queue.depth == sum(due <= self.now for due in self.due.values())

    @property
    def now(self) -> float:
        return self.loop.time()

    async def _get(self) -> str | None:
        getting = asyncio.ensure_future(self.queue.get())
        await settled()
        if getting.done():
            return getting.result()
        getting.cancel()
        await asyncio.wait([getting])
        return None

    def _do(self, change: object) -> None:
        async def call() -> None:
            assert callable(change)
            change()

        self.loop.run_until_complete(call())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()


TestQueueAgainstModel = QueueAgainstModel.TestCase


@virtual
async def test_a_key_added_twice_is_handed_out_once() -> None:
    queue = new_queue()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert [await queue.get(), await queue.get(), queue.depth] == ["a", "b", 0]


@virtual
async def test_a_key_in_work_comes_again_only_after_done() -> None:
    queue = new_queue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    second = asyncio.create_task(queue.get())
    await settled()
    assert not second.done()
    queue.done("a")
    assert await second == "a"


@virtual
async def test_a_key_in_work_does_not_hold_up_the_others() -> None:
    queue = new_queue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"


@virtual
async def test_a_delayed_key_comes_when_it_is_due() -> None:
    queue = new_queue()
    began = now_s()
    queue.add_after("a", 30.0)
    assert queue.depth == 0
    assert await queue.get() == "a"
    assert now_s() - began == 30.0


@pytest.mark.parametrize("delays", [(30.0, 10.0), (10.0, 30.0)])
def test_the_earlier_of_two_delays_wins(delays: tuple[float, float]) -> None:
    @virtual
    async def earlier() -> None:
        queue = new_queue()
        began = now_s()
        for seconds in delays:
            queue.add_after("a", seconds)
        await queue.get()
        queue.done("a")
        assert now_s() - began == 10.0
        await asyncio.sleep(100.0)
        assert queue.depth == 0

    earlier()


@virtual
async def test_adding_at_once_replaces_a_delay() -> None:
    queue = new_queue()
    queue.add_after("a", 10.0)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    await asyncio.sleep(20.0)
    assert queue.depth == 0


@virtual
async def test_a_key_that_waits_is_not_delayed_again() -> None:
    queue = new_queue()
    queue.add("a")
    queue.add_after("a", 10.0)
    await queue.get()
    queue.done("a")
    await asyncio.sleep(20.0)
    assert queue.depth == 0


@virtual
async def test_retries_wait_longer_each_time_until_the_key_is_well() -> None:
    queue = new_queue()
    delays = [queue.retry("a") for _ in range(20)]
    for failures, delay_s in enumerate(delays):
        step = min(300.0, 0.1 * 2**failures)
        assert step / 2 <= delay_s <= step
    assert queue.failures("a") == 20
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") <= 0.1


@virtual
async def test_one_keys_failures_do_not_delay_another() -> None:
    queue = new_queue()
    for _ in range(10):
        queue.retry("a")
    assert queue.retry("b") <= 0.1


@virtual
async def test_shut_down_wakes_waiting_workers_and_gives_out_no_more_keys() -> None:
    queue = new_queue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settled()
    queue.shut_down()
    assert await asyncio.gather(*waiting) == [None, None, None]
    queue.add("a")
    queue.add_after("b", 1.0)
    await asyncio.sleep(5.0)
    assert await queue.get() is None
    assert queue.depth == 0


@virtual
async def test_shut_down_leaves_what_is_delayed_and_lets_what_runs_end() -> None:
    queue = new_queue()
    queue.add("a")
    queue.add_after("b", 1.0)
    assert await queue.get() == "a"
    queue.shut_down()
    queue.add("a")
    queue.done("a")
    await asyncio.sleep(5.0)
    assert await queue.get() is None


@virtual
async def test_a_worker_that_is_cancelled_while_it_waits_loses_no_key() -> None:
    queue = new_queue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await settled()
    queue.add("a")
    first.cancel()
    assert await second == "a"


@virtual
async def test_many_workers_never_share_a_key_and_miss_none() -> None:
    queue: Queue[int] = Queue(Random(2))
    random = Random(3)
    running: set[int] = set()
    worked: list[int] = []

    async def work() -> None:
        while (key := await queue.get()) is not None:
            assert key not in running
            running.add(key)
            await asyncio.sleep(random.random())
            running.remove(key)
            worked.append(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(5)]
    for _ in range(300):
        queue.add_after(random.randrange(20), random.choice([0.0, 0.3, 2.0]))
        await asyncio.sleep(random.random() / 5)
    await asyncio.sleep(60.0)
    queue.shut_down()
    await asyncio.gather(*workers)
    assert set(worked) == set(range(20))
    assert not running
