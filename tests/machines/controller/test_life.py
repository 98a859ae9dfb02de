"""Machines from the order to the end, on the embedded engine."""

import asyncio
from collections import Counter

from holdfast.api.meta import Key
from holdfast.cluster.resources import NODES, PROVISIONED_INSTANCES
from holdfast.machines.snapshot import MachineTiming
from holdfast.providers.protocol import MachineSpec
from tests.machines.controller.dying import Process
from tests.machines.controller.lab import NAMESPACE, condition, machine_lab, status
from tests.runtime.virtual import virtual


@virtual
async def test_an_ordered_machine_joins_gets_ready_and_is_reserved_for_its_job() -> None:
    async with machine_lab() as lab:
        job = await lab.job()
        await lab.order(job_uid=job, jobRef={"name": "bert"}, zone="us-central1-b")
        it = await lab.until_serving()
        name = lab.cloud.only()
        assert [condition(it, kind)[0] for kind in ("Launched", "Joined", "GPUReady")] == ["True"] * 3
        assert (status(it).instance_name, status(it).node_name, status(it).zone) == (name, name, "us-central1-b")
        assert (status(it).instance_id, status(it).internal_ip, status(it).state) == ("1", "10.0.0.1", "RUNNING")
        spec = lab.cloud.specs[name]
        assert (spec.zone, spec.job, spec.gpu_count, spec.preemptible) == ("us-central1-b", "bert", 2, True)
        node = await lab.node(name)
        assert node is not None
        assert [(t.key, t.value, t.effect) for t in node.spec.taints] == [("holdfast.dev/reserved", job, "NoSchedule")]
        assert node.metadata.labels == {"holdfast.dev/spot": "true", "holdfast.dev/instance": it.metadata.uid}
        assert lab.cloud.calls["launch"] == 1


@virtual
async def test_a_machine_is_logged_in_to_at_its_internal_address_first() -> None:
    async with machine_lab() as lab:
        lab.cloud.external_ip, lab.boots = "192.0.2.1", False
        await lab.order()
        await lab.until(lambda _: lab.joiner.joined)
        assert [request.addresses for request in lab.joiner.joined] == [("10.0.0.1", "192.0.2.1")]


@virtual
async def test_a_deleted_object_goes_when_its_machine_and_its_node_are_gone() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        lab.cloud.takes_s["delete"] = 30
        await lab.delete()
        await asyncio.sleep(20)
        assert await lab.find() is not None
        await lab.until_absent()
        assert lab.cloud.machines == {}
        assert await lab.node(name) is None
        assert lab.cloud.calls["delete"] == 1


@virtual
async def test_a_machine_that_serves_costs_no_write_and_no_call_of_its_own() -> None:
    async with machine_lab() as lab:
        for number in range(5):
            await lab.order(f"m{number}")
        for number in range(5):
            await lab.until_serving(f"m{number}")
        await asyncio.sleep(60)
        versions = await lab.cluster.list(PROVISIONED_INSTANCES)
        before = lab.cloud.calls.copy()
        await asyncio.sleep(600)
        assert await lab.cluster.list(PROVISIONED_INSTANCES) == versions
        assert (lab.cloud.calls - before).keys() == {"list"}
        assert (lab.cloud.calls - before)["list"] <= 600 / 15 + 3, "the poller's, and those of the sweep"


@virtual
async def test_the_mark_of_a_node_is_in_status_at_once_and_the_machine_ends_when_it_is_gone() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        await lab.set_node(name, marked="Google takes this node back")
        it = await lab.until(lambda it: condition(it, "Preempted")[0] == "True", within_s=2)
        assert (status(it).phase, status(it).message) == ("Serve", "Google takes this node back")
        assert status(it).preemption_notice
        lab.cloud.take_back(name)
        it = await lab.until_ended(within_s=30)
        assert condition(it, "Preempted") == ("True", "TakenBack")
        assert await lab.node(name) is None
        assert "delete" not in lab.cloud.calls, "nothing is left to be deleted"


@virtual
async def test_the_list_shows_a_machine_that_was_taken_back_without_a_word() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.cloud.take_back(lab.cloud.only())
        it = await lab.until_ended(within_s=20)
        assert condition(it, "Preempted") == ("True", "TakenBack")
        assert (lab.cloud.calls["get"], lab.cloud.calls["is_preempted"]) == (0, 1)


@virtual
async def test_a_silent_node_has_the_cloud_asked_at_once() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        await lab.set_node(name, ready=False)
        await asyncio.sleep(5)
        assert lab.cloud.calls["get"] == 1
        assert status(await lab.get()).phase == "Serve", "the machine runs"
        await lab.set_node(name, ready=True)
        await asyncio.sleep(5)
        lab.cloud.take_back(name)
        await lab.set_node(name, ready=False)
        it = await lab.until_ended(within_s=3)
        assert condition(it, "Preempted") == ("True", "TakenBack")


@virtual
async def test_a_machine_that_somebody_deletes_is_not_called_preempted() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.cloud.lose(lab.cloud.only())
        it = await lab.until_ended(within_s=20)
        assert condition(it, "Preempted") == ("False", "MachineDeleted")


@virtual
async def test_a_machine_that_was_stopped_is_deleted() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.cloud.stop(lab.cloud.only())
        it = await lab.until_ended(within_s=20)
        assert (condition(it, "Preempted"), lab.cloud.machines) == (("False", "MachineStopped"), {})


@virtual
async def test_a_machine_whose_node_somebody_deletes_is_given_back() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await lab.cluster.delete(NODES, Key("", lab.cloud.only()))
        it = await lab.until_ended(within_s=10)
        assert (condition(it, "Joined"), lab.cloud.machines) == (("False", "NodeDeleted"), {})


@virtual
async def test_a_restarted_operator_goes_on_and_makes_nothing_twice() -> None:
    async with machine_lab() as lab:
        lab.boots = False
        await lab.order()
        await lab.until_phase("Join")
        await lab.restart()
        await asyncio.sleep(5)
        name = lab.cloud.only()
        await lab.add_node(name)
        await lab.until_serving()
        await lab.restart()
        await asyncio.sleep(30)
        assert (status(await lab.get()).phase, list(lab.cloud.machines)) == ("Serve", [name])
        assert lab.cloud.calls["launch"] == 1


@virtual
async def test_every_step_that_matters_is_an_event() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.cloud.take_back(lab.cloud.only())
        await lab.until_ended()
        await asyncio.sleep(1)
        assert await lab.event_reasons() == ["GPUReady", "Joined", "Launched", "Preempted"]


@virtual
async def test_the_operators_own_identity_serves_only_the_namespaces_that_are_named() -> None:
    async with machine_lab(running=False) as lab:
        lab.start()
        await lab.order(credentialsSecretRef=None, project="lab-project")
        it = await lab.until_phase("Launch")
        assert condition(it, "Launched") == ("False", "CredentialMissing")
        lab.own_identity = (NAMESPACE,)
        await lab.restart()
        await lab.until_serving()


@virtual
async def test_a_machine_that_starts_within_seconds_costs_few_steps() -> None:
    """The object: asked for, made, ready. The Node: its labels and taint. The template: finalizer and accounts."""
    async with machine_lab(running=False) as lab:

        async def boot_later(spec: MachineSpec) -> None:
            asyncio.get_running_loop().call_later(4, lambda: kubelets.append(asyncio.create_task(lab.boot(spec))))

        kubelets: list[asyncio.Task[None]] = []
        lab.cloud.on_running = boot_later
        process = Process()
        lab.start(process, timing=MachineTiming())
        await lab.order()
        await lab.until_serving()
        assert Counter(step for step in process.steps if "events" not in step) == {
            "patch spotinstancevms": 1,
            "patch_status spotinstancevms": 1,
            "create configmaps": 1,
            "launch machine": 1,
            "patch_status provisionedinstances": 3,
            "patch nodes": 1,
        }
