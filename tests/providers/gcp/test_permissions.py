"""The lists of permissions are complete, and have none too many: without any one of them something is refused."""

import asyncio
from collections.abc import Iterable

import pytest

from holdfast.providers.errors import CloudUnauthorized
from holdfast.providers.gcp.permissions import ALL, FOR_DRILLS, FOR_FIELDS, FOR_ZONES, MINIMAL
from holdfast.providers.protocol import MachineSpec
from tests.providers.gcp.lab import CLUSTER, NAME, UID, ZONE, Lab, lab, spec
from tests.runtime.virtual import virtual

PLAIN = spec(external_ip=False)
WITH_FIELD = {
    "gcp.externalIP": spec(external_ip=True),
    "gcp.networkTags": spec(external_ip=False, network_tags=("gpu",)),
    "gcp.serviceAccount": spec(external_ip=False, service_account="robot@my-gcp-project.iam.gserviceaccount.com"),
    "vmImage": spec(external_ip=False, image="projects/my-images/global/images/gpu-nodes-7"),
}


async def whole_life(it: Lab, wanted: MachineSpec) -> None:
    """All that holdfast does with a machine."""
    provider = it.provider()
    machine = await provider.launch(wanted)
    await provider.list(CLUSTER)
    await asyncio.sleep(10.0)
    await provider.get(ZONE, NAME)
    await provider.host_keys(ZONE, NAME)
    await provider.is_preempted(ZONE, NAME, machine.id)
    await provider.delete(ZONE, NAME, UID)


def allowed(permissions: Iterable[str], wanted: MachineSpec) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.account.permissions = set(permissions)
            await whole_life(it, wanted)

    run()


def test_the_minimal_permissions_are_enough() -> None:
    allowed(MINIMAL, PLAIN)


@pytest.mark.parametrize("permission", MINIMAL)
def test_each_of_them_is_needed(permission: str) -> None:
    with pytest.raises(CloudUnauthorized, match=f"lacks the permission {permission} for projects/my-gcp-project"):
        allowed(set(MINIMAL) - {permission}, PLAIN)


@pytest.mark.parametrize("field", FOR_FIELDS)
def test_a_field_needs_its_own_and_no_others(field: str) -> None:
    allowed({*MINIMAL, *FOR_FIELDS[field]}, WITH_FIELD[field])


@pytest.mark.parametrize(
    ("field", "permission"), [(field, one) for field, listed in FOR_FIELDS.items() for one in listed]
)
def test_each_permission_of_a_field_is_needed(field: str, permission: str) -> None:
    with pytest.raises(CloudUnauthorized, match=f"lacks the permission {permission} for"):
        allowed({*MINIMAL, *FOR_FIELDS[field]} - {permission}, WITH_FIELD[field])


def test_every_field_with_a_permission_is_tried() -> None:
    assert set(WITH_FIELD) == set(FOR_FIELDS)


@pytest.mark.parametrize("granted", [True, False])
def test_a_drill_needs_its_own(granted: bool) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.account.permissions = {*MINIMAL, *(FOR_DRILLS if granted else ())}
            provider = it.provider()
            await provider.launch(PLAIN)
            await asyncio.sleep(10.0)
            if granted:
                await provider.simulate_preemption(ZONE, NAME)
                return
            with pytest.raises(CloudUnauthorized, match=r"compute\.instances\.simulateMaintenanceEvent"):
                await provider.simulate_preemption(ZONE, NAME)

    run()


@pytest.mark.parametrize("granted", [True, False])
def test_the_list_of_zones_needs_its_own(granted: bool) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.account.permissions = {*MINIMAL, *(FOR_ZONES if granted else ())}
            if granted:
                assert ZONE in await it.provider().zones()
                return
            with pytest.raises(CloudUnauthorized, match=r"compute\.zones\.list"):
                await it.provider().zones()

    run()


def test_no_permission_is_listed_twice() -> None:
    lists = [*MINIMAL, *(one for listed in FOR_FIELDS.values() for one in listed), *FOR_DRILLS, *FOR_ZONES]
    assert sorted(lists) == list(ALL)
