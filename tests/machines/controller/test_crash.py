"""The operator dies before and after each of its writes and calls, and another takes over: the end is the same."""

import asyncio

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.resources import NODES, PROVISIONED_INSTANCES, SPOT_INSTANCE_VMS
from holdfast.machines.joining import JoinFailed, JoinStep
from holdfast.machines.vm_controller import ACCOUNT_INTERVAL_S
from tests.machines.controller.dying import Process
from tests.machines.controller.lab import NAMESPACE, MachineLab, condition, machine_lab
from tests.runtime.virtual import virtual

TOO_MANY_STEPS = 120


async def story(lab: MachineLab) -> None:
    """One machine is taken back, one refused, one does not join, and one serves until it is not needed any more."""
    job = await lab.job()
    await lab.order("taken", job_uid=job)
    await lab.order("served", job_uid=job, zone="us-central1-b")
    for name in ("taken", "served"):
        await lab.until_serving(name)
    await taken_back(lab, "taken")
    lab.cloud.sold_out.add("us-central1-a")
    await lab.order("refused")
    it = await lab.until_ended("refused")
    assert condition(it, "Launched") == ("False", "Stockout")
    lab.boots, lab.joiner.error = False, JoinFailed(JoinStep.KUBEADM, "kubeadm fails half-way")
    await lab.order("unjoined", zone="us-central1-b")
    it = await lab.until_ended("unjoined")
    assert condition(it, "Joined")[0] == "False"
    await asyncio.sleep(ACCOUNT_INTERVAL_S + 1)
    lab.revive()
    await asyncio.sleep(1)
    account = (await lab.vm()).status
    assert account is not None
    assert [(each.zone, each.preemptions) for each in account.lifetimes] == [("us-central1-a", 1)]
    for name in ("taken", "refused", "unjoined", "served"):
        await lab.delete(name)
    for name in ("taken", "refused", "unjoined", "served"):
        await lab.until_absent(name)
    await lab.cluster.delete(SPOT_INSTANCE_VMS, Key(NAMESPACE, "t4"))
    for _ in range(100):
        await asyncio.sleep(1)
        lab.revive()


async def taken_back(lab: MachineLab, name: str) -> None:
    machine = (await lab.get(name)).status
    assert machine is not None
    assert machine.instance_name is not None
    await lab.set_node(machine.instance_name, marked="soon")
    await lab.until(lambda it: condition(it, "Preempted")[0] == "True", name)
    lab.cloud.take_back(machine.instance_name)
    it = await lab.until_ended(name)
    assert condition(it, "Preempted") == ("True", "TakenBack")


async def tell(process: Process) -> None:
    async with machine_lab(running=False) as lab:
        lab.start(process)
        await story(lab)
        assert lab.cloud.machines == {}, "no machine is left"
        assert len(lab.cloud.specs) == 3, "one for each need"
        assert not (await lab.cluster.list(NODES)).items
        assert not (await lab.cluster.list(PROVISIONED_INSTANCES)).items
        assert not (await lab.cluster.list(SPOT_INSTANCE_VMS)).items


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whatever_step_the_operator_dies_at_the_story_ends_the_same(after: bool) -> None:
    at = 0
    while True:
        at += 1
        process = Process(at, after=after)
        try:
            virtual(lambda: tell(process))()  # noqa: B023  # called at once
        except AssertionError as error:
            raise AssertionError(f"died {'after' if after else 'before'} step {at}: {process.steps[-3:]}") from error
        if not process.has_died:
            break
        assert at < TOO_MANY_STEPS
    assert at > 40
    assert {"launch machine", "delete machine", "patch nodes", "delete nodes"} < set(process.steps)
