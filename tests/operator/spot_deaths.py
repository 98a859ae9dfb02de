"""The operator is killed around its calls of the cloud, and started again at once."""

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from tests.operator.process import OperatorProcess
from tests.operator.spot import SpotStory
from tests.providers.compute_engine.calls import ConnectionLost, RecordedCall

Moment: TypeAlias = Literal["before", "after"]
# What the life of a machine takes.
METHODS = (
    "instances.aggregatedList",
    "instances.delete",
    "instances.get",
    "instances.getGuestAttributes",
    "instances.insert",
    "machineTypes.get",
    "zoneOperations.list",
    "zoneOperations.wait",
)


class Death(NamedTuple):
    method: str
    moment: Moment
    target: str = ""
    """The machine or the operation that the call was about."""


Choose: TypeAlias = Callable[[RecordedCall, Moment], Death]


def each_method(call: RecordedCall, moment: Moment) -> Death:
    """Once before, and once after, a call of each method."""
    return Death(call.method, moment)


def each_call(call: RecordedCall, moment: Moment) -> Death:
    """The same for each machine."""
    return Death(call.method, moment, call.target)


class DyingOperator:
    """It dies whenever `choose` gives a death that it has not died yet."""

    def __init__(self, story: SpotStory, process: OperatorProcess, choose: Choose) -> None:
        self.died_at: list[Death] = []
        self._process = process
        self._choose = choose
        self._starting: asyncio.Task[None] | None = None
        story.cloud.before_call = self._before
        story.cloud.after_call = self._after

    async def _before(self, call: RecordedCall) -> None:
        if self._dies(call, "before"):
            raise ConnectionLost(is_silent=False)

    async def _after(self, call: RecordedCall) -> None:
        if self._dies(call, "after"):
            raise ConnectionLost(is_silent=False)

    def _dies(self, call: RecordedCall, moment: Moment) -> bool:
        if self._starting is not None and not self._starting.done():
            return True  # it was sent by the one that is dead
        death = self._choose(call, moment)
        if death in self.died_at:
            return False
        self.died_at.append(death)
        self._process.kill()
        self._starting = asyncio.create_task(asyncio.to_thread(self._process.start))
        return True
