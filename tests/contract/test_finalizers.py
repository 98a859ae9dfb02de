"""Deletion in two steps: an object with finalizers stays until the last of them is taken off."""

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, Conflict, Invalid, NotFound
from holdfast.cluster.protocol import Change, Cluster, DeleteOptions

from .kinds import CONFIG_MAPS, GADGETS, Document, config_map, gadget, key_of
from .watching import follow, is_about, steps

HELD = "holdfast.dev/held"
KEPT = "holdfast.dev/kept"


async def terminating(cluster: Cluster, namespace: str, *finalizers: str) -> Document:
    made = await cluster.create(GADGETS, gadget("one", finalizers=list(finalizers)), namespace=namespace)
    await cluster.delete(GADGETS, key_of(made))
    return await cluster.get(GADGETS, key_of(made))


async def release(cluster: Cluster, key: Key, *left: str) -> Document:
    return await cluster.patch(GADGETS, key, {"metadata": {"finalizers": list(left)}})


async def test_a_held_object_is_marked_and_stays(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD)
    assert marked.metadata.deletion_timestamp >= marked.metadata.creation_timestamp
    assert marked.metadata.deletion_grace_period_seconds == 0
    assert marked.metadata.finalizers == (HELD,)
    assert (await cluster.list(GADGETS, namespace=namespace)).items == (marked,)
    await release(cluster, key_of(marked))


async def test_being_marked_counts_as_a_new_generation(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD)
    assert marked.metadata.generation == 2
    await release(cluster, key_of(marked))


@pytest.mark.every_engine
async def test_an_object_goes_when_its_last_finalizer_is_taken_off(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD, KEPT)
    still = await release(cluster, key_of(marked), KEPT)
    assert await cluster.get(GADGETS, key_of(marked)) == still
    await release(cluster, key_of(marked))
    with pytest.raises(NotFound):
        await cluster.get(GADGETS, key_of(marked))


async def test_a_marked_object_gains_no_new_finalizer(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD)
    with pytest.raises(Invalid) as refused:
        await release(cluster, key_of(marked), HELD, KEPT)
    assert {cause.field for cause in refused.value.causes} == {"metadata.finalizers"}
    assert await cluster.get(GADGETS, key_of(marked)) == marked
    await release(cluster, key_of(marked))


async def test_a_marked_object_can_still_change(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD)
    key = key_of(marked)
    changed = await cluster.patch(GADGETS, key, {"spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}})
    assert changed.spec["size"] == 9
    assert changed.metadata.generation == 3
    assert (await cluster.patch_status(GADGETS, key, {"status": {"phase": "Ending"}})).status == {"phase": "Ending"}
    await release(cluster, key)


async def test_a_second_delete_of_a_marked_object_changes_nothing(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD)
    await cluster.delete(GADGETS, key_of(marked))
    assert await cluster.get(GADGETS, key_of(marked)) == marked
    with pytest.raises(Conflict):
        await cluster.delete(GADGETS, key_of(marked), DeleteOptions(uid="11111111-2222-3333-4444-555555555555"))
    await release(cluster, key_of(marked))


async def test_the_mark_of_deletion_cannot_be_taken_back(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD)
    await cluster.patch(GADGETS, key_of(marked), {"metadata": {"deletionTimestamp": None}})
    assert await cluster.get(GADGETS, key_of(marked)) == marked
    await release(cluster, key_of(marked))


async def test_the_name_of_a_marked_object_is_still_taken(cluster: Cluster, namespace: str) -> None:
    marked = await terminating(cluster, namespace, HELD)
    with pytest.raises(AlreadyExists):
        await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await release(cluster, key_of(marked))
    assert (await cluster.create(GADGETS, gadget("one"), namespace=namespace)).metadata.uid != marked.metadata.uid


async def test_a_finalizer_taken_off_in_time_holds_nothing(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one", finalizers=[HELD]), namespace=namespace)
    await release(cluster, key_of(made))
    await cluster.delete(GADGETS, key_of(made))
    with pytest.raises(NotFound):
        await cluster.get(GADGETS, key_of(made))


async def test_a_finalizer_without_a_domain_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(CONFIG_MAPS, config_map("one", finalizers=["bad name"]), namespace=namespace)
    assert any("metadata.finalizers" in cause.field for cause in refused.value.causes)


async def test_a_watch_sees_the_mark_and_then_the_end(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(GADGETS, namespace=namespace)).resource_version
    marked = await terminating(cluster, namespace, HELD)
    await release(cluster, key_of(marked))
    events = await follow(cluster, GADGETS, version=start, namespace=namespace, stop=is_about(Change.DELETED, "one"))
    assert steps(events) == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]
    assert events[1].object == marked
    assert events[2].object is not None
    assert events[2].object.metadata.deletion_timestamp == marked.metadata.deletion_timestamp
