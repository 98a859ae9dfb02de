"""Machines of Compute Engine that join by SSH and kubeadm, from the order to the end, faults included."""

import asyncio
from collections import Counter

import pytest

from holdfast.machines.joining import JoinStep
from holdfast.pods.failure import PREEMPTED
from tests.machines.controller.lab import condition, status
from tests.machines.controller.whole import whole_lab
from tests.machines.light_machine import Fault
from tests.providers.compute_engine.faults import lost, unavailable_though_done
from tests.runtime.virtual import virtual


@virtual
async def test_a_machine_is_made_joins_and_goes_and_nothing_is_left() -> None:
    async with whole_lab() as lab:
        await lab.order(project="my-gcp-project")
        it = await lab.until_serving()
        (machine,) = lab.engine.made
        assert (status(it).instance_id, status(it).internal_ip) == (machine.id, machine.internal_ip)
        assert lab.engine.count("instances.insert") == 1
        node = await lab.node(machine.name)
        assert node is not None
        assert node.metadata.labels["holdfast.dev/instance"] == it.metadata.uid
        assert not (await lab.tokens).items, "revoked after the join"
        await lab.delete()
        await lab.until_absent()
        assert (lab.engine.machines, await lab.node(machine.name)) == ({}, None)
        assert lab.engine.count("instances.delete") == 1


@virtual
async def test_a_machine_costs_eight_calls_from_its_insert_to_its_preemption() -> None:
    """Beside the lists, which are the same for one machine and for a thousand."""
    async with whole_lab() as lab:
        await lab.order()
        await lab.until_serving()
        machine = lab.engine.made[0]
        lab.engine.preempt(machine)
        await lab.taint(machine.name, PREEMPTED)
        await lab.until_ended()
        assert lab.engine.counts() - Counter({"instances.aggregatedList": 1000}) == {
            "zoneOperations.list": 2,  # is an insert under way; was it preempted
            "machineTypes.get": 1,  # once for all machines of the type
            "instances.insert": 1,
            "zoneOperations.wait": 1,
            "instances.get": 1,
            "instances.getGuestAttributes": 2,
        }


@virtual
async def test_a_machine_that_google_takes_back_was_preempted() -> None:
    async with whole_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.engine.preempt(lab.engine.made[0])
        it = await lab.until_ended()
        assert condition(it, "Preempted") == ("True", "TakenBack")
        assert await lab.node(lab.engine.made[0].name) is None


@pytest.mark.parametrize("after_s", [0, 9, 20, 40])
def test_a_machine_that_google_takes_back_while_it_starts_was_preempted_too(after_s: float) -> None:
    @virtual
    async def taken() -> None:
        async with whole_lab() as lab:
            lab.attached.faults.append({Fault.KUBEADM_HANGS})
            await lab.order()
            await lab.until(lambda it: lab.engine.made)
            await asyncio.sleep(after_s)
            lab.engine.preempt(lab.engine.made[0])
            it = await lab.until_ended()
            assert condition(it, "Preempted") == ("True", "TakenBack"), status(it)
            assert lab.engine.machines == {}
            assert len(lab.engine.made) == 1

    taken()


@virtual
async def test_a_machine_that_somebody_deletes_was_not() -> None:
    async with whole_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.engine.delete_by_hand(lab.engine.made[0])
        it = await lab.until_ended()
        assert condition(it, "Preempted")[0] == "False"


@virtual
async def test_a_host_that_breaks_is_no_preemption_and_what_is_left_is_deleted() -> None:
    async with whole_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.engine.fail_host(lab.engine.made[0])
        it = await lab.until_ended()
        assert (condition(it, "Preempted"), lab.engine.machines) == (("False", "MachineStopped"), {})


@pytest.mark.parametrize(
    "fault",
    [unavailable_though_done(), lost(executed=True), lost(executed=True, loss="timeout"), lost(executed=False)],
    ids=["503", "reset", "timeout", "never arrived"],
)
def test_an_insert_whose_answer_is_lost_makes_one_machine(fault: object) -> None:
    @virtual
    async def unanswered() -> None:
        async with whole_lab() as lab:
            lab.engine.faults.add("instances.insert", fault)  # type: ignore[arg-type]
            await lab.order()
            await lab.until_serving()
            assert len(lab.engine.made) == 1

    unanswered()


@virtual
async def test_a_stockout_that_comes_after_the_machine_was_seen_leaves_nothing() -> None:
    async with whole_lab() as lab:
        lab.engine.supply.sold_out.add("us-central1-a")
        await lab.order()
        it = await lab.until_ended()
        assert (condition(it, "Launched"), lab.engine.machines) == (("False", "Stockout"), {})


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (Fault.SSH_NEVER_OPENS, JoinStep.LOGIN),
        (Fault.NO_HOST_KEY, JoinStep.HOST_KEY),
        (Fault.WRONG_HOST_KEY, JoinStep.LOGIN),
        (Fault.NO_KUBEADM, JoinStep.PREFLIGHT),
        (Fault.KUBEADM_FAILS, JoinStep.KUBEADM),
        (Fault.KUBEADM_HANGS, JoinStep.KUBEADM),
        (Fault.OTHER_NAME, JoinStep.NODE_REGISTERED),
        (Fault.NO_NODE, JoinStep.NODE_REGISTERED),
    ],
)
def test_a_machine_that_does_not_join_is_given_back_at_that_step(fault: Fault, step: JoinStep) -> None:
    @virtual
    async def failing() -> None:
        async with whole_lab() as lab:
            lab.attached.faults.append({fault})
            await lab.order()
            it = await lab.until_ended()
            assert condition(it, "Joined") == ("False", step), status(it)
            assert (lab.engine.machines, len(lab.engine.made)) == ({}, 1)
            assert not (await lab.tokens).items

    failing()


@pytest.mark.parametrize(("fault", "step"), [(Fault.NEVER_READY, "NodeReady"), (Fault.NO_GPU, "GPUs")])
def test_a_machine_that_does_not_get_ready_is_given_back(fault: Fault, step: str) -> None:
    @virtual
    async def failing() -> None:
        async with whole_lab() as lab:
            lab.attached.faults.append({fault})
            await lab.order()
            it = await lab.until_ended()
            assert (condition(it, "GPUReady"), lab.engine.machines) == (("False", step), {})

    failing()


@virtual
async def test_a_revoked_account_is_said_and_a_new_key_goes_on() -> None:
    async with whole_lab() as lab:
        lab.account.is_revoked = True
        await lab.order()
        it = await lab.until(lambda it: condition(it, "Launched") == ("False", "Unauthorized"))
        assert status(it).phase == "Launch"
        lab.account.is_revoked = False
        await lab.until_serving()


@virtual
async def test_google_down_for_an_hour_costs_nothing() -> None:
    async with whole_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.engine.is_down = True
        it = await lab.until(lambda it: "no list of machines since" in (status(it).message or ""))
        await asyncio.sleep(3600)
        assert status(await lab.get()).phase == "Serve"
        lab.engine.is_down = False
        await lab.until(lambda later: status(later).message != status(it).message)
        assert len(lab.engine.machines) == 1
