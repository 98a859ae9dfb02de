"""The controller of SpotInstanceVMs: account, finalizer, and few writes however many machines there are."""

import asyncio
from datetime import timedelta

import pytest

from holdfast.api.meta import Key, is_true
from holdfast.cluster.resources import SPOT_INSTANCE_VMS
from holdfast.machines.vm_controller import ACCOUNT_INTERVAL_S
from tests.machines.controller import lab as lab_module
from tests.machines.controller.dying import Process
from tests.machines.controller.lab import NAMESPACE, machine_lab
from tests.runtime.virtual import virtual

T4 = Key(NAMESPACE, "t4")


@virtual
async def test_a_template_is_ready_and_has_its_finalizer_as_long_as_it_has_machines() -> None:
    async with machine_lab() as lab:
        await asyncio.sleep(1)
        vm = await lab.vm()
        assert vm.status is not None
        assert is_true(vm.status.conditions, "Ready")
        assert vm.metadata.finalizers == ()
        await lab.order()
        await asyncio.sleep(1)
        assert (await lab.vm()).metadata.finalizers == ("training.dcnlab.com/vm",)


@virtual
async def test_a_template_without_machines_is_deleted_at_once() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await lab.delete()
        await lab.until_absent()
        await lab.cluster.delete(SPOT_INSTANCE_VMS, T4)
        await asyncio.sleep(2)
        assert (await lab.cluster.list(SPOT_INSTANCE_VMS)).items == ()


@virtual
async def test_the_account_of_many_machines_is_written_together() -> None:
    async with machine_lab(running=False) as lab:
        process = Process()
        lab.start(process)
        for number in range(60):
            await lab.order(f"m{number:02}")
        for number in range(60):
            await lab.until_serving(f"m{number:02}")
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(2 * ACCOUNT_INTERVAL_S)
        vm = await lab.vm()
        assert vm.status is not None
        reports = vm.status.provisioned_instances
        assert (len(reports), all(each.joined_cluster for each in reports)) == (60, True)
        assert process.steps.count("patch_status spotinstancevms") <= 2 + began / ACCOUNT_INTERVAL_S - 100


@virtual
async def test_the_account_goes_on_though_the_clock_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        monkeypatch.setattr(lab_module, "BEGINNING", lab_module.BEGINNING - timedelta(days=1))
        await lab.order("m2")
        await lab.until_serving("m2")
        await asyncio.sleep(2 * ACCOUNT_INTERVAL_S)
        vm = await lab.vm()
        assert vm.status is not None
        assert [each.name for each in vm.status.provisioned_instances if each.joined_cluster] == ["m", "m2"]


@virtual
async def test_another_template_is_not_concerned() -> None:
    async with machine_lab() as lab:
        await lab.template("other")
        await lab.order()
        await lab.until_serving()
        await asyncio.sleep(2 * ACCOUNT_INTERVAL_S)
        other = await lab.vm("other")
        assert other.status is not None
        assert (other.status.provisioned_instances, other.metadata.finalizers) == ((), ())
