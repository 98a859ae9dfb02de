"""Faults that cross kinds: the registry, the survivor, the cloud, the operator, and what others do to the cluster."""

import asyncio

import pytest

from holdfast.api.machine_ends import status_of
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import EVENTS, PODS, PROVISIONED_INSTANCES, SECRETS
from tests.runtime.virtual import virtual
from tests.spot.computers import GPU, HOME
from tests.spot.moments import MOMENTS, Moment, both_lost, recovering, running, saved, warned
from tests.spot.story import end_of, nothing_remains
from tests.spot.world import NAMESPACE, TEMPLATE, World, world

HOUR_S = 3600.0
STEPS = 900.0


async def succeeds(it: World) -> None:
    await it.until_phase("Succeeded", within_s=9000)
    await it.until_clean()
    await nothing_remains(it)


async def warnings(it: World) -> str:
    await it.pass_time(5)
    found = (await it.cluster.list(EVENTS, namespace=NAMESPACE)).items
    return "\n".join(f"{each.reason}: {each.message}" for each in found if each.type == "Warning")


# The registry, and the survivor.


@virtual
async def test_while_the_registry_is_down_the_job_says_so_and_then_goes_on_from_the_newest_image() -> None:
    async with world() as it:
        it.kubelets.steps = 2 * HOUR_S
        it.agents.push_s = 30
        await it.submit()
        await saved(it)
        newest, it.images.problem = it.images.newest, "registry.example.com does not answer"
        it.preempt(0, 1)
        await it.until_says("registry.example.com does not answer")
        await it.pass_time(HOUR_S / 2)
        assert not it.kubelets.live()
        assert len(it.engine.machines) == 2, "the machines wait"
        it.images.problem = ""
        await it.until_running(1, 1)
        assert {each.memory for each in it.kubelets.live()} == {newest}


async def break_saves(it: World, how: str) -> None:
    match how:
        case "fails":
            it.agents.fails = "no space left on device"
        case "hangs":
            it.agents.hangs = True
        case "no agent":
            it.agents.are_there = False
            for pod in await it.listed(PODS, HOME):
                await it.cluster.delete(PODS, pod.metadata.key)
            it.computers.has_agents = False


@pytest.mark.parametrize("how", ["fails", "hangs", "no agent"])
def test_without_a_checkpoint_of_the_survivor_the_newest_image_is_restored(how: str) -> None:
    @virtual
    async def told() -> None:
        async with world() as it:
            await it.submit()
            await saved(it)
            newest = it.images.newest
            await break_saves(it, how)
            it.preempt(0)
            job = await it.until_running(1, 0)
            assert it.training(0).memory == newest
            assert [each.source for each in job.status.recoveries] == ["repository"]
            assert job.reason("Checkpointed") == "CheckpointFailed"
            assert "checkpoint" in job.said("Checkpointed")

    told()


@pytest.mark.parametrize("how", ["fails", "hangs", "no agent"])
def test_without_any_image_it_begins_anew_and_says_so(how: str) -> None:
    @virtual
    async def told() -> None:
        async with world() as it:
            await it.submit()
            await running(it)
            await break_saves(it, how)
            it.preempt(0)
            job = await it.until_running(1, 0)
            assert it.training(0).memory.born == it.training(0).pod.name, "it began there"
            assert [each.source for each in job.status.recoveries] == ["start"]
            assert "start" in await warnings(it)

    told()


@virtual
async def test_an_image_that_can_not_be_restored_is_set_aside_and_the_one_before_is_used() -> None:
    async with world() as it:
        it.agents.push_s = 30
        await it.submit()
        await it.until(lambda job: len(it.images.memories) == 2, what="saved twice")
        await it.pass_time(60)
        older, newer = it.images.memories
        it.kubelets.refuses.add(newer)
        it.preempt(0, 1)
        await it.until(lambda job: not job.status.active_replicas)
        await it.until(lambda job: job.status.active_replicas == 2 and job.status.phase == "Running")
        assert {it.training(replica).image for replica in (0, 1)} == {older}
        restarts = (await it.job()).status.restarts
        assert restarts is not None
        assert (restarts.application, restarts.out_of_memory) == (0, 0), "an image is no failure of the training"


@pytest.mark.parametrize("moment", [warned, recovering], ids=["at the notice", "while the machine is made"])
def test_when_the_survivor_succeeds_meanwhile_the_replacement_is_called_off(moment: Moment) -> None:
    @virtual
    async def told() -> None:
        async with world() as it:
            await it.submit()
            await moment(it)
            await it.kubelets.end(it.training(1).pod, exit_code=0)
            await it.until_phase("Succeeded")
            await it.until_clean()
            assert len(it.kubelets.started) == 2, "nothing is restored any more"
            await nothing_remains(it)

    told()


# Free GPUs.


@virtual
async def test_free_gpus_take_a_lost_replica_but_not_before_it_has_stopped_on_its_old_machine() -> None:
    async with world(template={"gcp": {**TEMPLATE["gcp"], "preemptionNotice": "120s"}}) as it:
        await it.submit()
        await running(it)
        await it.computers.add_node("workstation", gpus=1)
        it.preempt(0)
        await it.until_running(1, 0)
        assert it.training(0).node == "workstation"
        assert it.engine.count("instances.insert") == 2, "no machine is made for what is there"
        it.check()


# The new machine.


@virtual
async def test_a_pod_that_takes_the_new_gpus_first_is_named_and_no_second_machine_is_made() -> None:
    async with world() as it:
        it.kubelets.steps = 3 * HOUR_S
        await it.submit()
        await running(it)
        it.computers.on_joined = lambda name: asyncio.ensure_future(_intrude(it, name))
        it.preempt(0)
        await it.until_says(f"pod {NAMESPACE}/intruder")
        await it.pass_time(HOUR_S)
        assert it.engine.count("instances.insert") == 3
        it.computers.on_joined = lambda name: None
        await it.cluster.delete(PODS, Key(NAMESPACE, "intruder"))
        await it.until_running(1, 0)
        assert it.engine.count("instances.insert") == 3


async def _intrude(it: World, node: str) -> None:
    limits = {"limits": {GPU: "1"}}
    spec: JSON = {"nodeName": node, "containers": [{"name": "it", "image": "i", "resources": limits}]}
    await it.cluster.create(PODS, {"metadata": {"name": "intruder"}, "spec": spec}, namespace=NAMESPACE)


@virtual
async def test_a_zone_without_stock_is_followed_by_the_next_and_all_of_them_are_said() -> None:
    async with world() as it:
        it.kubelets.steps = STEPS
        it.engine.supply.sold_out |= {"us-central1-a", "us-central1-b"}
        await it.submit(replicas=1)
        job = await it.until_says("us-central1-b")
        assert "us-central1-a" in job.message
        await it.pass_time(HOUR_S)
        refused = len(it.engine.made)
        assert refused <= 24, "pools rest longer and longer"
        it.engine.supply.sold_out.clear()
        await it.until_running(0)
        assert len(it.engine.machines) == 1
        await succeeds(it)


# The cloud.


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
def test_google_down_for_an_hour_deletes_nothing_that_runs(moment: Moment) -> None:
    @virtual
    async def told() -> None:
        async with world() as it:
            it.kubelets.steps = 3 * HOUR_S
            await it.submit()
            await moment(it)
            ran = {each.pod for each in it.kubelets.live()}
            it.engine.is_down = True
            await it.pass_time(HOUR_S)
            doomed = {each.pod for each in it.kubelets.started if it.took_back(each)}
            assert ran - doomed <= {each.pod for each in it.kubelets.live()}
            it.engine.is_down = False
            await it.until(lambda job: job.status.active_replicas == 2 and job.status.phase == "Running")
            await it.wait_for(lambda: len(it.engine.machines) == 2, "two machines for two replicas")
            await it.delete()
            await it.until_clean()

    told()


@virtual
async def test_a_job_without_machines_says_that_google_is_down() -> None:
    async with world() as it:
        it.engine.is_down = True
        await it.submit()
        job = await it.until_says("The service is currently unavailable")
        assert job.reason("Provisioning") == "Retrying"
        await it.pass_time(HOUR_S)
        assert not it.engine.made
        it.engine.is_down = False
        await it.until_running(0, 0)
        assert len(it.engine.machines) == 2


# The operator.


@pytest.mark.parametrize("moment", [warned, recovering, both_lost], ids=["warned", "recovering", "both lost"])
def test_an_operator_that_is_away_for_an_hour_ends_where_others_end(moment: Moment) -> None:
    @virtual
    async def told() -> None:
        async with world(away_s=HOUR_S) as it:
            it.kubelets.steps = 3 * HOUR_S
            await it.submit()
            await moment(it)
            await it.kill()
            await it.pass_time(HOUR_S + 60)
            assert it.deaths == 1
            await it.until(lambda job: job.status.active_replicas == 2 and job.status.phase == "Running")
            end = await end_of(it)
            assert set(end.machines_per_need.values()) == {1}
            assert {need for need in end.machines_per_need if need[1] == 0} == {(0, 0), (1, 0)}
            await it.wait_for(lambda: len(it.engine.machines) == 2, "what was taken back is gone")
            await it.delete()
            await it.until_clean()

    told()


# What others do.


@virtual
async def test_the_machine_of_an_object_that_was_forced_away_is_found_by_the_sweep() -> None:
    async with world() as it:
        it.kubelets.steps = 3 * HOUR_S
        await it.submit()
        await running(it)
        lost = it.training(0)
        order = it.history.objects[lost.node]
        key = Key(NAMESPACE, order)
        await it.stop()
        await it.cluster.patch(PROVISIONED_INSTANCES, key, {"metadata": {"finalizers": None}})
        await it.cluster.delete(PROVISIONED_INSTANCES, key)
        it.start()

        async def swept() -> bool:
            return lost.node not in {each.name for each in it.engine.machines.values()}

        await it.wait_for(swept, "the sweep has found the machine", within_s=HOUR_S)
        await it.until(lambda job: job.status.active_replicas == 2 and job.status.phase == "Running")
        await it.delete()
        await it.until_clean()


@virtual
async def test_machines_are_given_back_though_their_secret_is_gone() -> None:
    async with world() as it:
        await it.submit()
        await running(it)
        await it.cluster.delete(SECRETS, Key(NAMESPACE, "gcp"))
        await it.pass_time(600)
        assert len(it.kubelets.live()) == 2
        await it.delete()
        await it.until_clean()


@virtual
async def test_a_new_operator_without_the_secret_names_the_machine_and_goes_on_when_it_is_back() -> None:
    async with world() as it:
        await it.submit()
        await running(it)
        await it.cluster.delete(SECRETS, Key(NAMESPACE, "gcp"))
        await it.stop()
        it.start()
        await it.delete()
        await it.pass_time(600)
        assert len(it.engine.machines) == 2
        for order in (await it.orders()).values():
            said = status_of(order).message or ""
            assert all(
                word in said for word in (str(status_of(order).instance_name), "us-central1-a", "my-gcp-project")
            )
        await it.secret()
        await it.until_clean()


@virtual
async def test_a_job_whose_secret_is_missing_says_so_and_goes_on_when_it_is_there() -> None:
    async with world() as it:
        await it.cluster.delete(SECRETS, Key(NAMESPACE, "gcp"))
        await it.submit()
        job = await it.until_says("gcp")
        assert not job.holds("Provisioning")
        assert not it.engine.made
        await it.secret()
        await it.until_running(0, 0)
        assert len(it.engine.made) == 2
