"""What goes wrong with machines, and what must happen then."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.machine_ends import is_gone
from holdfast.api.meta import Key
from holdfast.cluster.resources import PROVISIONED_INSTANCES, SECRETS, SPOT_INSTANCE_VMS
from holdfast.machines.background import AT_ONCE
from holdfast.machines.joining import JoinFailed, JoinStep
from holdfast.machines.snapshot import MachineTiming
from holdfast.providers.errors import CloudUnauthorized, InvalidMachine, ProviderError, QuotaExceeded, RateLimited
from holdfast.providers.protocol import Machine, MachineSpec
from holdfast.scheduling.machine_pools import Resting, ZoneChoice, machine_request
from tests.machines.controller import lab as lab_module
from tests.machines.controller.lab import NAMESPACE, condition, machine_lab, now, status
from tests.machines.fake_cloud import DOWN, FakeCloud
from tests.runtime.virtual import virtual

SECRET = Key(NAMESPACE, "gcp")


# The launch.


@virtual
async def test_a_zone_that_is_sold_out_ends_the_object_and_pools_rest() -> None:
    async with machine_lab() as lab:
        lab.cloud.sold_out.add("us-central1-a")
        await lab.order()
        it = await lab.until_ended()
        assert condition(it, "Launched") == ("False", "Stockout")
        assert "us-central1-a has no n1-standard-4 to spare" in (status(it).message or "")
        assert "delete" not in lab.cloud.calls
        request = machine_request(await lab.vm(), spot=True)
        assert lab.pools.choose(request, now(), by="next").zone == "us-central1-b"  # type: ignore[union-attr]
        await lab.delete()
        await lab.until_absent()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QuotaExceeded("quota NVIDIA_T4_GPUS is 0", quota="NVIDIA_T4_GPUS", scope="global"), "QuotaExceeded"),
        (InvalidMachine("no image of that name: correct vmImage", field="vmImage"), "Invalid"),
    ],
)
def test_what_no_zone_can_mend_is_said_at_once_and_everything_rests(error: Exception, reason: str) -> None:
    @virtual
    async def refused() -> None:
        async with machine_lab() as lab:
            lab.cloud.errors["launch"] = error
            await lab.order()
            it = await lab.until_ended(within_s=5)
            assert (condition(it, "Launched")[1], str(error) in (status(it).message or "")) == (reason, True)
            resting = lab.pools.choose(machine_request(await lab.vm(), spot=True), now(), by="next")
            assert isinstance(resting, Resting)
            assert str(error) in resting.message

    refused()


@virtual
async def test_what_a_zone_lacks_for_a_template_is_asked_for_again_once_the_template_is_corrected() -> None:
    async with machine_lab() as lab:
        lab.cloud.errors["launch"] = InvalidMachine("no subnetwork gpus: correct gcp.subnetwork", scope="zone")
        await lab.order()
        await lab.until_ended()
        template = await lab.vm()
        assert lab.pools.choose(machine_request(template, spot=True), now(), by="next") == ZoneChoice("us-central1-b")
        meta = structs.replace(template.metadata, generation=template.metadata.generation + 1)
        corrected = machine_request(structs.replace(template, metadata=meta), spot=True)
        assert lab.pools.choose(corrected, now(), by="next") == ZoneChoice("us-central1-a")


@pytest.mark.parametrize("error", [DOWN, RateLimited("slow down", retry_after_s=20), TimeoutError("no answer")])
def test_a_machine_whose_launch_was_not_answered_is_found_and_there_is_one(error: Exception) -> None:
    @virtual
    async def unanswered() -> None:
        async with machine_lab() as lab:

            async def lose_the_answer(spec: MachineSpec) -> None:
                lab.cloud.on_running = lab.boot
                await lab.boot(spec)
                raise error

            lab.cloud.on_running = lose_the_answer
            await lab.order()
            await lab.until_serving()
            assert (len(lab.cloud.specs), len(lab.cloud.machines)) == (1, 1)

    unanswered()


@virtual
async def test_a_refused_machine_whose_object_is_deleted_leaves_nothing() -> None:
    async with machine_lab() as lab:
        lab.cloud.sold_out.add("us-central1-a")
        lab.cloud.takes_s["launch"] = 5
        await lab.order()
        await lab.until_phase("Launch")
        await lab.delete()
        await lab.until_absent()
        assert lab.cloud.specs == {}


@virtual
async def test_an_object_that_is_deleted_while_its_machine_is_made_waits_for_it_and_deletes_it() -> None:
    async with machine_lab() as lab:
        lab.cloud.takes_s["launch"] = 60
        await lab.order()
        await lab.until_phase("Launch")
        await lab.delete()
        await asyncio.sleep(30)
        assert await lab.find() is not None
        await lab.until_absent()
        assert (len(lab.cloud.specs), lab.cloud.machines) == (1, {})


@virtual
async def test_objects_that_are_deleted_before_their_turn_make_no_machine() -> None:
    async with machine_lab() as lab:
        lab.cloud.takes_s["launch"] = 60
        names = [f"m{number:02}" for number in range(AT_ONCE + 10)]
        for name in names:
            await lab.order(name)
        await asyncio.sleep(10)
        for name in names:
            await lab.delete(name)
        for name in names:
            await lab.until_absent(name)
        assert (len(lab.cloud.specs), lab.cloud.machines) == (AT_ONCE, {})


@virtual
async def test_a_launch_that_is_never_answered_is_given_up_and_nothing_is_left() -> None:
    async with machine_lab() as lab:
        lab.cloud.takes_s["launch"] = 10_000
        await lab.order()
        it = await lab.until_ended()
        assert condition(it, "Launched") == ("False", "TimedOut")
        assert lab.cloud.calls["delete"] == 1


@virtual
async def test_a_machine_that_ended_while_the_operator_was_away_is_not_made_again() -> None:
    async with machine_lab() as lab:
        lab.cloud.takes_s["launch"] = 5
        await lab.order()
        await lab.until_phase("Launch")
        await asyncio.sleep(5.5)
        await lab.stop()
        lab.cloud.take_back(lab.cloud.only())
        await asyncio.sleep(3600)
        lab.start()
        it = await lab.until_ended()
        assert condition(it, "Preempted") == ("True", "TakenBack")
        assert len(lab.cloud.specs) == 1


@virtual
async def test_a_template_that_comes_late_is_used() -> None:
    async with machine_lab() as lab:
        await lab.order(vmRef={"name": "later"})
        it = await lab.until_phase("Launch")
        assert status(it).message == "there is no SpotInstanceVM later to make a machine from: create it"
        await lab.template("later")
        await lab.until_serving()


# The join.


@pytest.mark.parametrize("step", [JoinStep.LOGIN, JoinStep.PREFLIGHT, JoinStep.KUBEADM])
def test_a_machine_that_does_not_join_is_given_back_with_the_last_words(step: JoinStep) -> None:
    @virtual
    async def failing() -> None:
        async with machine_lab() as lab:
            lab.boots = False
            lab.joiner.error = JoinFailed(step, "last words of the machine")
            await lab.order()
            it = await lab.until_ended(within_s=10)
            assert condition(it, "Joined") == ("False", step)
            assert "last words of the machine" in (status(it).message or "")
            assert lab.cloud.machines == {}
            assert len(lab.cloud.specs) == 1, "never repaired, never made again"
            assert lab.joiner.revoked
            assert lab.pools.choose(machine_request(await lab.vm(), spot=True), now(), by="next") == ZoneChoice(
                "us-central1-b"
            ), "the next one is made in another zone"

    failing()


@virtual
async def test_a_machine_that_is_taken_back_while_it_joins_was_preempted() -> None:
    async with machine_lab() as lab:
        lab.boots = False
        await lab.order()
        await lab.until_phase("Join")
        lab.cloud.take_back(lab.cloud.only())
        lab.joiner.error = JoinFailed(JoinStep.LOGIN, "the connection broke")
        it = await lab.until_ended()
        assert condition(it, "Preempted") == ("True", "TakenBack")


@virtual
async def test_a_node_under_another_name_is_none_of_this_machine() -> None:
    async with machine_lab() as lab:
        lab.node_name = lambda name: "ip-10-0-0-1"
        await lab.order()
        it = await lab.until_ended()
        assert condition(it, "Joined")[0] == "False"
        assert lab.cloud.machines == {}


@virtual
async def test_a_machine_without_its_gpus_is_given_back() -> None:
    async with machine_lab() as lab:
        lab.gpus = 1
        await lab.order()
        it = await lab.until_ended()
        assert lab.pools.choose(machine_request(await lab.vm(), spot=True), now(), by="next") == ZoneChoice(
            "us-central1-b"
        )
        assert condition(it, "GPUReady") == ("False", "GPUs")
        assert "offers 1 nvidia.com/gpu of 2" in (status(it).message or "")
        assert lab.cloud.machines == {}


@virtual
async def test_a_node_that_is_never_ready_is_given_back() -> None:
    async with machine_lab() as lab:

        async def boot(spec: MachineSpec) -> None:
            await lab.boot(spec)
            await lab.set_node(spec.name, ready=False)

        lab.cloud.on_running = boot
        await lab.order()
        it = await lab.until_ended()
        assert condition(it, "GPUReady") == ("False", "NodeReady")


# While machines serve.


@virtual
async def test_while_the_cloud_is_down_nothing_is_deleted_and_the_message_says_so() -> None:
    async with machine_lab() as lab:
        await lab.order()
        ready = status(await lab.until_serving()).message
        for method in ("list", "get", "is_preempted", "delete", "launch"):
            lab.cloud.errors[method] = DOWN
        await lab.set_node(lab.cloud.only(), ready=False)
        it = await lab.until(lambda it: "503" in (status(it).message or ""))
        assert "no list of machines since" in (status(it).message or "")
        await asyncio.sleep(3600)
        it = await lab.get()
        assert (status(it).phase, len(lab.cloud.machines)) == ("Serve", 1)
        lab.cloud.errors.clear()
        await lab.set_node(lab.cloud.only(), ready=True)
        await lab.until(lambda it: status(it).message == ready)


@virtual
async def test_machines_are_listed_again_once_a_revoked_key_is_replaced_however_long_that_takes() -> None:
    async with machine_lab() as lab:
        renewed = FakeCloud(now)
        renewed.machines = lab.cloud.machines
        lab.connect = lambda project, credential: renewed if credential == b"new" else lab.cloud
        await lab.order()
        await lab.until_serving()
        lab.cloud.errors["list"] = CloudUnauthorized("the key was revoked")
        await lab.until(lambda it: "no list of machines since" in (status(it).message or ""))
        await asyncio.sleep(3600)
        await lab.cluster.delete(SECRETS, SECRET)
        await lab.secret(content="new")
        await lab.until(lambda it: "no list of machines since" not in (status(it).message or ""), within_s=120)
        assert renewed.calls["list"]


@virtual
async def test_a_zone_that_does_not_answer_proves_nothing() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.cloud.unreachable.add("us-central1-a")
        await asyncio.sleep(1800)
        assert (status(await lab.get()).phase, lab.cloud.calls["get"]) == ("Serve", 0)


@virtual
async def test_a_preemption_while_the_operator_was_down_for_an_hour_ends_the_same() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        await lab.set_node(name, marked="soon")
        await lab.stop()
        lab.cloud.take_back(name)
        await lab.set_node(name, ready=False, marked="soon")
        await asyncio.sleep(3600)
        lab.start()
        it = await lab.until_ended()
        assert (condition(it, "Preempted"), len(lab.cloud.specs)) == (("True", "TakenBack"), 1)
        assert await lab.node(name) is None


@virtual
async def test_a_deleted_template_stays_as_long_as_machines_made_from_it_and_they_can_still_be_deleted() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await lab.cluster.delete(SPOT_INSTANCE_VMS, Key(NAMESPACE, "t4"))
        await asyncio.sleep(60)
        assert (await lab.vm()).metadata.deletion_timestamp
        await lab.delete()
        await lab.until_absent()
        await asyncio.sleep(30)
        assert (await lab.cluster.list(SPOT_INSTANCE_VMS)).items == ()
        assert lab.cloud.machines == {}


@pytest.mark.parametrize("phase", ["Launch", "Join", "GPUReady", "Serve"])
def test_an_object_that_is_deleted_in_any_phase_leaves_nothing(phase: str) -> None:
    @virtual
    async def deleted() -> None:
        async with machine_lab() as lab:
            if phase == "Launch":
                lab.cloud.takes_s["launch"] = 5
            lab.boots = phase in ("GPUReady", "Serve")
            lab.gpus = 1 if phase == "GPUReady" else 2
            await lab.order()
            await lab.until_phase(phase)
            await lab.delete()
            await lab.until_absent()
            assert (lab.cloud.machines, len(lab.cloud.specs)) == ({}, 1)
            assert bool(lab.joiner.revoked) == (phase != "Launch")

    deleted()


@virtual
async def test_an_object_with_a_defect_in_its_life_does_not_stop_the_others() -> None:
    async with machine_lab() as lab:

        class Defective(FakeCloud):
            async def launch(self, spec: MachineSpec) -> Machine:
                raise AttributeError("a defect")

        broken: Any = Defective(now)
        lab.connect = lambda project, credential: broken if project == "other-project" else lab.cloud
        await lab.order("bad", project="other-project")
        await lab.order("good")
        await lab.until_serving("good")
        it = await lab.until_ended("bad", within_s=4000)
        assert condition(it, "Launched") == ("False", "TimedOut")


@virtual
async def test_a_delete_that_fails_is_tried_until_it_succeeds() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.cloud.errors["delete"] = ProviderError("the cloud answers 500")
        await lab.delete()
        it = await lab.until(lambda it: "the cloud answers 500" in (status(it).message or ""))
        assert not is_gone(it)
        lab.cloud.errors.clear()
        await lab.until_absent()
        assert lab.cloud.machines == {}


def put_the_clock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_module, "BEGINNING", lab_module.BEGINNING - timedelta(days=1))


@virtual
async def test_a_delete_that_failed_is_tried_again_though_the_clock_was_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        lab.cloud.errors["delete"] = ProviderError("the cloud answers 500")
        await lab.delete()
        await lab.until(lambda it: "the cloud answers 500" in (status(it).message or ""))
        put_the_clock_back(monkeypatch)
        lab.cloud.errors.clear()
        await lab.until_absent(within_s=120)
        assert lab.cloud.machines == {}


@virtual
async def test_a_step_is_in_status_though_the_clock_was_put_back_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine_lab(running=False) as lab:
        lab.boots = False
        lab.start(timing=MachineTiming(settle_s=10))
        await lab.order()
        it = await lab.until(lambda it: condition(it, "Launched")[0] == "True")
        assert status(it).step == JoinStep.HOST_KEY
        await asyncio.sleep(1)
        put_the_clock_back(monkeypatch)
        await lab.until(lambda it: status(it).step == JoinStep.LOGIN, within_s=30)


@virtual
async def test_a_finalizer_that_is_missing_in_the_order_is_there_before_anything_is_made() -> None:
    async with machine_lab() as lab:
        finalizers: list[tuple[str, ...]] = []

        async def look(spec: MachineSpec) -> None:
            finalizers.append((await lab.get()).metadata.finalizers)
            await lab.boot(spec)

        lab.cloud.on_running = look
        body = {"metadata": {"name": "m"}, "spec": {"vmRef": {"name": "t4"}, "credentialsSecretRef": {"name": "gcp"}}}
        await lab.cluster.create(PROVISIONED_INSTANCES, body, namespace=NAMESPACE)
        await lab.until_serving()
        assert finalizers == [("training.dcnlab.com/machine",)]
