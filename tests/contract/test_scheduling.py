"""Where a pod goes, and what it says while it can go nowhere."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.resources import PODS

from .engine import Engine
from .kinds import PRIORITY_CLASSES
from .pods import POOL, pod
from .pool import Pool
from .waiting import until

GPU = "nvidia.com/gpu"
# The scheduler lets a pod that did not fit rest for so long, and shows that nowhere.
SCHEDULER_BACKOFF_S = 2.5


def turned_down(it: Pod) -> str:
    """Why the scheduler found no machine, if it has looked."""
    reasons = (c for c in it.status.conditions if c.type == "PodScheduled" and c.status == "False")
    return next((c.message for c in reasons if c.reason == "Unschedulable"), "")


async def start(pool: Pool, name: str, **spec: Any) -> Key:
    await pool.cluster.create(PODS, pod(name, pool.name, **spec), namespace=pool.name)
    return Key(pool.name, name)


async def bound(pool: Pool, key: Key) -> str:
    return (await until(pool.cluster, PODS, key, lambda p: p.spec.node_name, "is bound")).spec.node_name


async def waits(pool: Pool, key: Key) -> str:
    """The message of a pod that fits nowhere."""
    found = await until(pool.cluster, PODS, key, turned_down, "is turned down")
    assert (found.status.phase, found.spec.node_name) == ("Pending", "")
    return turned_down(found)


@pytest.mark.every_engine
async def test_a_pod_goes_where_its_gpus_are_free(pool: Pool) -> None:
    await pool.add("none")
    small = await pool.add("small", resources={GPU: "1"})
    large = await pool.add("large", resources={GPU: "4"})
    assert await bound(pool, await start(pool, "four", requests={GPU: "4"})) == large
    assert await bound(pool, await start(pool, "one", requests={GPU: "1"})) == small


async def test_a_pod_that_fits_nowhere_waits_and_says_why(pool: Pool) -> None:
    await pool.add(resources={GPU: "2"})
    key = await start(pool, "three", requests={GPU: "3"})
    assert f"Insufficient {GPU}" in await waits(pool, key)


async def test_gpus_are_counted_per_pod_and_freed_by_its_end(pool: Pool) -> None:
    node = await pool.add(resources={GPU: "2"})
    await bound(pool, await start(pool, "first", requests={GPU: "2"}))
    (first,) = await pool.running(1)
    second = await start(pool, "second", requests={GPU: "1"})
    await waits(pool, second)
    await pool.end(first)
    assert await bound(pool, second) == node


async def test_a_waiting_pod_goes_to_a_machine_that_comes_later(pool: Pool) -> None:
    key = await start(pool, "one", requests={GPU: "1"})
    await waits(pool, key)
    node = await pool.add(resources={GPU: "1"})
    assert await bound(pool, key) == node


async def test_a_node_selector_and_a_required_affinity_are_obeyed(pool: Pool) -> None:
    await pool.add("a", labels={"zone": "a"})
    b = await pool.add("b", labels={"zone": "b"})
    selected = await start(pool, "selected", nodeSelector={POOL: pool.name, "zone": "b"})
    assert await bound(pool, selected) == b
    drawn = await start(pool, "drawn", affinity=zones("In", "b", "c"))
    assert await bound(pool, drawn) == b
    repelled = await start(pool, "repelled", affinity=zones("NotIn", "a"))
    assert await bound(pool, repelled) == b
    lost = await start(pool, "lost", affinity=zones("In", "c"))
    assert "node affinity" in await waits(pool, lost)


def zones(operator: str, *values: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "zone", "operator": operator, "values": list(values)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"nodeAffinity": required}


async def test_a_tainted_machine_takes_only_pods_that_tolerate_it(pool: Pool) -> None:
    node = await pool.add(taints=[{"key": GPU, "value": "present", "effect": "NoSchedule"}])
    shy = await start(pool, "shy")
    assert "untolerated taint" in await waits(pool, shy)
    for name, toleration in (
        ("exists", {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}),
        ("equal", {"key": GPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}),
        ("all", {"operator": "Exists"}),
    ):
        assert await bound(pool, await start(pool, name, tolerations=[toleration])) == node
    wrong = {"key": GPU, "operator": "Equal", "value": "absent", "effect": "NoSchedule"}
    await waits(pool, await start(pool, "wrong", tolerations=[wrong]))


def beside(app: str) -> dict[str, Any]:
    """The required term about pods with this label on the same machine."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


async def start_as(pool: Pool, app: str, name: str, **spec: Any) -> Key:
    """A pod with the label."""
    body = pod(name, pool.name, **spec)
    body["metadata"]["labels"] = {"app": app}
    await pool.cluster.create(PODS, body, namespace=pool.name)
    return Key(pool.name, name)


async def test_pods_that_avoid_each_other_go_to_different_machines(pool: Pool) -> None:
    nodes = {await pool.add(suffix) for suffix in ("a", "b")}
    apart = {"podAntiAffinity": beside("apart")}
    keys = [await start_as(pool, "apart", name, affinity=apart) for name in ("one", "two", "three")]
    assert {await bound(pool, key) for key in keys[:2]} == nodes
    assert "anti-affinity" in await waits(pool, keys[2])


async def test_a_pod_keeps_away_from_pods_that_it_avoids_and_from_pods_that_avoid_it(pool: Pool) -> None:
    await pool.add()
    loner = {"podAntiAffinity": beside("crowd")}
    await bound(pool, await start_as(pool, "loner", "first", affinity=loner))
    assert "existing pods anti-affinity" in await waits(pool, await start_as(pool, "crowd", "repelled"))
    await bound(pool, await start_as(pool, "other", "harmless"))
    shy = {"podAntiAffinity": beside("other")}
    assert "pod anti-affinity" in await waits(pool, await start_as(pool, "shy", "avoiding", affinity=shy))


async def test_a_pod_that_wants_company_goes_to_it(pool: Pool) -> None:
    for suffix in ("a", "b"):
        await pool.add(suffix)
    taken = await bound(pool, await start_as(pool, "host", "host"))
    drawn = {"podAffinity": beside("host")}
    guests = [await start_as(pool, "guest", name, affinity=drawn) for name in ("one", "two")]
    assert [await bound(pool, guest) for guest in guests] == [taken, taken]
    lost = await start_as(pool, "guest", "lost", affinity={"podAffinity": beside("nobody")})
    assert "pod affinity" in await waits(pool, lost)


@pytest.fixture
async def classes(engine: Engine, namespace: str) -> AsyncIterator[dict[str, str]]:
    """Names of priority classes that exist for this test."""
    names = {level: f"{namespace}-{level}" for level in ("low", "high", "top")}
    for value, name in enumerate(names.values(), start=1):
        body = {"metadata": {"name": name}, "value": value * 1000, "preemptionPolicy": "Never"}
        await engine.cluster.create(PRIORITY_CLASSES, body)
    yield names
    for name in names.values():
        await engine.cluster.delete(PRIORITY_CLASSES, Key("", name))


async def test_the_most_important_of_those_that_wait_goes_first(pool: Pool, classes: dict[str, str]) -> None:
    node = await pool.add(resources={GPU: "1"})
    await start(pool, "holder", requests={GPU: "1"}, priorityClassName=classes["top"])
    (holder,) = await pool.running(1)
    low = await start(pool, "low", requests={GPU: "1"}, priorityClassName=classes["low"])
    high = await start(pool, "high", requests={GPU: "1"}, priorityClassName=classes["high"])
    await asyncio.gather(waits(pool, low), waits(pool, high))
    await asyncio.sleep(SCHEDULER_BACKOFF_S)
    await pool.end(holder)
    assert await bound(pool, high) == node
    await waits(pool, low)
