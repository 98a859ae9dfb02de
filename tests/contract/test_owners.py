"""What becomes of the objects that a deleted object owns."""

import asyncio
from typing import Any

import pytest

from holdfast.cluster.errors import Invalid
from holdfast.cluster.protocol import Cluster, DeleteOptions, Propagation

from .kinds import CONFIG_MAPS, GADGETS, Document, config_map, gadget, key_of, owned_by
from .waiting import gone, until

FOREGROUND = "foregroundDeletion"
HELD = "holdfast.dev/held"


async def owner_and_child(cluster: Cluster, namespace: str, **child: Any) -> tuple[Document, Document]:
    owner = await cluster.create(GADGETS, gadget("owner"), namespace=namespace)
    reference = owned_by(owner, GADGETS, controller=True, blockOwnerDeletion=True)
    body = config_map("child", ownerReferences=[reference], **child)
    return owner, await cluster.create(CONFIG_MAPS, body, namespace=namespace)


async def collector_has_seen(cluster: Cluster, owner: Document, namespace: str) -> None:
    """Until the garbage collector knows all children that there are: a later one whose owner never was is collected.

    A collector that does not know a child yet when its owner is deleted can't orphan it, and collects it afterwards.
    """
    stranger = owned_by(owner, GADGETS) | {"uid": "11111111-2222-3333-4444-555555555555"}
    last = await cluster.create(CONFIG_MAPS, config_map("last", ownerReferences=[stranger]), namespace=namespace)
    await gone(cluster, CONFIG_MAPS, key_of(last))


async def test_background_deletion_takes_the_owner_at_once_and_its_children_later(
    cluster: Cluster, namespace: str
) -> None:
    owner, child = await owner_and_child(cluster, namespace, finalizers=[HELD])
    await cluster.delete(GADGETS, key_of(owner), DeleteOptions(propagation=Propagation.BACKGROUND))
    await gone(cluster, GADGETS, key_of(owner))
    await until(cluster, CONFIG_MAPS, key_of(child), lambda c: c.metadata.deletion_timestamp, "the child is marked")
    await cluster.patch(CONFIG_MAPS, key_of(child), {"metadata": {"finalizers": None}})
    await gone(cluster, CONFIG_MAPS, key_of(child))


async def test_deletion_reaches_the_children_of_children(cluster: Cluster, namespace: str) -> None:
    owner, child = await owner_and_child(cluster, namespace)
    body = config_map("grandchild", ownerReferences=[owned_by(child, CONFIG_MAPS)])
    grandchild = await cluster.create(CONFIG_MAPS, body, namespace=namespace)
    await cluster.delete(GADGETS, key_of(owner))
    await gone(cluster, CONFIG_MAPS, key_of(grandchild))


@pytest.mark.every_engine
async def test_foreground_deletion_keeps_the_owner_until_its_children_are_gone(
    cluster: Cluster, namespace: str
) -> None:
    owner, child = await owner_and_child(cluster, namespace, finalizers=[HELD])
    await cluster.delete(GADGETS, key_of(owner), DeleteOptions(propagation=Propagation.FOREGROUND))
    waiting = await cluster.get(GADGETS, key_of(owner))
    assert waiting.metadata.finalizers == (FOREGROUND,)
    assert waiting.metadata.deletion_timestamp
    await until(cluster, CONFIG_MAPS, key_of(child), lambda c: c.metadata.deletion_timestamp, "the child is marked")
    assert await cluster.get(GADGETS, key_of(owner)) == waiting
    await cluster.patch(CONFIG_MAPS, key_of(child), {"metadata": {"finalizers": None}})
    await asyncio.gather(gone(cluster, CONFIG_MAPS, key_of(child)), gone(cluster, GADGETS, key_of(owner)))


async def test_foreground_deletion_does_not_wait_for_a_child_that_does_not_block_it(
    cluster: Cluster, namespace: str
) -> None:
    owner = await cluster.create(GADGETS, gadget("owner"), namespace=namespace)
    body = config_map("child", ownerReferences=[owned_by(owner, GADGETS)], finalizers=[HELD])
    child = await cluster.create(CONFIG_MAPS, body, namespace=namespace)
    await cluster.delete(GADGETS, key_of(owner), DeleteOptions(propagation=Propagation.FOREGROUND))
    await gone(cluster, GADGETS, key_of(owner))
    await until(cluster, CONFIG_MAPS, key_of(child), lambda c: c.metadata.deletion_timestamp, "the child is marked")
    await cluster.patch(CONFIG_MAPS, key_of(child), {"metadata": {"finalizers": None}})


async def test_orphaned_children_stay_and_lose_their_owner(cluster: Cluster, namespace: str) -> None:
    owner, child = await owner_and_child(cluster, namespace)
    await collector_has_seen(cluster, owner, namespace)
    await cluster.delete(GADGETS, key_of(owner), DeleteOptions(propagation=Propagation.ORPHAN))
    await gone(cluster, GADGETS, key_of(owner))
    orphan = await cluster.get(CONFIG_MAPS, key_of(child))
    assert orphan.metadata.owner_references == ()
    assert not orphan.metadata.deletion_timestamp


async def test_a_child_of_an_owner_that_never_was_is_collected(cluster: Cluster, namespace: str) -> None:
    owner = await cluster.create(GADGETS, gadget("owner"), namespace=namespace)
    stranger = owned_by(owner, GADGETS) | {"uid": "11111111-2222-3333-4444-555555555555"}
    child = await cluster.create(CONFIG_MAPS, config_map("child", ownerReferences=[stranger]), namespace=namespace)
    await gone(cluster, CONFIG_MAPS, key_of(child))
    assert await cluster.get(GADGETS, key_of(owner)) == owner


async def test_a_child_of_two_owners_stays_until_both_are_gone(cluster: Cluster, namespace: str) -> None:
    first = await cluster.create(GADGETS, gadget("first"), namespace=namespace)
    second = await cluster.create(GADGETS, gadget("second"), namespace=namespace)
    references = [owned_by(first, GADGETS), owned_by(second, GADGETS)]
    child = await cluster.create(CONFIG_MAPS, config_map("child", ownerReferences=references), namespace=namespace)
    await cluster.delete(GADGETS, key_of(first))
    kept = await until(
        cluster,
        CONFIG_MAPS,
        key_of(child),
        lambda c: [o.name for o in c.metadata.owner_references] == ["second"],
        "the reference to the deleted owner is taken off",
    )
    assert not kept.metadata.deletion_timestamp
    await cluster.delete(GADGETS, key_of(second))
    await gone(cluster, CONFIG_MAPS, key_of(child))


async def test_an_object_has_at_most_one_controller(cluster: Cluster, namespace: str) -> None:
    first = await cluster.create(GADGETS, gadget("first"), namespace=namespace)
    second = await cluster.create(GADGETS, gadget("second"), namespace=namespace)
    references = [owned_by(each, GADGETS, controller=True) for each in (first, second)]
    with pytest.raises(Invalid) as refused:
        await cluster.create(CONFIG_MAPS, config_map("child", ownerReferences=references), namespace=namespace)
    assert {cause.field for cause in refused.value.causes} == {"metadata.ownerReferences"}
