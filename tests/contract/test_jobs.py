"""How an Indexed Job runs, succeeds, rests and ends."""

import asyncio

import pytest

from holdfast.api.core.objects import Job
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Change, Cluster, DeleteOptions, Propagation
from holdfast.cluster.resources import JOBS, PODS

from .kinds import JOBS as WHOLE_JOBS
from .kinds import PODS as WHOLE_PODS
from .pods import INDEX, indexed, job
from .pods import pod as lone_pod
from .pool import Pool
from .waiting import gone, listed, until
from .watching import follow, is_about


async def settled(cluster: Cluster, key: Key, condition: str) -> Job:
    return await until(cluster, JOBS, key, lambda j: j.condition(condition), f"is {condition}")


async def test_each_index_gets_a_pod_that_knows_its_number(pool: Pool) -> None:
    await pool.add()
    made = await pool.cluster.create(JOBS, indexed("one", pool.name, 3), namespace=pool.name)
    await pool.running(3)
    pods = sorted(
        (await pool.cluster.list(WHOLE_PODS, namespace=pool.name)).items, key=lambda p: p.metadata.labels[INDEX]
    )
    for number, pod in enumerate(pods):
        assert pod.metadata.labels[INDEX] == str(number)
        assert pod.metadata.annotations[INDEX] == str(number)
        assert pod.metadata.labels["batch.kubernetes.io/job-name"] == "one"
        assert pod.metadata.labels["batch.kubernetes.io/controller-uid"] == made.metadata.uid
        assert pod.metadata.name.startswith(f"one-{number}-")
        assert pod.metadata.finalizers == ("batch.kubernetes.io/job-tracking",)
        assert pod.spec["hostname"] == f"one-{number}"
        owner = pod.metadata.controller
        assert owner is not None
        assert (owner.kind, owner.uid, owner.block_owner_deletion) == ("Job", made.metadata.uid, True)
        names = {variable["name"] for variable in pod.spec["containers"][0]["env"]}
        assert names == {"JOB_COMPLETION_INDEX"}


@pytest.mark.every_engine
async def test_a_job_is_complete_when_every_index_has_succeeded(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 3), namespace=pool.name)
    first, second, third = await pool.running(3)
    ready = await until(pool.cluster, JOBS, key, lambda j: j.status.ready == 3, "has 3 ready pods")
    assert (ready.status.active, ready.status.succeeded, ready.status.failed) == (3, 0, 0)
    assert ready.status.start_time
    await pool.end(first, third)
    part = await until(pool.cluster, JOBS, key, lambda j: j.status.succeeded == 2, "counts 2 successes")
    assert (part.status.active, part.status.completed_indexes) == (1, "0,2")
    assert part.condition("Complete") is None
    await pool.end(second)
    done = await settled(pool.cluster, key, "Complete")
    assert (done.status.active, done.status.ready, done.status.succeeded, done.status.failed) == (0, 0, 3, 0)
    assert done.status.completed_indexes == "0-2"
    assert done.status.completion_time >= done.status.start_time
    whole = await pool.cluster.get(WHOLE_JOBS, key)
    assert not any(whole.status.get("uncountedTerminatedPods", {}).values())
    kept = (await pool.cluster.list(PODS, namespace=pool.name)).items
    assert [pod.status.phase for pod in kept] == ["Succeeded"] * 3
    assert all(pod.metadata.finalizers == () for pod in kept)


async def test_a_suspended_job_makes_no_pods(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, suspend=True), namespace=pool.name)
    suspended = await settled(pool.cluster, key, "Suspended")
    assert not suspended.status.start_time
    assert (await pool.cluster.list(PODS, namespace=pool.name)).items == ()


@pytest.mark.every_engine
async def test_suspending_stops_the_pods_and_resuming_starts_new_ones(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2), namespace=pool.name)
    first = await pool.running(2)
    await pool.cluster.patch(JOBS, key, {"spec": {"suspend": True}})
    suspension = (await settled(pool.cluster, key, "Suspended")).condition("Suspended")
    await listed(pool.cluster, PODS, pool.name, lambda pods: not pods, "its pods are gone")
    rested = await until(pool.cluster, JOBS, key, lambda j: not j.status.active, "has no active pods")
    assert (rested.status.ready, rested.status.succeeded, rested.status.failed) == (0, 0, 0)
    await pool.cluster.patch(JOBS, key, {"spec": {"suspend": False}})
    second = await pool.running(2)
    assert {pod.metadata.uid for pod in first}.isdisjoint(pod.metadata.uid for pod in second)
    resumed = await until(pool.cluster, JOBS, key, lambda j: j.status.ready == 2, "has its pods ready again")
    assert resumed.condition("Suspended") is None
    # While it rests, an older server keeps the start time and a newer one has none: only the new one is certain.
    assert suspension is not None
    assert resumed.status.start_time >= suspension.last_transition_time


async def test_a_suspended_job_lets_go_of_its_pods_before_it_stops_them(pool: Pool) -> None:
    """Otherwise a pod that is stopped would be counted as failed, and with no retries the Job would be over."""
    await pool.add()
    key = Key(pool.name, "one")
    body = indexed("one", pool.name, 2, backoffLimit=0, podReplacementPolicy="Failed")
    start = (await pool.cluster.list(PODS, namespace=pool.name)).resource_version
    await pool.cluster.create(JOBS, body, namespace=pool.name)
    await pool.running(2)
    await pool.cluster.patch(JOBS, key, {"spec": {"suspend": True}})
    rested = await until(
        pool.cluster, JOBS, key, lambda j: j.condition("Suspended") and not j.status.active, "has no active pods"
    )
    assert (rested.status.failed, rested.condition("FailureTarget")) == (0, None)
    await listed(pool.cluster, PODS, pool.name, lambda pods: not pods, "its pods are gone")
    await pool.cluster.create(PODS, lone_pod("last", "none"), namespace=pool.name)
    history = await follow(pool.cluster, PODS, version=start, namespace=pool.name, stop=is_about(Change.ADDED, "last"))
    states = [event.object for event in history if event.object is not None]
    assert not [pod for pod in states if pod.metadata.deletion_timestamp and pod.metadata.finalizers]


async def test_what_succeeded_before_a_suspension_is_not_run_again(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2), namespace=pool.name)
    zeroth, _ = await pool.running(2)
    await pool.end(zeroth)
    await until(pool.cluster, JOBS, key, lambda j: j.status.completed_indexes == "0", "has completed index 0")
    await pool.cluster.patch(JOBS, key, {"spec": {"suspend": True}})
    await settled(pool.cluster, key, "Suspended")
    await pool.cluster.patch(JOBS, key, {"spec": {"suspend": False}})
    (again,) = await pool.running(1)
    assert again.metadata.labels[INDEX] == "1"


async def test_an_indexed_job_can_grow_and_shrink(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2), namespace=pool.name)
    before = await pool.running(2)
    await pool.cluster.patch(JOBS, key, {"spec": {"completions": 4, "parallelism": 4}})
    wide = await pool.running(4)
    assert [pod.metadata.uid for pod in wide[:2]] == [pod.metadata.uid for pod in before]
    await pool.cluster.patch(JOBS, key, {"spec": {"completions": 1, "parallelism": 1}})
    (left,) = await pool.running(1)
    assert left.metadata.uid == before[0].metadata.uid
    await pool.end(left)
    done = await settled(pool.cluster, key, "Complete")
    assert (done.status.completed_indexes, done.status.succeeded) == ("0", 1)


async def test_a_job_with_fewer_places_than_indexes_runs_them_in_turn(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    body = job("one", pool.name, completionMode="Indexed", completions=2, parallelism=1)
    await pool.cluster.create(JOBS, body, namespace=pool.name)
    (zeroth,) = await pool.running(1)
    await pool.end(zeroth)
    (first,) = await pool.running(1)
    assert [pod.metadata.labels[INDEX] for pod in (zeroth, first)] == ["0", "1"]
    await pool.end(first)
    await settled(pool.cluster, key, "Complete")


async def test_deleting_a_job_takes_its_pods_along(pool: Pool) -> None:
    await pool.add()
    for name in ("behind", "before"):
        await pool.cluster.create(JOBS, indexed(name, pool.name, 2), namespace=pool.name)
    await pool.running(4)
    await pool.cluster.delete(JOBS, Key(pool.name, "behind"), DeleteOptions(propagation=Propagation.BACKGROUND))
    await pool.cluster.delete(JOBS, Key(pool.name, "before"), DeleteOptions(propagation=Propagation.FOREGROUND))
    await asyncio.gather(*(gone(pool.cluster, JOBS, Key(pool.name, name)) for name in ("behind", "before")))
    await listed(pool.cluster, PODS, pool.name, lambda pods: not pods, "all pods are gone")


async def test_a_finished_job_goes_after_its_time_and_no_earlier(pool: Pool) -> None:
    await pool.add()
    for name, ttl in (("later", 3600), ("now", 0)):
        body = indexed(name, pool.name, 1, ttlSecondsAfterFinished=ttl)
        await pool.cluster.create(JOBS, body, namespace=pool.name)
        await pool.end(*await pool.running(1, job=name))
        if ttl:
            await settled(pool.cluster, Key(pool.name, name), "Complete")
    await gone(pool.cluster, JOBS, Key(pool.name, "now"))
    await listed(pool.cluster, PODS, pool.name, lambda pods: len(pods) == 1, "its pods are gone too")
    assert not (await pool.cluster.get(JOBS, Key(pool.name, "later"))).metadata.deletion_timestamp
