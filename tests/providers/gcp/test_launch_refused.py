"""launch: where there is no machine to be had, the error says what to correct or what to wait for."""

import asyncio

import pytest

from holdfast.providers.errors import (
    CloudUnauthorized,
    InvalidMachine,
    MachineEnded,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Stockout,
)
from holdfast.providers.protocol import MachineSpec
from tests.providers.compute_engine.faults import rate_limited, refusing
from tests.providers.compute_engine.refusals import OperationFailure, forbidden
from tests.providers.gcp.lab import NAME, SPEC, UID, ZONE, another, lab, spec
from tests.runtime.virtual import virtual

T4 = "PREEMPTIBLE_NVIDIA_T4_GPUS"


@virtual
async def test_a_stockout_is_found_in_the_operation_after_the_machine_was_seen() -> None:
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
async def test_a_quota_of_zero_is_reported_with_its_name() -> None:
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
            with pytest.raises(InvalidMachine) as caught:
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


@virtual
async def test_a_revoked_key_makes_nothing_and_works_again_when_mended() -> None:
    async with lab() as it:
        it.account.is_revoked = True
        provider = it.provider()
        with pytest.raises(CloudUnauthorized):
            await provider.launch(SPEC)
        assert not it.cloud.calls
        it.account.is_revoked = False
        await provider.launch(SPEC)


@virtual
async def test_too_many_requests_are_reported_with_googles_reason() -> None:
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
async def test_a_permission_that_is_granted_later_is_enough() -> None:
    async with lab() as it:
        provider = it.provider()
        it.cloud.faults.add("instances.insert", refusing(forbidden("compute.instances.create", "projects/p")))
        with pytest.raises(CloudUnauthorized):
            await provider.launch(SPEC)
        await provider.launch(SPEC)


@virtual
async def test_a_permission_that_its_operation_lacked_is_enough_for_the_next_object_once_it_is_granted() -> None:
    """The operation has failed for good, and is found again whenever the same machine is asked for."""
    async with lab() as it:
        said = "Required 'compute.images.useReadOnly' permission for 'projects/q/global/images/i'"
        it.cloud.faults.fail_operation("insert", OperationFailure("PERMISSIONS_ERROR", said))
        with pytest.raises(InvalidMachine, match=r"lacks the permission compute\.images\.useReadOnly"):
            await it.provider().launch(SPEC)
        await it.provider().launch(another(2))
        assert len(it.cloud.machines) == 1
