import asyncio

import pytest

from holdfast.local.controllers.objects import gather_all


async def test_all_steps_are_taken_and_their_results_come_in_order() -> None:
    async def step(number: int) -> int:
        await asyncio.sleep(0.001 * (3 - number))
        return number

    assert await gather_all(step(number) for number in range(3)) == [0, 1, 2]


async def test_a_step_that_fails_keeps_none_of_the_others_from_ending() -> None:
    done = []

    async def step(number: int) -> None:
        await asyncio.sleep(0)
        if number == 1:
            raise ValueError(number)
        await asyncio.sleep(0)
        done.append(number)

    with pytest.raises(ValueError, match="1"):
        await gather_all(step(number) for number in range(4))
    assert done == [0, 2, 3]
