"""Deployments on one machine: which pods come and go, and what is said of them."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import PODS, SERVICE_ACCOUNTS
from holdfast.local.controllers.deployments import HASH, RECREATE_DELAY_S, is_current, plan_scale, pod_body, status
from holdfast.local.controllers.objects import DEPLOYMENTS, TemplatedDeployment
from tests.local.controllers.bench import NAMESPACE, Bench, a_cluster, pod_spec
from tests.local.controllers.things import NOW, ago
from tests.runtime.virtual import virtual

BOARD = Key(NAMESPACE, "board")


def deployment(replicas: int = 1, *, image: str = "board:1", told: JSON | None = None) -> TemplatedDeployment:
    template = {"metadata": {"labels": {"app": "board"}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    body = {
        "metadata": {"name": "board", "namespace": "ns", "uid": "u", "generation": 3},
        "spec": {"replicas": replicas, "template": template},
        "status": told or {},
    }
    return msgspec.convert(body, TemplatedDeployment)


def a_pod(
    name: str,
    of: TemplatedDeployment,
    phase: str = "Running",
    *,
    ready: bool = True,
    deleted: bool = False,
    ended: str = "",
) -> Pod:
    made = pod_body(of)
    state = {"terminated": {"exitCode": 1, "finishedAt": ended}} if ended else {}
    body = {
        **made,
        "metadata": {
            **made["metadata"],
            "name": name,
            "namespace": "ns",
            "uid": name,
            "creationTimestamp": ago(100),
            "deletionTimestamp": ago(0) if deleted else "",
        },
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready and phase == "Running" else "False"}],
            "containerStatuses": [{"name": "main", "state": state}],
        },
    }
    return msgspec.convert(body, Pod)


ONE, OTHER = deployment(), deployment(image="board:2")


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.metadata.name for pod in pods]


@pytest.mark.parametrize(
    ("wanted", "pods", "create", "stop"),
    [
        pytest.param(ONE, [], 1, [], id="none"),
        pytest.param(ONE, [a_pod("a", ONE)], 0, [], id="enough"),
        pytest.param(deployment(0), [a_pod("a", ONE)], 0, ["a"], id="none wanted"),
        pytest.param(
            ONE, [a_pod("a", ONE), a_pod("b", ONE, ready=False)], 0, ["b"], id="the one that is not ready goes"
        ),
        pytest.param(ONE, [a_pod("a", ONE, deleted=True)], 1, [], id="being deleted"),
        pytest.param(ONE, [a_pod("a", OTHER)], 0, ["a"], id="old template"),
        pytest.param(ONE, [a_pod("a", OTHER, deleted=True)], 0, [], id="old template, going"),
        pytest.param(ONE, [a_pod("a", OTHER, "Failed", ended=ago(0))], 1, ["a"], id="old template, ended"),
        pytest.param(ONE, [a_pod("a", ONE, "Failed", ended=ago(RECREATE_DELAY_S + 1))], 1, ["a"], id="ended long ago"),
        pytest.param(
            ONE, [a_pod("a", ONE, "Succeeded", ended=ago(RECREATE_DELAY_S + 1))], 1, ["a"], id="succeeded long ago"
        ),
        pytest.param(ONE, [a_pod("a", ONE, "Failed", ended=ago(1))], 0, [], id="ended just now"),
        pytest.param(ONE, [a_pod("a", ONE, "Failed", ended=ago(99), deleted=True)], 1, [], id="ended and going"),
    ],
)
def test_which_pods_are_created_and_which_are_deleted(
    wanted: TemplatedDeployment, pods: list[Pod], create: int, stop: list[str]
) -> None:
    steps = plan_scale(wanted, pods, NOW)
    assert (steps.create, names(steps.stop)) == (create, stop)


def test_a_pod_that_has_ended_rests_before_it_is_replaced() -> None:
    pods = [a_pod("a", ONE, "Failed", ended=ago(4)), a_pod("b", ONE, "Failed", ended=ago(7))]
    resting = plan_scale(deployment(2), pods, NOW)
    assert (resting.create, resting.stop, resting.again_s) == (0, (), RECREATE_DELAY_S - 7)
    later = plan_scale(deployment(2), pods, NOW + timedelta(seconds=RECREATE_DELAY_S - 7))
    assert (later.create, names(later.stop), later.again_s) == (1, ["b"], 3)


def test_a_pod_knows_its_template() -> None:
    assert is_current(a_pod("a", ONE), deployment(5))
    assert not is_current(a_pod("a", ONE), OTHER)
    assert pod_body(ONE)["metadata"]["labels"].keys() == {"app", HASH}


def test_the_status_counts_what_is_there() -> None:
    pods = [a_pod("a", ONE), a_pod("b", ONE, ready=False), a_pod("c", OTHER), a_pod("d", ONE, deleted=True)]
    told = status(deployment(4), pods, NOW)
    counts = (told.replicas, told.updated_replicas, told.ready_replicas, told.available_replicas)
    assert (told.observed_generation, counts, told.unavailable_replicas) == (3, (3, 2, 2, 2), 2)
    assert (told.conditions[0].status, told.conditions[0].reason) == ("False", "MinimumReplicasUnavailable")


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    before = {"conditions": [{"type": "Available", "status": "True", "lastTransitionTime": ago(50), "reason": "Old"}]}
    (same,) = status(deployment(told=before), [a_pod("a", ONE)], NOW).conditions
    assert (same.last_transition_time, same.reason) == (ago(50), "Old")
    (new,) = status(deployment(told=before), [], NOW).conditions
    assert (new.status, new.last_transition_time) == ("False", ago(0))


async def deploy(bench: Bench, **pods: Any) -> None:
    labels = {"app": "board"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(**{"restartPolicy": "Always", **pods})}
    body = {"metadata": {"name": "board"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    await bench.cluster.create(DEPLOYMENTS, body, namespace=NAMESPACE)


@virtual
async def test_a_pod_that_ends_at_once_is_not_made_again_without_a_pause() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        await deploy(bench)
        seen = set()
        for _ in range(3):
            (pod,) = await bench.running(1)
            seen.add(pod.metadata.uid)
            await bench.end(pod, 1)
            await asyncio.sleep(RECREATE_DELAY_S / 2)
            assert [each.metadata.uid for each in await bench.pods()] == [pod.metadata.uid]
        await bench.running(1)
        assert len(seen) == 3


@virtual
async def test_a_settled_deployment_is_not_written_again() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        await deploy(bench)
        (pod,) = await bench.running(1)
        told = await bench.until(DEPLOYMENTS, BOARD, lambda it: it.status.ready_replicas == 1)
        await asyncio.sleep(3600)
        assert await bench.cluster.get(DEPLOYMENTS, BOARD) == told
        assert (await bench.running(1))[0].metadata.uid == pod.metadata.uid


@virtual
async def test_controllers_that_crash_find_their_pods_again() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        await deploy(bench)
        (pod,) = await bench.running(1)
        await bench.crash()
        bench.start()
        bench.revive("m-1")
        await asyncio.sleep(60)
        assert [each.metadata.uid for each in await bench.pods()] == [pod.metadata.uid]


@virtual
async def test_a_refused_pod_is_tried_again_and_the_status_says_that_it_is_missing() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        await deploy(bench, serviceAccountName="late")
        told = await bench.until(DEPLOYMENTS, BOARD, lambda it: it.status.observed_generation == 1)
        assert (told.status.replicas, told.status.unavailable_replicas) == (0, 1)
        assert await bench.pods() == []
        await bench.cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": "late"}}, namespace=NAMESPACE)
        await bench.running(1)


@virtual
async def test_a_pod_of_another_owner_is_left_alone() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        await bench.cluster.create(
            PODS, {"metadata": {"name": "one", "labels": {"app": "board"}}, "spec": pod_spec()}, namespace=NAMESPACE
        )
        await deploy(bench)
        await bench.running(2)
        await bench.cluster.patch(DEPLOYMENTS, BOARD, {"spec": {"replicas": 0}})
        (left,) = await bench.running(1)
        assert left.metadata.name == "one"
