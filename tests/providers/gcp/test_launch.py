"""launch: one machine, however often it is called, and the right error where there is none."""

import asyncio

import pytest

from holdfast.cluster.errors import NotLeading
from holdfast.providers.errors import (
    Invalid,
    MachineEnded,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Stockout,
    Unauthorized,
)
from holdfast.providers.protocol import MachineSpec
from tests.providers.compute_engine.faults import Fault, lost, rate_limited, refusing, unavailable_though_done
from tests.providers.compute_engine.refusals import OperationFailure, forbidden, unauthenticated, unavailable
from tests.providers.gcp.lab import CLUSTER, NAME, SPEC, UID, ZONE, another, lab, spec
from tests.runtime.virtual import now_s, settled, virtual

T4 = "PREEMPTIBLE_NVIDIA_T4_GPUS"


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
async def test_a_machine_that_was_taken_back_is_told_from_one_that_was_deleted() -> None:
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


@virtual
async def test_a_stockout_is_told_by_the_operation_after_the_machine_was_seen() -> None:
    async with lab() as it:
        it.cloud.supply.sold_out.add(ZONE)
        launching = asyncio.create_task(it.provider().launch(SPEC))
        await asyncio.sleep(1.0)
        assert it.cloud.machine(NAME)
        with pytest.raises(Stockout, match="does not have enough resources available"):
            await launching
        assert not it.cloud.machines
        await it.provider().launch(another(2, zone="us-central1-b"))


@virtual
async def test_what_failed_once_is_not_tried_again_for_the_same_object() -> None:
    async with lab() as it:
        it.cloud.supply.sold_out.add(ZONE)
        for _ in range(2):
            with pytest.raises(Stockout):
                await it.provider().launch(SPEC)
        it.cloud.supply.sold_out.clear()
        with pytest.raises(Stockout):
            await it.provider().launch(SPEC)
        assert it.cloud.count("instances.insert") == 1


@virtual
async def test_a_zone_has_as_many_machines_as_it_has() -> None:
    async with lab() as it:
        it.cloud.supply.capacity[ZONE] = 1
        provider = it.provider()
        results = await asyncio.gather(
            *(provider.launch(another(number)) for number in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results].count(Stockout) == 2


@virtual
async def test_quotas_of_a_region_and_of_the_project() -> None:
    async with lab() as it:
        provider = it.provider()
        it.cloud.supply.quotas[T4, "us-central1"] = 1
        await provider.launch(SPEC)
        with pytest.raises(QuotaExceeded) as regional:
            await provider.launch(another(2))
        assert (regional.value.quota, regional.value.scope) == (T4, "region")
        await provider.launch(another(3, zone="europe-west4-a"))
        it.cloud.supply.quotas["GPUS_ALL_REGIONS", ""] = 2
        with pytest.raises(QuotaExceeded) as everywhere:
            await provider.launch(another(4, zone="us-east1-b"))
        assert (everywhere.value.quota, everywhere.value.scope) == ("GPUS_ALL_REGIONS", "global")


@virtual
async def test_a_quota_of_zero_is_told_with_its_name() -> None:
    async with lab() as it:
        it.cloud.supply.quotas[T4, "us-central1"] = 0
        with pytest.raises(QuotaExceeded, match=rf"the project's quota {T4} in us-central1 is used up \(limit 0\)"):
            await it.provider().launch(SPEC)


@virtual
async def test_a_subnetwork_without_addresses() -> None:
    async with lab() as it:
        it.cloud.supply.addresses["us-central1"] = 0
        with pytest.raises(QuotaExceeded, match="the subnetwork gpus has no free address") as caught:
            await it.provider().launch(spec(subnetwork="gpus"))
        assert caught.value.scope == "region"


@pytest.mark.parametrize(
    ("wanted", "missing", "field", "scope"),
    [
        (spec(machine_type="n9-standard-4"), "", "gcp.machineType", "zone"),
        (SPEC, "machineTypes/n1-standard-4", "gcp.machineType", "zone"),
        (spec(gpu_type="nvidia-x"), "", "gpu.type", "zone"),
        (spec(gpu_type="nvidia-tesla-p4", zone="us-central1-b"), "", "gpu.type", "zone"),
        (spec(gpu_count=3), "", "gpu.count", "zone"),
        (spec(machine_type="n2-standard-4"), "", "gpu.type", "zone"),
        (spec(machine_type="g2-standard-4"), "", "gpu.type", "global"),
        (spec(machine_type="g2-standard-24", gpu_type="nvidia-l4"), "", "gpu.count", "global"),
        (spec(machine_type="g2-standard-4", gpu_type="", gpu_count=0), "", "gpu", "global"),
        (SPEC, "images/cos-stable-109-17800-147-54", "vmImage", "global"),
        (spec(disk_type="pd-fast"), "", "gcp.diskType", "zone"),
        (spec(disk_size_gb=5), "", "gcp.diskSizeGB", "global"),
        (spec(network="nowhere"), "networks/nowhere", "gcp.network", "global"),
        (spec(subnetwork="nowhere"), "subnetworks/nowhere", "gcp.subnetwork", "zone"),
        (spec(zone="us-central1-x"), "", "gcp.zone", "zone"),
        (spec(metadata={"startup-script": "#!" + "x" * 300_000}), "", "startupScript", "global"),
    ],
)
def test_a_template_that_asks_for_what_is_not_there(wanted: MachineSpec, missing: str, field: str, scope: str) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.cloud.missing.add(missing)
            with pytest.raises(Invalid) as caught:
                await it.provider().launch(wanted)
            assert (caught.value.field, caught.value.scope) == (field, scope)
            assert not it.cloud.made

    run()


@pytest.mark.parametrize(
    "wanted",
    [
        SPEC,
        spec(preemptible=False),
        spec(preemptible=False, gpu_type="", gpu_count=0),
        spec(preemptible=False, machine_type="e2-standard-4", gpu_type="", gpu_count=0),
        spec(preemptible=False, machine_type="e2-standard-4", gpu_type="", gpu_count=0, max_run_duration_s=3600),
        spec(machine_type="e2-standard-4", gpu_type="", gpu_count=0),
        spec(machine_type="g2-standard-4", gpu_type="nvidia-l4"),
        spec(machine_type="g2-standard-4", gpu_type="nvidia-l4", preemptible=False),
        spec(machine_type="g2-standard-24", gpu_type="nvidia-l4", gpu_count=2),
        spec(preemption_notice_s=120, max_run_duration_s=86400),
        spec(external_ip=False, network="training", subnetwork="gpus", network_tags=("gpu",)),
        spec(service_account="robot@my-gcp-project.iam.gserviceaccount.com", min_cpu_platform="Intel Skylake"),
    ],
)
def test_every_template_that_makes_sense_is_accepted(wanted: MachineSpec) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            assert (await it.provider().launch(wanted)).uid == UID

    run()


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
            assert len({call.request_id for call in it.cloud.calls if call.method == "instances.insert"}) == 1

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
async def test_a_name_that_is_taken_by_another_is_not_ours() -> None:
    async with lab() as it:
        await it.provider().launch(spec(uid="11111111-0000-4000-8000-000000000000"))
        it.cloud.operations.clear()
        with pytest.raises(Invalid, match="a machine of that name is there that was not made for this"):
            await it.provider().launch(SPEC)


@virtual
async def test_waits_that_answer_early_are_repeated_without_haste() -> None:
    async with lab() as it:
        it.cloud.wait_answers_after_s = 0.0
        began_s = now_s()
        await it.provider().launch(SPEC)
        assert now_s() - began_s >= it.cloud.pace.insert_s
        assert it.cloud.count("zoneOperations.wait") == 5  # after 0, 1, 3, 7 and 15 seconds


@virtual
async def test_waits_longer_than_two_minutes_go_on() -> None:
    async with lab() as it:
        it.cloud.faults.add("zoneOperations.wait", lost(executed=True, loss="timeout"))
        await it.provider().launch(SPEC)
        assert it.cloud.count("zoneOperations.wait") == 2


@virtual
async def test_a_refused_token_is_replaced_once() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        it.cloud.accounts.forget_tokens()
        await provider.launch(another(2))
        assert len(it.cloud.accounts.given) == 2
        it.cloud.faults.add("zoneOperations.list", refusing(unauthenticated()), times=2)
        with pytest.raises(Unauthorized):
            await provider.launch(another(3))


@virtual
async def test_a_revoked_key_makes_nothing_and_works_again_when_mended() -> None:
    async with lab() as it:
        it.account.is_revoked = True
        provider = it.provider()
        with pytest.raises(Unauthorized):
            await provider.launch(SPEC)
        assert not it.cloud.calls
        it.account.is_revoked = False
        await provider.launch(SPEC)


@virtual
async def test_too_many_requests_are_told_with_googles_word() -> None:
    async with lab() as it:
        it.cloud.faults.add("instances.insert", rate_limited(7))
        with pytest.raises(RateLimited) as caught:
            await it.provider().launch(SPEC)
        assert caught.value.retry_after_s == 7.0
        await it.provider().launch(SPEC)


@virtual
async def test_an_operation_that_fails_for_reasons_of_its_own_ends_the_machine() -> None:
    async with lab() as it:
        it.cloud.faults.fail_operation("insert", OperationFailure("INTERNAL_ERROR", "Internal error."))
        with pytest.raises(MachineEnded, match="INTERNAL_ERROR: Internal error: Google gave up") as caught:
            await it.provider().launch(SPEC)
        assert not caught.value.preempted


@virtual
async def test_google_down_is_a_fault_that_passes() -> None:
    async with lab() as it:
        it.cloud.is_down = True
        with pytest.raises(ProviderError) as caught:
            await it.provider().launch(SPEC)
        assert type(caught.value) is ProviderError
        it.cloud.is_down = False
        it.cloud.unreachable.add(ZONE)
        with pytest.raises(ProviderError):
            await it.provider().launch(SPEC)
        it.cloud.unreachable.clear()
        await it.provider().launch(SPEC)


@virtual
async def test_who_does_not_lead_makes_nothing() -> None:
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


@virtual
async def test_a_permission_that_is_granted_later_is_enough() -> None:
    async with lab() as it:
        provider = it.provider()
        it.cloud.faults.add("instances.insert", refusing(forbidden("compute.instances.create", "projects/p")))
        with pytest.raises(Unauthorized):
            await provider.launch(SPEC)
        await provider.launch(SPEC)
