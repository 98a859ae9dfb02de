"""GPU utilization for a training that does not tell it."""

import asyncio

from holdfast.reports.wire import MOST_METRICS, Progress
from holdfast.sidecar.gpus import Busy
from holdfast.train.gpus import METRIC, Gpus


class FakeGpus(Gpus):
    def __init__(self, percent: float | None) -> None:
        super().__init__("no-such-library.so")
        self.percent = percent

    def utilization_percent(self) -> float | None:
        return self.percent


async def busy(percent: float | None) -> Busy:
    found = Busy(FakeGpus(percent))
    await found.look()
    return found


async def test_what_is_known_is_added() -> None:
    entry = Progress(epoch=1, metrics={"loss": 0.5}, at=1.0)
    assert (await busy(0.0)).added(entry).metrics == {"loss": 0.5, METRIC: 0.0}


async def test_what_is_not_known_is_left_out() -> None:
    entry = Progress(epoch=1, metrics={"loss": 0.5}, at=1.0)
    assert (await busy(None)).added(entry) == entry


async def test_what_the_training_says_counts() -> None:
    entry = Progress(epoch=1, metrics={METRIC: 12.0}, at=1.0)
    assert (await busy(90.0)).added(entry) == entry


async def test_it_takes_the_place_of_no_metric() -> None:
    entry = Progress(epoch=1, metrics={f"m{number}": 1.0 for number in range(MOST_METRICS)}, at=1.0)
    assert (await busy(90.0)).added(entry) == entry


async def test_without_a_library_nobody_looks_again() -> None:
    found = Busy(Gpus("no-such-library.so"))
    async with asyncio.timeout(60):
        await found.run()
    assert found.added(Progress(epoch=1, at=1.0)).metrics == {}
