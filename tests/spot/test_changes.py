"""Users change their minds at any moment: nothing is left over, and nothing is made twice."""

import asyncio

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.resources import SPOT_INSTANCE_VMS
from tests.runtime.virtual import virtual
from tests.spot.moments import MOMENTS, Moment
from tests.spot.story import nothing_remains
from tests.spot.world import NAMESPACE, World, world

AT_ANY_MOMENT = pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
STEPS = 900.0


async def _succeeds(it: World) -> None:
    await it.until_phase("Succeeded", within_s=6000)
    await it.until_clean()
    await nothing_remains(it)


@AT_ANY_MOMENT
def test_a_job_that_is_deleted_leaves_nothing(moment: Moment) -> None:
    @virtual
    async def deleted() -> None:
        async with world() as it:
            await it.submit()
            await moment(it)
            await it.delete()
            await it.until_clean()
            assert not await it.objects()
            made = len(it.engine.made)
            await it.pass_time(1200)
            assert len(it.engine.made) == made, "nothing is made for a job that is gone"
            assert not await it.leftovers()

    deleted()


@AT_ANY_MOMENT
def test_a_job_that_is_suspended_gives_all_back_and_goes_on_later(moment: Moment) -> None:
    @virtual
    async def suspended() -> None:
        async with world() as it:
            it.kubelets.steps = STEPS
            await it.submit()
            await moment(it)
            await it.change(suspend=True)
            await it.until(lambda job: job.status.phase == "Suspended" and not job.status.active_replicas)
            await it.until_clean()
            made, saved = len(it.engine.made), it.images.newest
            await it.pass_time(1000)
            assert len(it.engine.made) == made
            await it.change(suspend=False)
            await it.until(lambda job: job.status.active_replicas == 2)
            steps = {it.training(replica).memory.steps for replica in (0, 1)}
            assert steps == {saved.steps}, "both go on from what was saved last"
            await _succeeds(it)

    suspended()


@AT_ANY_MOMENT
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_job_has_as_many_replicas_as_it_says_from_then_on(moment: Moment, replicas: int) -> None:
    @virtual
    async def changed() -> None:
        async with world() as it:
            it.kubelets.steps = STEPS
            await it.submit()
            await moment(it)
            await it.change(replicas=replicas)
            await it.until(lambda job: job.status.active_replicas == replicas)
            await it.wait_for(lambda: len(it.engine.machines) == replicas, "as many machines as replicas")
            assert len(it.kubelets.live()) == replicas
            await _succeeds(it)

    changed()


@AT_ANY_MOMENT
def test_a_template_that_is_deleted_stays_while_its_machines_do_and_the_job_says_what_it_lacks(moment: Moment) -> None:
    @virtual
    async def deleted() -> None:
        async with world() as it:
            it.kubelets.steps = STEPS
            await it.submit()
            await moment(it)
            await it.cluster.delete(SPOT_INSTANCE_VMS, Key(NAMESPACE, "t4"))
            await asyncio.sleep(600)
            job = await it.job()
            if job.status.phase != "Succeeded" and job.status.active_replicas < 2:
                assert "t4" in job.message, job.message
            for _ in range(200):  # made anew once the old one is gone
                await asyncio.sleep(10)
                if (await it.job()).status.phase == "Succeeded":
                    break
                if not (await it.cluster.list(SPOT_INSTANCE_VMS, namespace=NAMESPACE)).items:
                    await it.template()
            await _succeeds(it)

    deleted()
