"""The scheduler at work among machines and pods that come and go."""

import asyncio

from holdfast.api.core.objects import Pod, PodCondition, find_condition
from holdfast.api.meta import Key
from holdfast.cluster.resources import NODES, PODS
from tests.local.controllers.bench import Bench, a_cluster, indexed, now, pod_spec
from tests.runtime.virtual import virtual

GPU = "nvidia.com/gpu"


def gpus(count: int) -> dict[str, object]:
    resources = {"limits": {GPU: str(count)}}
    return {"containers": [{"name": "main", "image": "main:1", "resources": resources}]}


def scheduled(pod: Pod) -> PodCondition | None:
    return find_condition(pod.status.conditions, "PodScheduled")


async def turned_down(bench: Bench, key: Key) -> str:
    pod = await bench.until(PODS, key, scheduled)
    verdict = scheduled(pod)
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("False", "Unschedulable")
    return verdict.message


@virtual
async def test_a_pod_that_waits_says_why_and_is_bound_when_it_fits() -> None:
    async with a_cluster() as bench:
        key = await bench.run_pod("one", **gpus(2))
        assert await turned_down(bench, key) == "no nodes available to schedule pods"
        await bench.add_node("small", gpus=1)
        why = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        waiting = await bench.until(PODS, key, lambda pod: why in str(pod.status.conditions))
        await bench.add_node("large", gpus=2)
        (pod,) = await bench.running(1)
        assert pod.spec.node_name == "large"
        verdict = scheduled(pod)
        assert verdict is not None
        assert verdict.status == "True"
        assert scheduled(waiting) != verdict


@virtual
async def test_a_pod_that_waits_is_not_written_again_without_an_event() -> None:
    async with a_cluster() as bench:
        await bench.add_node("small", gpus=1)
        key = await bench.run_pod("one", **gpus(2))
        await turned_down(bench, key)
        before = await bench.cluster.get(PODS, key)
        for number in range(5):
            other = await bench.run_pod(f"other-{number}")
            await bench.until(PODS, other, lambda pod: pod.status.phase == "Running")
        await asyncio.sleep(600)
        assert (await bench.cluster.get(PODS, key)).metadata.resource_version == before.metadata.resource_version


@virtual
async def test_no_machine_is_given_more_than_it_has() -> None:
    async with a_cluster() as bench:
        for number in range(3):
            await bench.add_node(f"m-{number}", gpus=2)
        for number in range(9):
            await bench.run_pod(f"p-{number}", **gpus(1))
        pods = await bench.running(6)
        assert sorted(pod.spec.node_name for pod in pods) == ["m-0", "m-0", "m-1", "m-1", "m-2", "m-2"]
        for pod in pods[:3]:
            await bench.end(pod)
        await bench.running(6)


@virtual
async def test_a_pod_is_left_alone_that_is_gated_or_somebody_elses() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        gated = await bench.run_pod("gated", schedulingGates=[{"name": "example.com/quota"}])
        theirs = await bench.run_pod("theirs", schedulerName="another")
        await bench.run_pod("ours")
        await bench.running(1)
        for key in (gated, theirs):
            assert (await bench.cluster.get(PODS, key)).spec.node_name == ""


@virtual
async def test_a_machine_whose_labels_change_is_looked_at_again() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_pod("one", nodeSelector={"disk": "fast"})
        assert "didn't match Pod's node affinity/selector" in await turned_down(bench, key)
        await bench.cluster.patch(NODES, Key("", "m-1"), {"metadata": {"labels": {"disk": "fast"}}})
        await bench.running(1)


@virtual
async def test_hundreds_of_jobs_at_once_all_complete() -> None:
    """Far more than the machine holds at a time."""
    jobs = 500
    async with a_cluster() as bench:
        await bench.add_node()
        keys = [
            await bench.run_job(f"j-{number}", **indexed(1), template={"spec": pod_spec()}) for number in range(jobs)
        ]
        begun = now()
        most = 0
        while True:
            pods = await bench.pods()
            running = [pod for pod in pods if pod.status.phase == "Running"]
            most = max(most, len(running))
            ended = sum(pod.is_finished for pod in pods)
            if ended == jobs:
                break
            assert (now() - begun).total_seconds() < 3600
            await asyncio.gather(*(bench.end(pod) for pod in running))
            await asyncio.sleep(0.1)
        assert most <= 110
        for key in keys:
            done = await bench.finished(key)
            assert (done.status.succeeded, done.status.failed) == (1, 0)
