"""The garbage collector where the shared contract does not look: circles, strangers, definitions, a full disk."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from math import inf
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import DeleteOptions, Propagation
from holdfast.local.apiserver import garbage_collector as collecting
from holdfast.local.apiserver.catalog import Catalog
from holdfast.local.apiserver.garbage_collector import GarbageCollector
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.local.apiserver.storage import StoredObject
from holdfast.local.apiserver.writes import ObjectWriter
from tests.contract.kinds import (
    CONFIG_MAPS,
    DEFINITIONS,
    GADGETS,
    NAMESPACES,
    NODES,
    PODS,
    Document,
    config_map,
    definition,
    gadget,
    key_of,
    owned_by,
)
from tests.contract.waiting import gone, until
from tests.control_plane.waiting import eventually

from .bodies import pod
from .clock import Clock
from .test_object_table import ObjectTableLab, document, place

HELD = "holdfast.dev/held"


async def made(cluster: EmbeddedCluster, name: str, *owners: Document, finalizers: Sequence[str] = ()) -> Document:
    references = [owned_by(owner, CONFIG_MAPS, blockOwnerDeletion=True) for owner in owners]
    body = config_map(name, ownerReferences=references, finalizers=finalizers)
    return await cluster.create(CONFIG_MAPS, body, namespace="default")


async def turns(count: int = 50) -> None:
    """Time enough for everything that is ready to run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_owners_that_wait_for_each_other_all_go(cluster: EmbeddedCluster) -> None:
    first = await made(cluster, "first")
    second = await made(cluster, "second", first)
    circle = {"metadata": {"ownerReferences": [owned_by(second, CONFIG_MAPS, blockOwnerDeletion=True)]}}
    await cluster.patch(CONFIG_MAPS, key_of(first), circle)
    await cluster.delete(CONFIG_MAPS, key_of(first), DeleteOptions(propagation=Propagation.FOREGROUND))
    await gone(cluster, CONFIG_MAPS, key_of(first))
    await gone(cluster, CONFIG_MAPS, key_of(second))


async def test_foreground_deletion_goes_from_the_leaves_to_the_root(cluster: EmbeddedCluster) -> None:
    root = await made(cluster, "root")
    branch = await made(cluster, "branch", root)
    await made(cluster, "leaf", branch, finalizers=[HELD])
    await cluster.delete(CONFIG_MAPS, key_of(root), DeleteOptions(propagation=Propagation.FOREGROUND))
    leaf = Key("default", "leaf")
    await until(cluster, CONFIG_MAPS, leaf, lambda each: each.metadata.deletion_timestamp, "is marked")
    await turns()
    for waiting in (root, branch):
        assert (await cluster.get(CONFIG_MAPS, key_of(waiting))).metadata.finalizers == ("foregroundDeletion",)
    await cluster.patch(CONFIG_MAPS, leaf, {"metadata": {"finalizers": None}})
    await gone(cluster, CONFIG_MAPS, key_of(root))
    assert (await cluster.list(CONFIG_MAPS)).items == ()


async def test_a_dependent_with_its_own_orphan_finalizer_frees_what_it_owns(cluster: EmbeddedCluster) -> None:
    root = await made(cluster, "root")
    branch = await made(cluster, "branch", root, finalizers=["orphan"])
    leaf = await made(cluster, "leaf", branch)
    await cluster.delete(CONFIG_MAPS, key_of(root))
    await gone(cluster, CONFIG_MAPS, key_of(branch))
    assert (await cluster.get(CONFIG_MAPS, key_of(leaf))).metadata.owner_references == ()


async def test_an_owner_in_another_namespace_is_no_owner(cluster: EmbeddedCluster) -> None:
    await cluster.create(NAMESPACES, {"metadata": {"name": "other"}})
    owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace="other")
    child = await made(cluster, "child", owner)
    await gone(cluster, CONFIG_MAPS, key_of(child))
    assert await cluster.get(CONFIG_MAPS, key_of(owner)) == owner


async def test_an_owner_without_a_namespace_owns_in_every_namespace(cluster: EmbeddedCluster) -> None:
    node = await cluster.create(NODES, {"metadata": {"name": "node"}})
    child = await cluster.create(
        CONFIG_MAPS, config_map("child", ownerReferences=[owned_by(node, NODES)]), namespace="default"
    )
    await turns()
    assert await cluster.get(CONFIG_MAPS, key_of(child)) == child
    await cluster.delete(NODES, key_of(node))
    await gone(cluster, CONFIG_MAPS, key_of(child))


async def test_an_owner_under_another_name_is_no_owner(cluster: EmbeddedCluster) -> None:
    owner = await made(cluster, "owner")
    alias = owned_by(owner, CONFIG_MAPS) | {"name": "alias"}
    child = await cluster.create(CONFIG_MAPS, config_map("child", ownerReferences=[alias]), namespace="default")
    await gone(cluster, CONFIG_MAPS, key_of(child))


async def test_what_belongs_to_a_kind_that_is_not_served_is_left_alone(cluster: EmbeddedCluster) -> None:
    stranger = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "one", "uid": "nobody"}
    child = await cluster.create(CONFIG_MAPS, config_map("child", ownerReferences=[stranger]), namespace="default")
    await turns()
    assert await cluster.get(CONFIG_MAPS, key_of(child)) == child


async def test_a_collected_pod_that_runs_is_left_to_its_runner(cluster: EmbeddedCluster) -> None:
    owner = await made(cluster, "owner")
    body = pod("one", nodeName="node")
    body["metadata"]["ownerReferences"] = [owned_by(owner, CONFIG_MAPS)]
    running = await cluster.create(PODS, body, namespace="default")
    await cluster.delete(CONFIG_MAPS, key_of(owner))
    ending = await until(cluster, PODS, key_of(running), lambda each: each.metadata.deletion_timestamp, "is marked")
    assert ending.metadata.deletion_grace_period_seconds == 30
    await cluster.delete(PODS, key_of(running), DeleteOptions(uid=running.metadata.uid, grace_period_s=0))
    await gone(cluster, PODS, key_of(running))


async def test_a_namespace_waits_for_the_pods_that_run_in_it(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "NAMESPACE_DELAY_S", 0.0)
    await cluster.create(NAMESPACES, {"metadata": {"name": "short"}})
    running = await cluster.create(PODS, pod("one", nodeName="node"), namespace="short")
    await cluster.delete(NAMESPACES, Key("", "short"))
    await until(cluster, PODS, key_of(running), lambda each: each.metadata.deletion_timestamp, "is marked")
    await turns()
    assert (await cluster.get(NAMESPACES, Key("", "short"))).status == {"phase": "Terminating"}
    await cluster.delete(PODS, key_of(running), DeleteOptions(grace_period_s=0))
    await gone(cluster, NAMESPACES, Key("", "short"))


async def test_a_definition_takes_its_objects_along(cluster: EmbeddedCluster) -> None:
    defined = await cluster.create(DEFINITIONS, definition(GADGETS))
    held = await cluster.create(GADGETS, gadget("held", finalizers=[HELD]), namespace="default")
    await cluster.create(GADGETS, gadget("free"), namespace="default")
    await cluster.delete(DEFINITIONS, key_of(defined))
    await gone(cluster, GADGETS, Key("default", "free"))
    assert (await cluster.get(DEFINITIONS, key_of(defined))).metadata.deletion_timestamp
    await cluster.patch(GADGETS, key_of(held), {"metadata": {"finalizers": None}})
    await gone(cluster, DEFINITIONS, key_of(defined))
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await cluster.list(GADGETS)


@pytest.fixture
async def desk(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectTableLab]:
    """A ledger with a collector, on a disk that can be full."""
    monkeypatch.setattr(collecting, "RETRY_S", 0.01)
    desk = ObjectTableLab()
    collector = GarbageCollector(desk.ledger, Catalog(), ObjectWriter(desk.ledger, clock, Random(1)))
    desk.listener = collector.enqueue
    running = asyncio.create_task(collector.run())
    yield desk
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_full_disk_only_delays_the_collection(desk: ObjectTableLab) -> None:
    owner = desk.ledger.put("configmaps", document("owner", uid="owner"))
    desk.ledger.put("configmaps", document("child", owners=["owner"]))
    await desk.ledger.flushed()
    desk.disk.full_after = 3
    desk.ledger.remove(owner)
    await desk.ledger.flushed()
    await asyncio.wait_for(desk.disk.refused.wait(), 60)
    assert desk.ledger.committed(place("child")) is not None
    desk.disk.full_after = inf

    async def child() -> StoredObject | None:
        return desk.ledger.committed(place("child"))

    await eventually(child, lambda each: each is None, what="the child is collected")
