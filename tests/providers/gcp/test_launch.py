"""launch: one machine, however often it is called, and the right error where there is none."""

import pytest

from holdfast.providers.errors import MachineEnded
from tests.providers.gcp.lab import CLUSTER, NAME, SPEC, UID, ZONE, lab
from tests.runtime.virtual import virtual


@virtual
async def test_a_machine_is_made_with_four_calls() -> None:
    async with lab() as it:
        machine = await it.provider().launch(SPEC)
        assert machine.name == NAME
        assert (machine.zone, machine.uid, machine.cluster_uid) == (ZONE, UID, CLUSTER)
        assert machine.state == "STAGING"
        assert machine.internal_ip
        assert machine.external_ip
        assert machine.created_at is not None
        assert [call.method for call in it.cloud.calls] == [
            "zoneOperations.list",
            "machineTypes.get",
            "instances.insert",
            "zoneOperations.wait",
            "instances.get",
        ]


@virtual
async def test_a_repeated_launch_finds_the_machine() -> None:
    async with lab() as it:
        first = await it.provider().launch(SPEC)
        second = await it.provider().launch(SPEC)
        assert second.id == first.id
        assert it.cloud.count("instances.insert") == 1


@virtual
async def test_a_machine_that_is_gone_is_not_made_again() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        await provider.delete(ZONE, NAME, UID)
        with pytest.raises(MachineEnded) as caught:
            await it.provider().launch(SPEC)
        assert not caught.value.preempted
        assert it.cloud.count("instances.insert") == 1
