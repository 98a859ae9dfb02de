"""launch: one machine, however often it is called."""

import asyncio

import pytest

from holdfast.cluster.errors import NotLeading
from holdfast.providers.errors import (
    CloudUnauthorized,
    InvalidMachine,
    MachineEnded,
    ProviderError,
    Stockout,
)
from holdfast.providers.gcp.instance import MachineType, insert_body
from holdfast.providers.gcp.provider import request_id
from tests.providers.compute_engine.calls import RecordedCall
from tests.providers.compute_engine.double import PROJECT
from tests.providers.compute_engine.faults import Fault, lost, refusing, unavailable_though_done
from tests.providers.compute_engine.machine import Pace
from tests.providers.compute_engine.refusals import OperationFailure, Refused, unauthenticated, unavailable
from tests.providers.gcp.lab import CLUSTER, NAME, SPEC, UID, ZONE, another, lab, spec
from tests.runtime.virtual import now_s, settled, virtual


@virtual
async def test_a_machine_is_made() -> None:
    async with lab() as it:
        machine = await it.provider().launch(SPEC)
        assert (machine.name, machine.zone, machine.uid, machine.cluster_uid) == (NAME, ZONE, UID, CLUSTER)
        assert machine.state == "STAGING"
        assert (machine.internal_ip, machine.external_ip) == ("10.128.0.2", "34.72.0.2")
        assert machine.created_at is not None
        assert machine.id == it.cloud.machine(NAME).id


@virtual
async def test_it_takes_four_calls_and_the_type_is_asked_for_once() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        await provider.launch(another(2))
        ordinary = ["zoneOperations.list", "instances.insert", "zoneOperations.wait", "instances.get"]
        assert [call.method for call in it.cloud.calls] == [
            ordinary[0],
            "machineTypes.get",
            *ordinary[1:],
            *ordinary,
        ]
        assert it.observed == [(call.method, 200) for call in it.cloud.calls]


@virtual
async def test_a_repeated_launch_finds_the_machine() -> None:
    async with lab() as it:
        first = await it.provider().launch(SPEC)
        for provider in (it.provider(), it.provider()):
            assert (await provider.launch(SPEC)).id == first.id
        assert it.cloud.count("instances.insert") == 1


@virtual
async def test_two_launches_at_once_make_one_machine() -> None:
    async with lab() as it:
        one, two = it.provider(), it.provider()
        machines = await asyncio.gather(one.launch(SPEC), two.launch(SPEC), one.launch(SPEC))
        assert len({machine.id for machine in machines}) == 1
        assert len(it.cloud.made) == 1


@virtual
async def test_a_machine_is_returned_when_its_insert_has_succeeded_and_not_earlier() -> None:
    async with lab() as it:
        first = asyncio.create_task(it.provider().launch(SPEC))
        await asyncio.sleep(1.0)
        assert it.cloud.machine(NAME).status == "PROVISIONING"
        it.cloud.supply.sold_out.add(ZONE)
        with pytest.raises(Stockout):  # it is seen, and yet will not be
            await it.provider().launch(SPEC)
        with pytest.raises(Stockout):
            await first


@virtual
async def test_a_machine_that_is_gone_is_not_made_again() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        await provider.delete(ZONE, NAME, UID)
        with pytest.raises(MachineEnded, match=f"machine {NAME} was made in {ZONE}, and is gone") as caught:
            await it.provider().launch(SPEC)
        assert not caught.value.preempted
        assert it.cloud.count("instances.insert") == 1


@virtual
async def test_a_machine_that_was_taken_back_is_distinguished_from_one_that_was_deleted() -> None:
    async with lab() as it:
        await it.provider().launch(SPEC)
        machine = it.cloud.machine(NAME)
        it.cloud.preempt(machine)
        await machine.gone.wait()
        with pytest.raises(MachineEnded, match="Google took it back") as caught:
            await it.provider().launch(SPEC)
        assert caught.value.preempted


@virtual
async def test_a_machine_that_is_taken_back_while_it_is_made() -> None:
    async with lab() as it:
        launching = asyncio.create_task(it.provider().launch(SPEC))
        await asyncio.sleep(1.0)
        it.cloud.preempt(it.cloud.machine(NAME))
        with pytest.raises(MachineEnded, match="Instance failed to start due to preemption") as caught:
            await launching
        assert caught.value.preempted
        assert await it.provider().is_preempted(ZONE, NAME, "")


@pytest.mark.parametrize(
    "fault",
    [
        unavailable_though_done(),
        lost(executed=True),
        lost(executed=True, loss="timeout"),
        lost(executed=False),
        refusing(unavailable()),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_an_insert_without_a_good_answer_makes_one_machine(fault: Fault, times: int) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.cloud.faults.add("instances.insert", fault, times=times)
            await it.provider().launch(SPEC)
            assert len(it.cloud.made) == 1
            sent = {call.request_id for call in it.cloud.calls if call.method == "instances.insert"}
            assert sent == {request_id(UID, "insert")}

    run()


@pytest.mark.parametrize("fault", [unavailable_though_done(), lost(executed=True, loss="timeout")])
def test_after_many_such_answers_the_next_launch_finds_the_machine(fault: Fault) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.cloud.faults.add("instances.insert", fault, times=3)
            with pytest.raises(ProviderError) as caught:
                await it.provider().launch(SPEC)
            assert type(caught.value) is ProviderError
            await it.provider().launch(SPEC)
            assert len(it.cloud.made) == 1

    run()


@virtual
async def test_a_name_that_is_taken_by_a_machine_whose_operation_is_forgotten_is_ours() -> None:
    async with lab() as it:
        first = await it.provider().launch(SPEC)
        it.cloud.operations.clear()
        assert (await it.provider().launch(SPEC)).id == first.id


@virtual
async def test_an_insert_that_google_does_not_recognize_ends_as_the_first_one_does() -> None:
    async with lab() as it:

        async def make_it_meanwhile(call: RecordedCall) -> None:
            if call.method == "instances.insert" and not it.cloud.made:
                it.cloud.make(PROJECT, ZONE, insert_body(SPEC, PROJECT, MachineType()), it.account.email, "")

        it.cloud.before_call = make_it_meanwhile
        it.cloud.supply.sold_out.add(ZONE)
        with pytest.raises(Stockout):
            await it.provider().launch(SPEC)
        assert [call.status for call in it.cloud.calls if call.method == "instances.insert"] == [409]


@virtual
async def test_an_insert_that_came_too_late_says_nothing_of_the_machine() -> None:
    async with lab() as it:
        machine = await it.provider().launch(SPEC)
        late = it.cloud.operation("insert", it.cloud.machine(NAME), user=it.account.email)
        late.end(it.cloud.now(), OperationFailure("RESOURCE_ALREADY_EXISTS", "The resource already exists", status=409))
        assert (await it.provider().launch(SPEC)).id == machine.id


@virtual
async def test_a_name_that_is_taken_by_another_is_not_ours() -> None:
    async with lab() as it:
        await it.provider().launch(spec(uid="11111111-0000-4000-8000-000000000000"))
        it.cloud.operations.clear()
        with pytest.raises(InvalidMachine, match="a machine of that name is there that was not made for this"):
            await it.provider().launch(SPEC)


@pytest.mark.parametrize("method", ["zoneOperations.wait", "instances.get"])
@pytest.mark.parametrize(
    "refused",
    [Refused(403, "quotaExceeded", "Quota 'Read requests' exceeded."), Refused(400, "badRequest", "Bad Request")],
)
def test_a_machine_that_can_not_be_read_is_not_taken_for_one_that_was_refused(method: str, refused: Refused) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.cloud.faults.add(method, refusing(refused))
            with pytest.raises(ProviderError) as caught:
                await it.provider().launch(SPEC)
            assert type(caught.value) is ProviderError, "it is looked for again, and given back in the end"
            await it.provider().launch(SPEC)
            assert len(it.cloud.made) == 1

    run()


@virtual
async def test_waits_that_answer_early_are_repeated_without_haste() -> None:
    async with lab() as it:
        it.cloud.wait_answers_after_s = 0.0
        began_s = now_s()
        await it.provider().launch(SPEC)
        assert now_s() - began_s >= it.cloud.pace.insert_s
        assert it.cloud.count("zoneOperations.wait") == 5  # after 0, 1, 3, 7 and 15 seconds


@pytest.mark.parametrize(("insert_s", "waits"), [(100.0, 1), (130.0, 2), (250.0, 3)])
def test_a_wait_lasts_two_minutes_and_is_followed_by_another(insert_s: float, waits: int) -> None:
    @virtual
    async def run() -> None:
        async with lab(Pace(insert_s=insert_s)) as it:
            await it.provider().launch(SPEC)
            assert it.observed.count(("zoneOperations.wait", 200)) == waits
            assert it.cloud.count("zoneOperations.wait") == waits

    run()


@virtual
async def test_a_wait_without_an_answer_is_followed_by_another() -> None:
    async with lab() as it:
        it.cloud.faults.add("zoneOperations.wait", lost(executed=True, loss="timeout"))
        await it.provider().launch(SPEC)
        assert it.observed.count(("zoneOperations.wait", 0)) == 1


@virtual
async def test_a_refused_token_is_replaced_once() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        it.cloud.accounts.forget_tokens()
        await provider.launch(another(2))
        assert len(it.cloud.accounts.given) == 2
        it.cloud.faults.add("zoneOperations.list", refusing(unauthenticated()), times=2)
        with pytest.raises(CloudUnauthorized):
            await provider.launch(another(3))


@virtual
async def test_an_operator_that_does_not_lead_makes_nothing() -> None:
    def refuse() -> None:
        raise NotLeading("not any more")

    async with lab() as it:
        with pytest.raises(NotLeading):
            await it.provider(require_leadership=refuse).launch(SPEC)
        assert it.cloud.count("instances.insert") == 0


@virtual
async def test_leadership_is_asked_for_before_every_attempt() -> None:
    leads = True

    def check() -> None:
        if not leads:
            raise NotLeading("not any more")

    async with lab() as it:
        it.cloud.faults.add("instances.insert", refusing(unavailable()))
        launching = asyncio.create_task(it.provider(require_leadership=check).launch(SPEC))
        await settled()
        assert it.cloud.count("instances.insert") == 1
        leads = False
        with pytest.raises(NotLeading):
            await launching
        assert not it.cloud.made
