"""The operator dies before and after each call to Google and each write, joins included: the end is the same."""

import pytest

from holdfast.cluster.resources import NODES, PROVISIONED_INSTANCES
from tests.machines.controller.dying import Process
from tests.machines.controller.lab import condition
from tests.machines.controller.whole import WholeLab, whole_lab
from tests.runtime.virtual import virtual

TOO_MANY_STEPS = 150
SHARDS = 8


async def story(lab: WholeLab) -> None:
    """Of two machines Google takes one back, a third is not to be had, and the second is given back at the end."""
    for name, zone in (("taken", "us-central1-a"), ("served", "us-central1-b")):
        await lab.order(name, zone=zone)
        await lab.until_serving(name)
    (taken,) = (machine for machine in lab.engine.made if machine.zone == "us-central1-a")
    lab.engine.preempt(taken)
    it = await lab.until_ended("taken")
    assert condition(it, "Preempted") == ("True", "TakenBack")
    lab.engine.supply.sold_out.add("us-central1-a")
    await lab.order("refused", zone="us-central1-a")
    it = await lab.until_ended("refused")
    assert condition(it, "Launched") == ("False", "Stockout")
    for name in ("taken", "refused", "served"):
        await lab.delete(name)
    for name in ("taken", "refused", "served"):
        await lab.until_absent(name)


async def tell(process: Process) -> None:
    async with whole_lab(running=False) as lab:
        lab.start(process)
        await story(lab)
        assert lab.engine.machines == {}, "no machine is left"
        assert len(lab.engine.made) == 3, "one for each need"
        assert not (await lab.cluster.list(NODES)).items
        assert not (await lab.cluster.list(PROVISIONED_INSTANCES)).items
        assert not (await lab.tokens).items


def shards() -> list[object]:
    """One of them in every run."""
    return [pytest.param(shard, marks=() if shard == 0 else pytest.mark.long) for shard in range(SHARDS)]


@pytest.mark.parametrize("shard", shards())
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whatever_step_the_operator_dies_at_the_story_ends_the_same(after: bool, shard: int) -> None:
    at = 1 + shard
    while True:
        process = Process(at, after=after)
        try:
            virtual(lambda: tell(process))()  # noqa: B023  # called at once
        except AssertionError as error:
            raise AssertionError(f"died {'after' if after else 'before'} step {at}: {process.steps[-3:]}") from error
        if not process.has_died:
            break
        at += SHARDS
        assert at < TOO_MANY_STEPS
    assert at > 40
