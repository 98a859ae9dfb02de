"""Operations of many machines are looked up together."""

import asyncio

import pytest

from holdfast.providers.errors import ProviderError
from holdfast.providers.gcp.operations import MACHINES_PER_LIST
from tests.providers.compute_engine.faults import refusing
from tests.providers.compute_engine.refusals import forbidden, unavailable
from tests.providers.gcp.lab import NAME, SPEC, ZONE, another, lab
from tests.runtime.virtual import settled, virtual


@virtual
async def test_questions_that_come_at_once_are_one_request() -> None:
    async with lab() as it:
        provider = it.provider()
        machines = [await provider.launch(another(number)) for number in range(10)]
        it.cloud.preempt(it.cloud.machine(machines[3].name))
        await it.cloud.made[3].gone.wait()
        before = it.cloud.count("zoneOperations.list")
        told = await asyncio.gather(*(provider.is_preempted(ZONE, one.name, one.id) for one in machines))
        assert told == [number == 3 for number in range(10)]
        assert it.cloud.count("zoneOperations.list") - before == 1


@virtual
async def test_a_hundred_launches_take_few_lists() -> None:
    async with lab() as it:
        provider = it.provider()
        await asyncio.gather(*(provider.launch(another(number)) for number in range(100)))
        assert it.cloud.count("zoneOperations.list") == -(-100 // MACHINES_PER_LIST)
        assert it.cloud.count("machineTypes.get") == 1
        assert len(it.cloud.made) == 100


@virtual
async def test_each_zone_is_asked_for_its_own() -> None:
    async with lab() as it:
        provider = it.provider()
        await asyncio.gather(
            *(provider.launch(another(n, zone=zone)) for n, zone in enumerate((ZONE, "us-central1-b", "us-east1-b")))
        )
        assert sorted(call.zone for call in it.cloud.calls if call.method == "zoneOperations.list") == [
            "us-central1-a",
            "us-central1-b",
            "us-east1-b",
        ]


@virtual
async def test_an_answer_is_never_older_than_its_question() -> None:
    async with lab() as it:
        provider = it.provider()
        machine = await provider.launch(SPEC)
        held = asyncio.Event()
        asked = 0

        async def hold(call: object) -> None:
            nonlocal asked
            asked += 1
            if asked == 1:
                await held.wait()

        it.cloud.after_call = hold
        first = asyncio.create_task(provider.is_preempted(ZONE, NAME, machine.id))
        await settled()
        it.cloud.preempt(it.cloud.machine(NAME))
        await it.cloud.made[0].gone.wait()
        second = asyncio.create_task(provider.is_preempted(ZONE, NAME, machine.id))
        await settled()
        held.set()
        assert not await first
        assert await second


@virtual
async def test_a_failed_request_is_raised_to_all_its_callers_and_to_no_later_one() -> None:
    async with lab() as it:
        provider = it.provider()
        it.cloud.faults.add("zoneOperations.list", refusing(forbidden("compute.zoneOperations.list", "projects/p")))
        results = await asyncio.gather(
            *(provider.is_preempted(ZONE, name, "") for name in ("a", "b")), return_exceptions=True
        )
        assert [type(result).__name__ for result in results] == ["CloudUnauthorized", "CloudUnauthorized"]
        assert not await provider.is_preempted(ZONE, "a", "")


@virtual
async def test_a_caller_that_gives_up_does_not_disturb_the_others() -> None:
    async with lab() as it:
        provider = it.provider()
        first, second = (asyncio.create_task(provider.is_preempted(ZONE, name, "")) for name in ("a", "b"))
        await settled()
        first.cancel()
        assert not await second


@virtual
async def test_a_failure_that_nobody_waits_for_any_more_harms_nobody() -> None:
    async with lab() as it:
        provider = it.provider()
        it.cloud.faults.add("zoneOperations.list", refusing(unavailable()), times=3)
        asking = asyncio.create_task(provider.is_preempted(ZONE, "a", ""))
        await settled()
        asking.cancel()
        await asyncio.sleep(60)
        assert not await provider.is_preempted(ZONE, "a", "")


@virtual
async def test_all_pages_of_operations_are_read() -> None:
    async with lab() as it:
        provider = it.provider()
        machine = await provider.launch(SPEC)
        it.cloud.preempt(it.cloud.machine(NAME))
        await it.cloud.made[0].gone.wait()
        it.cloud.page_size = 1
        assert await provider.is_preempted(ZONE, NAME, machine.id)


@virtual
async def test_closing_ends_what_is_asked() -> None:
    async with lab() as it:
        provider = it.provider()
        held = asyncio.Event()

        async def hold(call: object) -> None:
            await held.wait()

        it.cloud.before_call = hold
        asking = asyncio.create_task(provider.is_preempted(ZONE, "a", ""))
        await settled()
        await provider.close()
        with pytest.raises((asyncio.CancelledError, ProviderError)):
            await asking
        held.set()
