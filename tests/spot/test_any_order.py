"""Whatever comes, in whatever order: one live attempt per replica, one machine per need, and success in the end."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.providers.compute_engine.machine import FakeMachine
from tests.runtime.virtual import virtual
from tests.spot.world import ZONES, World, world

STEPS = 1500.0


class What(StrEnum):
    NOTICE = "Google takes a machine back, and its agent says so"
    UNTOLD = "Google takes a machine back, and nobody says so"
    BROKEN = "the host of a machine breaks"
    DELETED = "somebody deletes a machine"
    SAVES_FAIL = "checkpoints fail from now on"
    SAVES_HANG = "checkpoints hang from now on"
    SAVES_WORK = "checkpoints work again"
    SOLD_OUT = "a zone has no machine to spare"
    IN_STOCK = "all zones have machines"
    REGISTRY_DOWN = "the registry does not answer"
    REGISTRY_UP = "the registry answers"
    CLOUD_DOWN = "Google does not answer"
    CLOUD_UP = "Google answers"
    OPERATOR_DIES = "the operator dies"


class Event(NamedTuple):
    what: What
    which: int
    after_s: int


ON_MACHINES: dict[What, Callable[[World, FakeMachine], None]] = {
    What.NOTICE: lambda it, machine: it.engine.preempt(machine),
    What.UNTOLD: lambda it, machine: it.engine.preempt(machine),
    What.BROKEN: lambda it, machine: it.engine.fail_host(machine),
    What.DELETED: lambda it, machine: it.engine.delete_by_hand(machine),
}
CHANGES: dict[What, Callable[[World, int], object]] = {
    What.SAVES_FAIL: lambda it, _: setattr(it.agents, "fails", "no space left on device"),
    What.SAVES_HANG: lambda it, _: setattr(it.agents, "hangs", True),
    What.SAVES_WORK: lambda it, _: mend_saves(it),
    What.SOLD_OUT: lambda it, which: it.engine.supply.sold_out.add(ZONES[which % 2]),
    What.IN_STOCK: lambda it, _: it.engine.supply.sold_out.clear(),
    What.REGISTRY_DOWN: lambda it, _: setattr(it.images, "problem", "it does not answer"),
    What.REGISTRY_UP: lambda it, _: setattr(it.images, "problem", ""),
    What.CLOUD_DOWN: lambda it, _: setattr(it.engine, "is_down", True),
    What.CLOUD_UP: lambda it, _: setattr(it.engine, "is_down", False),
}


def mend_saves(it: World) -> None:
    it.agents.fails, it.agents.hangs = "", False


async def happen(it: World, event: Event) -> None:
    machines = [each for each in it.engine.machines.values() if not each.preempted and not each.being_deleted]
    it.computers.tells_notices = event.what is not What.UNTOLD
    if event.what in ON_MACHINES and machines:
        ON_MACHINES[event.what](it, machines[event.which % len(machines)])
    elif event.what in CHANGES:
        CHANGES[event.what](it, event.which)
    elif event.what is What.OPERATOR_DIES and it.is_running:
        await it.kill()
    await it.pass_time(event.after_s)


async def mend_all(it: World) -> None:
    mend_saves(it)
    it.images.problem, it.engine.is_down = "", False
    it.engine.supply.sold_out.clear()


async def any_order(events: list[Event], replicas: int) -> None:
    async with world() as it:
        it.kubelets.steps = STEPS
        await it.submit(replicas=replicas, checkpoints={"checkpointInterval": "3m"})
        for event in events:
            await happen(it, event)
        await mend_all(it)
        await it.until_phase("Succeeded", within_s=20_000)
        await it.until_clean(within_s=4000)
        status = (await it.job()).status
        assert status.restarts is None or status.restarts.application == 0
        it.check()


EVENTS = st.lists(
    st.builds(Event, st.sampled_from(What), st.integers(0, 5), st.sampled_from([0, 1, 3, 10, 20, 45, 90, 200, 400])),
    max_size=14,
)


@settings(max_examples=25)
@given(EVENTS, st.integers(1, 3))
@example([Event(What.NOTICE, 0, 0), Event(What.OPERATOR_DIES, 0, 10)] * 3, 2)
@example([Event(What.SOLD_OUT, 0, 0), Event(What.SOLD_OUT, 1, 200), Event(What.IN_STOCK, 0, 20)], 2)
def test_any_order_of_events_ends_in_success_with_one_machine_per_need(events: list[Event], replicas: int) -> None:
    virtual(lambda: any_order(events, replicas))()


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=400)
@given(EVENTS, st.integers(1, 3))
def test_many_orders_of_events_end_in_success(events: list[Event], replicas: int) -> None:
    virtual(lambda: any_order(events, replicas))()
