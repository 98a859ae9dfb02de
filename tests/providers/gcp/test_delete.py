"""delete: it returns when the machine is gone, and not before."""

import asyncio

import pytest

from holdfast.cluster.errors import NotLeading
from holdfast.providers.errors import InvalidMachine, MachineNotFound, ProviderError, Stockout
from holdfast.providers.gcp.provider import request_id
from tests.providers.compute_engine.faults import Fault, lost, refusing, unavailable_though_done
from tests.providers.compute_engine.refusals import OperationFailure, forbidden, not_found, unavailable
from tests.providers.gcp.lab import NAME, SPEC, UID, ZONE, lab, spec
from tests.runtime.virtual import now_s, virtual


@virtual
async def test_it_waits_for_the_operation_and_until_the_machine_is_not_found() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        before = len(it.cloud.calls)
        began_s = now_s()
        await provider.delete(ZONE, NAME, UID)
        assert not it.cloud.machines
        assert now_s() - began_s >= it.cloud.pace.delete_s
        assert [call.method for call in it.cloud.calls[before:]] == [
            "instances.delete",
            "zoneOperations.wait",
            "instances.get",
        ]


@virtual
async def test_one_that_was_never_made_is_no_error() -> None:
    async with lab() as it:
        await it.provider().delete(ZONE, NAME, UID)
        assert [call.method for call in it.cloud.calls] == ["instances.delete", "zoneOperations.list"]


@virtual
async def test_one_that_is_gone_already_is_no_error() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        machine = it.cloud.machine(NAME)
        it.cloud.preempt(machine)
        await machine.gone.wait()
        before = len(it.cloud.calls)
        await provider.delete(ZONE, NAME, UID)
        assert len(it.cloud.calls) - before == 2


@virtual
async def test_not_found_while_its_operation_runs_is_not_gone() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        machine = it.cloud.machine(NAME)
        it.cloud.delete_by_hand(machine)
        await asyncio.sleep(1.0)
        assert machine.being_deleted
        await provider.delete(ZONE, NAME, UID)
        assert machine.gone.is_set()


@virtual
async def test_one_that_is_still_being_made_is_not_gone() -> None:
    async with lab() as it:
        launching = asyncio.create_task(it.provider().launch(SPEC))
        await asyncio.sleep(1.0)
        launching.cancel()
        assert it.cloud.machine(NAME).status == "PROVISIONING"
        await it.provider().delete(ZONE, NAME, UID)
        assert not it.cloud.machines
        assert it.cloud.made[0].gone.is_set()


@virtual
async def test_one_that_is_not_seen_yet_is_not_gone() -> None:
    async with lab() as it:
        launching = asyncio.create_task(it.provider().launch(SPEC))
        await asyncio.sleep(1.0)
        launching.cancel()
        it.cloud.faults.add("instances.delete", refusing(not_found(f"projects/p/zones/{ZONE}/instances/{NAME}")))
        await it.provider().delete(ZONE, NAME, UID)
        assert it.cloud.made[0].gone.is_set()
        assert it.cloud.count("instances.delete") == 2


@virtual
async def test_a_repeated_delete_after_a_crash() -> None:
    async with lab() as it:
        await it.provider().launch(SPEC)
        deleting = asyncio.create_task(it.provider().delete(ZONE, NAME, UID))
        await asyncio.sleep(1.0)
        deleting.cancel()
        await it.provider().delete(ZONE, NAME, UID)
        assert it.cloud.made[0].gone.is_set()
        assert sum(operation.kind == "delete" for operation in it.cloud.operations.values()) == 1


@pytest.mark.parametrize(
    "fault",
    [unavailable_though_done(), lost(executed=True), lost(executed=True, loss="timeout"), refusing(unavailable())],
)
def test_a_delete_without_a_good_answer(fault: Fault) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            await it.provider().launch(SPEC)
            it.cloud.faults.add("instances.delete", fault)
            await it.provider().delete(ZONE, NAME, UID)
            assert it.cloud.made[0].gone.is_set()
            sent = {call.request_id for call in it.cloud.calls if call.method == "instances.delete"}
            assert sent == {request_id(UID, "delete")}

    run()


@virtual
async def test_a_delete_that_failed_is_reported_and_repeated() -> None:
    async with lab() as it:
        await it.provider().launch(SPEC)
        it.cloud.faults.fail_operation("delete", OperationFailure("INTERNAL_ERROR", "Internal error."), times=2)
        for _ in range(2):
            with pytest.raises(ProviderError, match=f"can't delete machine {NAME} in {ZONE}: INTERNAL_ERROR") as caught:
                await it.provider().delete(ZONE, NAME, UID)
            assert type(caught.value) is ProviderError
            assert it.cloud.machine(NAME)
        await it.provider().delete(ZONE, NAME, UID)
        assert not it.cloud.machines


@virtual
async def test_after_a_refused_insert_there_is_nothing_to_delete() -> None:
    async with lab() as it:
        with pytest.raises(InvalidMachine):
            await it.provider().launch(spec(zone="us-central1-x"))
        await it.provider().delete("us-central1-x", NAME, UID)
        it.cloud.projects.clear()
        await it.provider().delete(ZONE, NAME, UID)


@virtual
async def test_after_a_failed_insert_there_is_nothing_to_delete() -> None:
    async with lab() as it:
        it.cloud.supply.sold_out.add(ZONE)
        with pytest.raises(Stockout):
            await it.provider().launch(SPEC)
        await it.provider().delete(ZONE, NAME, UID)
        assert not it.cloud.machines


@virtual
async def test_a_missing_permission_leaves_the_machine_and_says_so() -> None:
    async with lab() as it:
        await it.provider().launch(SPEC)
        it.cloud.faults.add("instances.delete", refusing(forbidden("compute.instances.delete", "projects/p")))
        with pytest.raises(ProviderError, match=r"compute\.instances\.delete"):
            await it.provider().delete(ZONE, NAME, UID)
        assert it.cloud.machine(NAME)


@virtual
async def test_an_operator_that_does_not_lead_deletes_nothing() -> None:
    def refuse() -> None:
        raise NotLeading("not any more")

    async with lab() as it:
        await it.provider().launch(SPEC)
        with pytest.raises(NotLeading):
            await it.provider(require_leadership=refuse).delete(ZONE, NAME, UID)
        assert it.cloud.count("instances.delete") == 0


@virtual
async def test_a_machine_on_a_broken_host_is_deleted_too() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        it.cloud.fail_host(it.cloud.machine(NAME))
        await asyncio.sleep(1.0)
        assert (await provider.get(ZONE, NAME)).state == "TERMINATED"
        await provider.delete(ZONE, NAME, UID)
        with pytest.raises(MachineNotFound):
            await provider.get(ZONE, NAME)
