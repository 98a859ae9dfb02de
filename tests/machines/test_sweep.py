"""Machines without objects and Nodes without machines: found twice, they go; what did not answer proves nothing."""

import asyncio
from typing import Any, cast

import pytest
from msgspec import structs

from holdfast.api.core.pod import ObjectReference
from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import ProvisionedInstance, machine_name
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Listing, Resource
from holdfast.cluster.resources import CONFIG_MAPS, NODES, PROVISIONED_INSTANCES
from holdfast.machines.projects import NAME, MachineProject
from holdfast.machines.sweep import INTERVAL_S, MOST_DELETED
from holdfast.providers.protocol import MachineSpec
from tests.machines.controller.lab import HOME, NAMESPACE, MachineLab, machine_lab
from tests.machines.fake_cloud import DOWN
from tests.runtime.virtual import virtual

PASS_S = INTERVAL_S + 1


async def leaked(lab: MachineLab, number: int = 1, *, zone: str = "us-central1-a", **changes: Any) -> str:
    """A machine of this cluster that no object stands for."""
    kube_system = await lab.cluster_uid()
    uid = f"00000000-0000-4000-8000-{number:012}"
    fields = {"name": machine_name(uid), "uid": uid, "cluster_uid": kube_system, **changes}
    spec = MachineSpec(zone=zone, image="i", machine_type="n1", **fields)
    await lab.cloud.launch(spec)
    return spec.name


async def force_delete(lab: MachineLab, name: str = "m") -> None:
    """As somebody does who is impatient: the finalizer is taken off by hand."""
    await lab.stop()
    await lab.cluster.patch(PROVISIONED_INSTANCES, Key(NAMESPACE, name), {"metadata": {"finalizers": None}})
    await lab.delete(name)
    lab.start()


@virtual
async def test_the_machine_of_an_object_that_was_deleted_by_force_is_found_and_its_node_too() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        await force_delete(lab)
        await asyncio.sleep(600 + 2 * PASS_S)
        assert lab.cloud.machines == {}
        await lab.set_node(name, ready=False)
        await asyncio.sleep(3 * PASS_S)
        assert await lab.node(name) is None


@virtual
async def test_a_machine_is_deleted_when_it_was_found_twice_and_not_before_it_is_ten_minutes_old() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = await leaked(lab)
        for _ in range(3):
            await asyncio.sleep(PASS_S)
            assert name in lab.cloud.machines
        await asyncio.sleep(PASS_S)
        assert name not in lab.cloud.machines
        assert len(lab.cloud.machines) == 1, "the one with an object stays"
        assert lab.sample("holdfast_leaked_machines_total", zone="us-central1-a") == 1


@virtual
async def test_the_count_of_leaked_machines_begins_at_zero_in_time_for_an_alert() -> None:
    """Prometheus' `increase` does not see a counter that starts at one."""
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await leaked(lab, zone="us-central1-b")
        seen = [lab.sample("holdfast_leaked_machines_total", zone="us-central1-b")]
        while seen[-1] != 1:
            await asyncio.sleep(60)
            seen.append(lab.sample("holdfast_leaked_machines_total", zone="us-central1-b"))
        assert seen.count(0) >= INTERVAL_S // 60


class NewerObjects:
    """A cluster whose ProvisionedInstances do not fit the operator's model, as after a downgrade of the operator."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def list(self, resource: Resource[Any], **selectors: Any) -> Listing[Any]:
        found: Listing[Any] = await self._cluster.list(resource, **selectors)
        return structs.replace(found, items=()) if resource.model is ProvisionedInstance else found


@virtual
async def test_a_machine_whose_object_can_not_be_read_is_left_alone_and_its_node_too() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        await lab.stop()
        real, newer = lab.cluster, cast("Any", NewerObjects(lab.cluster))
        lab.cluster = newer
        lab.start()
        await asyncio.sleep(600 + 3 * PASS_S)
        assert list(lab.cloud.machines) == [name]
        lab.cloud.machines.clear()
        await lab.set_node(name, ready=False)
        await asyncio.sleep(3 * PASS_S)
        assert await lab.node(name) is not None
        await lab.stop()
        lab.cluster = real


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster_uid": "another cluster's"},
        {"uid": ""},
        {"name": "holdfast-by-hand"},
    ],
)
def test_what_is_not_certainly_ours_is_left_alone(changes: dict[str, Any]) -> None:
    @virtual
    async def swept() -> None:
        async with machine_lab() as lab:
            await lab.order()
            await lab.until_serving()
            name = await leaked(lab, **changes)
            await asyncio.sleep(8 * PASS_S)
            assert name in lab.cloud.machines

    swept()


@virtual
async def test_so_many_machines_are_deleted_in_one_pass_and_no_more() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        for number in range(MOST_DELETED + 5):
            await leaked(lab, number)
        lab.cloud.takes_s["delete"] = 30
        await asyncio.sleep(4 * PASS_S + 60)
        assert len(lab.cloud.machines) == 1 + 5
        await asyncio.sleep(PASS_S)
        assert len(lab.cloud.machines) == 1


@virtual
async def test_a_project_without_any_object_is_remembered_until_it_is_empty() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        await force_delete(lab)
        await lab.set_node(name, ready=False)
        found = await lab.cluster.get(CONFIG_MAPS, Key(HOME, NAME))
        (entry,) = found.data.values()
        assert entry == '{"project":"lab-project","namespace":"ml","secret":{"name":"gcp"}}'
        await asyncio.sleep(600 + 5 * PASS_S)
        assert lab.cloud.machines == {}
        assert (await lab.cluster.get(CONFIG_MAPS, Key(HOME, NAME))).data == {}
        calls = lab.cloud.calls["list"]
        await asyncio.sleep(3 * PASS_S)
        assert lab.cloud.calls["list"] == calls


class EarlierObjects(NewerObjects):
    """Once it `is_late`, lists lack the ProvisionedInstances: they were read before these were made."""

    is_late = False

    async def list(self, resource: Resource[Any], **selectors: Any) -> Listing[Any]:
        found: Listing[Any] = await self._cluster.list(resource, **selectors)
        is_lacking = self.is_late and resource.plural == PROVISIONED_INSTANCES.plural
        return structs.replace(found, items=()) if is_lacking else found


@virtual
async def test_a_project_is_remembered_though_its_object_came_while_a_sweep_was_under_way() -> None:
    async with machine_lab(running=False) as lab:
        real, earlier = lab.cluster, EarlierObjects(lab.cluster)
        lab.cluster = cast("Any", earlier)
        lab.start()
        lab.cloud.takes_s["launch"] = 100_000
        await lab.order()
        await lab.until_phase("Launch")
        earlier.is_late = True
        await asyncio.sleep(3 * PASS_S)
        assert (await real.get(CONFIG_MAPS, Key(HOME, NAME))).data != {}
        await lab.stop()
        lab.cluster = real


@virtual
async def test_a_project_is_remembered_before_the_first_machine_is_made_there() -> None:
    async with machine_lab() as lab:
        seen: list[bool] = []

        async def look(spec: MachineSpec) -> None:
            try:
                seen.append(bool((await lab.cluster.get(CONFIG_MAPS, Key(HOME, NAME))).data))
            except NotFound:
                seen.append(False)
            await lab.boot(spec)

        lab.cloud.on_running = look
        await lab.order()
        await lab.until_serving()
        assert seen == [True]


@virtual
async def test_an_object_whose_end_is_written_does_not_hold_a_machine_that_came_up_later() -> None:
    async with machine_lab() as lab:
        lab.cloud.sold_out.add("us-central1-a")
        it = await lab.order()
        await lab.until_ended()
        lab.cloud.sold_out.clear()
        ghost = await leaked(lab, uid=it.metadata.uid, name=machine_name(it.metadata.uid))
        await asyncio.sleep(600 + 2 * PASS_S)
        assert ghost not in lab.cloud.machines


async def lost_node(lab: MachineLab) -> str:
    name = machine_name("00000000-0000-4000-8000-000000000009")
    await lab.add_node(name, labels={"holdfast.dev/instance": "00000000-0000-4000-8000-000000000009"})
    await lab.set_node(name, ready=False)
    return name


@virtual
async def test_a_node_whose_machine_and_object_are_gone_goes() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = await lost_node(lab)
        await asyncio.sleep(600 + 2 * PASS_S)
        assert await lab.node(name) is None
        assert len((await lab.cluster.list(NODES)).items) == 1


@pytest.mark.parametrize(("project", "goes"), [("lab-project", True), ("other", False), ("", False)])
def test_a_project_that_does_not_answer_holds_the_nodes_of_its_own_machines_alone(project: str, goes: bool) -> None:
    """Such as one whose Secret is gone for good."""

    @virtual
    async def swept() -> None:
        async with machine_lab() as lab:
            await lab.order()
            await lab.until_serving()
            await lab.projects.add(
                MachineProject(project="other", namespace=NAMESPACE, secret=ObjectReference(name="gone"))
            )
            name = await lost_node(lab)
            if project:
                body = {"spec": {"providerID": f"gce://{project}/us-central1-b/{name}"}}
                await lab.cluster.patch(NODES, Key("", name), body)
            await asyncio.sleep(600 + 3 * PASS_S)
            assert (await lab.node(name) is None) == goes

    swept()


@pytest.mark.parametrize("reason", ["zone", "cloud", "kubelet", "credential", "machine"])
def test_a_node_stays_where_its_machine_may_be_there(reason: str) -> None:
    @virtual
    async def swept() -> None:
        async with machine_lab() as lab:
            await lab.order()
            await lab.until_serving()
            name = await lost_node(lab)
            match reason:
                case "zone":
                    lab.cloud.unreachable.add("us-central1-b")
                case "cloud":
                    lab.cloud.errors["list"] = DOWN
                case "kubelet":
                    await lab.set_node(name, ready=True)
                case "credential":
                    await lab.projects.add(
                        MachineProject(project="other", namespace=NAMESPACE, secret=ObjectReference(name="gone"))
                    )
                case "machine":
                    await leaked(lab, 9)
                    await lab.order("m2", zone="us-central1-b")
            await asyncio.sleep(600 + 4 * PASS_S)
            assert await lab.node(name) is not None

    swept()


@virtual
async def test_a_zone_that_does_not_answer_once_begins_the_count_anew() -> None:
    async with machine_lab() as lab:
        await lab.order(zone="us-central1-b")
        await lab.until_serving()
        name = await leaked(lab)
        await asyncio.sleep(600 + PASS_S / 2)
        lab.cloud.unreachable.add("us-central1-a")
        await asyncio.sleep(PASS_S)
        lab.cloud.unreachable.clear()
        await asyncio.sleep(PASS_S)
        assert name in lab.cloud.machines
        await asyncio.sleep(PASS_S)
        assert name not in lab.cloud.machines


@virtual
async def test_a_machine_that_can_not_be_deleted_now_does_not_hold_up_the_others() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await leaked(lab, 1)
        lab.cloud.errors["delete"] = DOWN
        await asyncio.sleep(600 + 3 * PASS_S)
        lab.cloud.errors.clear()
        await leaked(lab, 2)
        await asyncio.sleep(600 + 3 * PASS_S)
        assert len(lab.cloud.machines) == 1


@virtual
async def test_a_node_that_carries_our_label_under_another_name_is_left_alone() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await lab.add_node("worker-7", labels={"holdfast.dev/instance": "00000000-0000-4000-8000-000000000009"})
        await lab.set_node("worker-7", ready=False)
        await asyncio.sleep(600 + 4 * PASS_S)
        assert await lab.node("worker-7") is not None


@virtual
async def test_projects_are_known_from_objects_too() -> None:
    """The ConfigMap may be deleted by hand."""
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await lab.cluster.delete(CONFIG_MAPS, Key(HOME, NAME))
        name = await leaked(lab)
        await asyncio.sleep(600 + 3 * PASS_S)
        assert name not in lab.cloud.machines


@virtual
async def test_where_nothing_was_ever_made_nobody_is_asked() -> None:
    async with machine_lab() as lab:
        await asyncio.sleep(3 * PASS_S)
        assert lab.cloud.calls == {}
