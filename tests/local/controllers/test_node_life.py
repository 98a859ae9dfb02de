"""Machines that fall silent, fall ill, come back or vanish; in virtual time."""

from datetime import timedelta

from holdfast.api.core.objects import Node, Pod, find_condition
from holdfast.api.meta import Key
from holdfast.cluster.resources import LEASES, NODES, PODS
from holdfast.local.controllers.nodes import readiness
from holdfast.times import parse_time
from tests.local.controllers.bench import LEASE_NAMESPACE, a_cluster, indexed, now
from tests.runtime.virtual import virtual

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"


def marks(node: Node) -> list[tuple[str, str]]:
    return [(taint.key, taint.effect) for taint in node.spec.taints]


def disruption(pod: Pod) -> str:
    found = find_condition(pod.status.conditions, "DisruptionTarget")
    return found.reason if found else ""


@virtual
async def test_a_silent_machine_is_unknown_after_its_grace_and_loses_its_pods_after_theirs() -> None:
    async with a_cluster() as bench:
        await bench.add_node("m-1")
        key = await bench.run_job(**indexed(1))
        (pod,) = await bench.running(1)
        await bench.add_node("m-2")
        silent_since = now()
        await bench.cut_off("m-1")
        lost = await bench.node("m-1", lambda node: len(node.spec.taints) == 2)
        assert timedelta(seconds=30) <= now() - silent_since <= timedelta(seconds=45)
        assert (readiness(lost), marks(lost)) == (
            "Unknown",
            [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")],
        )
        doubted = await bench.until(PODS, pod.metadata.key, lambda pod: ready(pod) == "False")
        assert not doubted.is_terminating
        assert (await bench.job(key, lambda job: job.status.ready == 0)).status.active == 1
        evicted = await bench.until(PODS, pod.metadata.key, lambda pod: pod.is_terminating)
        assert disruption(evicted) == "DeletionByTaintManager"
        assert (
            timedelta(seconds=300) <= now() - parse_time(lost.spec.taints[0].time_added or "") <= timedelta(seconds=310)
        )
        (again,) = await bench.running(1)
        assert again.spec.node_name == "m-2"


def ready(pod: Pod) -> str:
    found = find_condition(pod.status.conditions, "Ready")
    return found.status if found else ""


@virtual
async def test_a_node_that_comes_back_loses_its_taints_and_keeps_its_pods() -> None:
    async with a_cluster() as bench:
        for name in ("m-1", "m-2"):
            await bench.add_node(name)
        key = await bench.run_pod("one", nodeName="m-1")
        await bench.running(1)
        await bench.cut_off("m-1")
        await bench.node("m-1", lambda node: len(node.spec.taints) == 2)
        bench.revive("m-1")
        await bench.say_ready("m-1", "True")
        await bench.node("m-1", lambda node: not node.spec.taints)
        assert not (await bench.cluster.get(PODS, key)).is_terminating


@virtual
async def test_a_machine_that_says_it_is_not_ready_is_marked_so() -> None:
    async with a_cluster() as bench:
        for name in ("m-1", "m-2"):
            await bench.add_node(name)
        await bench.say_ready("m-1", "False")
        ill = await bench.node("m-1", lambda node: node.spec.taints)
        assert marks(ill) == [(NOT_READY, "NoExecute"), (NOT_READY, "NoSchedule")]


@virtual
async def test_where_no_machine_is_well_nothing_is_evicted_until_one_is() -> None:
    async with a_cluster() as bench:
        await bench.add_node("m-1")
        hasty = {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
        key = await bench.run_pod("one", tolerations=[hasty])
        await bench.running(1)
        await bench.say_ready("m-1", "False")
        alone = await bench.node("m-1", lambda node: node.spec.taints)
        assert marks(alone) == [(NOT_READY, "NoSchedule")]
        await bench.add_node("m-2")
        await bench.gone(PODS, key)


@virtual
async def test_a_cordoned_machine_takes_no_new_pods_and_keeps_those_it_has() -> None:
    async with a_cluster() as bench:
        await bench.add_node("m-1")
        await bench.run_pod("before")
        await bench.running(1)
        await bench.cluster.patch(NODES, Key("", "m-1"), {"spec": {"unschedulable": True}})
        await bench.node("m-1", lambda node: marks(node) == [("node.kubernetes.io/unschedulable", "NoSchedule")])
        key = await bench.run_pod("after")
        waiting = await bench.until(PODS, key, lambda pod: find_condition(pod.status.conditions, "PodScheduled"))
        assert waiting.status.conditions[0].message == "0/1 nodes are available: 1 node(s) were unschedulable."
        await bench.cluster.patch(NODES, Key("", "m-1"), {"spec": {"unschedulable": False}})
        await bench.running(2)


@virtual
async def test_pods_of_a_vanished_machine_fail_and_go() -> None:
    async with a_cluster() as bench:
        for name in ("m-1", "m-2"):
            await bench.add_node(name)
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        key = await bench.run_job(**indexed(1, backoffLimit=0, podFailurePolicy={"rules": [rule]}))
        (pod,) = await bench.running(1)
        lost = pod.spec.node_name
        await bench.cut_off(lost)
        await bench.cluster.delete(LEASES, Key(LEASE_NAMESPACE, lost))
        await bench.cluster.delete(NODES, Key("", lost))
        gone_at = now()
        (again,) = await bench.running(1)
        assert again.metadata.uid == pod.metadata.uid, "it is given time first"
        await bench.gone(PODS, pod.metadata.key)
        assert now() - gone_at >= timedelta(seconds=40)
        (again,) = await bench.running(1)
        assert again.spec.node_name != lost
        await bench.end(again)
        done = await bench.finished(key)
        assert (done.status.succeeded, done.status.failed) == (1, 0), "a lost machine is not the Job's fault"


@virtual
async def test_a_machine_that_is_registered_anew_in_time_finds_its_pods() -> None:
    async with a_cluster() as bench:
        await bench.add_node("m-1")
        key = await bench.run_pod("one")
        await bench.running(1)
        await bench.cut_off("m-1")
        await bench.cluster.delete(LEASES, Key(LEASE_NAMESPACE, "m-1"))
        await bench.cluster.delete(NODES, Key("", "m-1"))
        await bench.add_node("m-1")
        await bench.add_node("m-2")
        later = await bench.run_pod("later", nodeSelector={"kubernetes.io/hostname": "m-2"})
        await bench.until(PODS, later, lambda pod: pod.status.phase == "Running")
        assert (await bench.cluster.get(PODS, key)).status.phase == "Running"
