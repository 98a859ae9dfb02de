"""Two copies of a training on machines that come and go, from the first machine to the last, and all of it real.

The machines join by kubeadm, CRIU saves the copies, a registry keeps them, and only Google is played.
"""

from collections.abc import Iterator

import pytest

from tests.nodes.backups import goes_on
from tests.nodes.lab import Lab
from tests.nodes.settings import QUICK
from tests.nodes.spot import SpotLab, spot_lab

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def lab(joining: None, checkpointing: None) -> Iterator[Lab]:
    with Lab(pace=QUICK, computers=8).running() as lab:
        yield lab


async def test_two_copies_of_a_training_outlive_all_of_their_machines(lab: Lab, namespace: str) -> None:
    async with spot_lab(lab, namespace) as it:
        await it.submit(interval="40s")
        await two_machines_join(it)
        await one_is_preempted(it)
        await both_are_preempted(it)
        await it.tell_to_end(await it.pod_of(1, 1))
        await it.story.until_phase("Succeeded")
        await it.story.until_nothing_is_left()
        assert len(it.cloud.made) == it.cloud.count("instances.insert") == 5


async def two_machines_join(it: SpotLab) -> None:
    counted = [await it.lines(await it.pod_of(replica)) for replica in (0, 1)]
    assert it.cloud.count("instances.insert") == len(await it.story.nodes()) == 2
    assert counted[0][0].identity != counted[1][0].identity, "each began from nothing"
    assert await it.story.tokens() == []


async def one_is_preempted(it: SpotLab) -> None:
    """The restored replica has the survivor's identity, which was in memory only, and takes the next step."""
    survivor = await it.lines(await it.pod_of(1))
    it.cloud.preempt(await it.story.machine_of(0))
    await goes_on(it.save, await it.pod_of(0, 1), survivor, "training")
    (recovery,) = (await it.story.until_phase("Running"))["recoveries"]
    assert (recovery["replica"], recovery["cause"], recovery["source"]) == (0, "preemption", "survivor")


async def both_are_preempted(it: SpotLab) -> None:
    before = [await it.lines(await it.pod_of(0, 1)), await it.lines(await it.pod_of(1))]
    first = (await it.story.status())["lastCheckpointImage"]
    await it.story.until_status(lambda seen: seen["lastCheckpointImage"] != first, "it is saved at its turn")
    for machine in [await it.story.machine_of(replica) for replica in (0, 1)]:
        it.cloud.preempt(machine)
    pods = [await it.pod_of(0, 2), await it.pod_of(1, 1)]
    recoveries = (await it.story.status())["recoveries"][-2:]
    assert {each["source"] for each in recoveries} == {"repository"}
    (image,) = {each["image"] for each in recoveries}
    tag = image.partition("@")[0].rpartition(":")[2]
    assert tag == await it.newest_tag()
    saved = int(tag.split("-r")[1][0])
    for pod in pods:
        await goes_on(it.save, pod, before[saved], "training")
