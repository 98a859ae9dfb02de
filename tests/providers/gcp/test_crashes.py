"""Whenever the operator dies, and however often: one machine is made, and deleted for good."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.errors import ProviderError
from holdfast.providers.gcp.provider import GcpProvider
from tests.providers.compute_engine.faults import Fault, lost, refusing, unavailable_though_done
from tests.providers.compute_engine.refusals import unavailable
from tests.providers.gcp.lab import NAME, SPEC, UID, ZONE, Lab, in_virtual_time, lab
from tests.runtime.virtual import virtual

Verb = Callable[[GcpProvider], Awaitable[object]]
# More than a launch or a deletion ever takes.
STEPS = 400


async def launch(provider: GcpProvider) -> None:
    await provider.launch(SPEC)


async def delete(provider: GcpProvider) -> None:
    await provider.delete(ZONE, NAME, UID)


async def steps(count: int) -> None:
    """So many rounds of the event loop; where nothing is left to do in one, time passes."""
    for number in range(count):
        await asyncio.sleep(0 if number % 4 else 0.25)


async def dying(it: Lab, verb: Verb, after: int) -> bool:
    """Do it until the operator dies, and say whether it was done before that."""
    work = asyncio.ensure_future(verb(it.provider()))
    await steps(after)
    work.cancel()
    with suppress(asyncio.CancelledError, ProviderError):
        await work
        return True
    return False


def test_a_launch_that_dies_at_any_step_and_is_repeated_makes_one_machine() -> None:
    async def run(after: int) -> bool:
        async with lab() as it:
            done = await dying(it, launch, after)
            machine = await it.provider().launch(SPEC)
            assert [one.id for one in it.cloud.made] == [machine.id]
            return done

    assert not in_virtual_time(run(0))
    after = next(after for after in range(1, STEPS) if in_virtual_time(run(after)))
    assert after > 30, "it takes some steps"


def test_a_delete_that_dies_at_any_step_and_is_repeated_leaves_no_machine() -> None:
    async def run(after: int) -> bool:
        async with lab() as it:
            await it.provider().launch(SPEC)
            done = await dying(it, delete, after)
            await it.provider().delete(ZONE, NAME, UID)
            assert it.cloud.made[0].gone.is_set()
            return done

    assert not in_virtual_time(run(0))
    assert any(in_virtual_time(run(after)) for after in range(1, STEPS))


def test_a_launch_that_dies_at_any_step_and_is_given_up_leaves_no_machine() -> None:
    async def run(after: int) -> bool:
        async with lab() as it:
            done = await dying(it, launch, after)
            await it.provider().delete(ZONE, NAME, UID)
            assert all(machine.gone.is_set() for machine in it.cloud.made)
            await asyncio.sleep(300)
            assert not it.cloud.machines, "nothing appears afterwards"
            return done

    assert any(in_virtual_time(run(after)) for after in range(STEPS))


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(("instances.insert", "zoneOperations.list", "zoneOperations.wait", "instances.get")),
        st.sampled_from(
            (
                unavailable_though_done(),
                lost(executed=True),
                lost(executed=False),
                lost(executed=True, loss="timeout"),
                refusing(unavailable()),
            )
        ),
    ),
    max_size=6,
)


@given(st.lists(st.integers(0, 120), max_size=6), FAULTS, st.booleans())
def test_any_number_of_launches_with_crashes_and_faults_in_between_makes_one_machine(
    deaths: list[int], faults: list[tuple[str, Fault]], early: bool
) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.cloud.wait_answers_after_s = 0.5 if early else None
            for method, fault in faults:
                it.cloud.faults.add(method, fault)
            for after in deaths:
                await dying(it, launch, after)
            while True:
                with suppress(ProviderError):
                    machine = await it.provider().launch(SPEC)
                    break
            assert [one.id for one in it.cloud.made] == [machine.id]

    run()


@given(st.lists(st.integers(0, 120), min_size=2, max_size=5))
def test_launches_that_overlap_make_one_machine(starts: list[int]) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:

            async def begin(after: int) -> str:
                await steps(after)
                return (await it.provider().launch(SPEC)).id

            ids = await asyncio.gather(*(begin(after) for after in starts))
            assert {one.id for one in it.cloud.made} == set(ids)
            assert len(it.cloud.made) == 1

    run()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_operator_that_dies_around_any_call_is_followed_by_one_that_finds_the_machine(moment: str) -> None:
    async def run(number: int) -> bool:
        async with lab() as it:
            never = asyncio.Event()
            reached = asyncio.Event()

            async def stop(call: object) -> None:
                if len(it.cloud.calls) == number and not reached.is_set():
                    reached.set()
                    if moment == "before":  # the request never arrives
                        await never.wait()

            setattr(it.cloud, f"{moment}_call", stop)
            first = asyncio.create_task(it.provider().launch(SPEC))
            waiting = asyncio.create_task(reached.wait())
            await asyncio.wait((first, waiting), return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            waiting.cancel()
            died = reached.is_set()
            machine = await it.provider().launch(SPEC)
            assert [one.id for one in it.cloud.made] == [machine.id]
            return died

    number = 0
    while in_virtual_time(run(number + 1)):
        number += 1
    assert number == 5
