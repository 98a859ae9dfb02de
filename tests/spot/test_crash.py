"""The operator dies around each of its writes and calls, and another takes over: the end of the story is the same."""

from collections import Counter
from functools import cache
from itertools import cycle

import pytest

from tests.machines.controller.dying import Process
from tests.runtime.virtual import virtual
from tests.spot.story import End, end_of, story
from tests.spot.world import World, world

SHARED_OUT = 6
"""Every sixth step is one that an operator dies at: six stories, and each step was one of them."""


@cache
def undisturbed() -> tuple[tuple[str, ...], End]:
    """The steps of the story, and its end."""
    found: list[tuple[tuple[str, ...], End]] = []

    @virtual
    async def told() -> None:
        async with world() as it:
            await story(it)
            found.append((tuple(it.process.steps), await end_of(it)))

    told()
    return found[0]


def test_the_story_has_enough_steps_to_die_at() -> None:
    steps, _ = undisturbed()
    calls = Counter(step.partition(" ")[0] for step in steps)
    assert len(steps) >= 60
    assert calls["POST"] + calls["GET"] + calls["DELETE"] >= 25
    assert {"create jobs", "create checkpointbackups", "create provisionedinstances", "delete nodes"} <= set(steps)


async def _the_end_is_the_same(it: World) -> None:
    await story(it)
    _, end = undisturbed()
    assert await end_of(it) == end


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("first", range(1, SHARED_OUT + 1))
def test_operators_that_die_one_after_the_other_do_not_change_the_end(first: int, after: bool) -> None:
    @virtual
    async def told() -> None:
        async with world(running=False) as it:
            lengths = cycle((SHARED_OUT, SHARED_OUT + 1, SHARED_OUT - 1))
            it.next_process = lambda: Process(next(lengths), after=after)
            it.start(Process(first, after=after))
            await _the_end_is_the_same(it)
            assert it.deaths >= 20

    undisturbed()
    told()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whatever_step_the_operator_dies_at_the_end_is_the_same(after: bool) -> None:
    steps, _ = undisturbed()
    for at, step in enumerate(steps, start=1):

        @virtual
        async def told(at: int = at) -> None:
            async with world(running=False) as it:
                it.start(Process(at, after=after))
                await _the_end_is_the_same(it)
                await it.pass_time(2 * it.away_s)
                assert it.deaths == 1
                assert not await it.leftovers()

        try:
            told()
        except AssertionError as error:
            raise AssertionError(f"died {'after' if after else 'before'} step {at}: {step}") from error
