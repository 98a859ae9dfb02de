"""What guards a write: the version and the uid that were looked at."""

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Conflict, Invalid
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions, Resource

from .kinds import CONFIG_MAPS, GADGETS, Document, config_map, gadget, key_of
from .waiting import gone
from .watching import follow, steps

ANOTHER_UID = "11111111-2222-3333-4444-555555555555"


async def changed_since(cluster: Cluster, namespace: str) -> tuple[Document, Document]:
    """A gadget as it was, and as somebody else has changed it since."""
    made = await cluster.create(GADGETS, gadget("one", spec={"size": 1}), namespace=namespace)
    return made, await cluster.patch(GADGETS, key_of(made), {"spec": {"size": 2}})


@pytest.mark.every_engine
async def test_a_replacement_of_a_stale_version_is_refused(cluster: Cluster, namespace: str) -> None:
    seen, current = await changed_since(cluster, namespace)
    with pytest.raises(Conflict):
        await cluster.replace(
            GADGETS, key_of(seen), gadget("one", spec={"size": 3}, resourceVersion=seen.metadata.resource_version)
        )
    assert await cluster.get(GADGETS, key_of(seen)) == current


async def test_a_replacement_of_the_current_version_is_done(cluster: Cluster, namespace: str) -> None:
    _, current = await changed_since(cluster, namespace)
    replaced = await cluster.replace(
        GADGETS, key_of(current), gadget("one", spec={"size": 3}, resourceVersion=current.metadata.resource_version)
    )
    assert replaced.spec["size"] == 3


async def test_a_custom_resource_is_replaced_only_with_its_version(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.replace(GADGETS, key_of(made), gadget("one", spec={"size": 3}))
    assert {cause.field for cause in refused.value.causes} == {"metadata.resourceVersion"}


async def test_a_config_map_may_be_replaced_unconditionally(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one", data={"k": "old"}), namespace=namespace)
    await cluster.patch(CONFIG_MAPS, key_of(made), {"data": {"k": "newer"}})
    assert (await cluster.replace(CONFIG_MAPS, key_of(made), config_map("one", data={"k": "last"}))).data["k"] == "last"


async def test_a_replacement_with_another_uid_is_refused(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace=namespace)
    with pytest.raises(Conflict):
        await cluster.replace(CONFIG_MAPS, key_of(made), config_map("one", data={"k": "v"}, uid=ANOTHER_UID))
    assert await cluster.get(CONFIG_MAPS, key_of(made)) == made


async def test_a_patch_guarded_by_a_stale_version_is_refused(cluster: Cluster, namespace: str) -> None:
    seen, current = await changed_since(cluster, namespace)
    stale = {"metadata": {"resourceVersion": seen.metadata.resource_version}}
    with pytest.raises(Conflict):
        await cluster.patch(GADGETS, key_of(seen), {**stale, "spec": {"size": 3}})
    with pytest.raises(Conflict):
        await cluster.patch_status(GADGETS, key_of(seen), {**stale, "status": {"phase": "Ready"}})
    assert await cluster.get(GADGETS, key_of(seen)) == current


async def test_a_patch_guarded_by_the_current_version_is_done(cluster: Cluster, namespace: str) -> None:
    _, current = await changed_since(cluster, namespace)
    guard = {"metadata": {"resourceVersion": current.metadata.resource_version, "uid": current.metadata.uid}}
    patched = await cluster.patch(GADGETS, key_of(current), {**guard, "spec": {"size": 3}})
    assert patched.spec["size"] == 3


async def test_a_patch_without_a_version_is_done_whatever_came_between(cluster: Cluster, namespace: str) -> None:
    seen, current = await changed_since(cluster, namespace)
    patched = await cluster.patch(GADGETS, key_of(seen), {"metadata": {"labels": {"a": "b"}}})
    assert patched.spec == current.spec
    assert patched.metadata.labels == {"a": "b"}


@pytest.mark.parametrize(("kind", "body"), [(GADGETS, gadget("one")), (CONFIG_MAPS, config_map("one"))])
async def test_a_patch_guarded_by_another_uid_is_refused(
    cluster: Cluster, namespace: str, kind: Resource[Document], body: JSON
) -> None:
    made = await cluster.create(kind, body, namespace=namespace)
    # The server has no precondition here: to it the uid is a field that may not change, hence Invalid and no Conflict.
    with pytest.raises(Invalid) as refused:
        await cluster.patch(kind, key_of(made), {"metadata": {"uid": ANOTHER_UID, "labels": {"a": "b"}}})
    assert {cause.field for cause in refused.value.causes} == {"metadata.uid"}
    assert await cluster.get(kind, key_of(made)) == made


@pytest.mark.every_engine
async def test_a_patch_of_the_status_is_guarded_by_the_version_alone(cluster: Cluster, namespace: str) -> None:
    first = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await cluster.delete(GADGETS, key_of(first))
    second = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    by_version = {"metadata": {"resourceVersion": first.metadata.resource_version}, "status": {"phase": "Ready"}}
    with pytest.raises(Conflict):
        await cluster.patch_status(GADGETS, key_of(first), by_version)
    assert await cluster.get(GADGETS, key_of(first)) == second
    # The server puts the stored metadata in place of the patched one before it looks at the uid.
    by_uid = {"metadata": {"uid": first.metadata.uid}, "status": {"phase": "Ready"}}
    assert (await cluster.patch_status(GADGETS, key_of(first), by_uid)).metadata.uid == second.metadata.uid


async def test_the_version_of_a_predecessor_is_a_conflict_before_its_uid_is_looked_at(
    cluster: Cluster, namespace: str
) -> None:
    first = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await cluster.delete(GADGETS, key_of(first))
    second = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    guard = {"uid": first.metadata.uid, "resourceVersion": first.metadata.resource_version}
    with pytest.raises(Conflict):
        await cluster.patch(GADGETS, key_of(first), {"metadata": guard, "spec": {"size": 3}})
    assert await cluster.get(GADGETS, key_of(first)) == second


@pytest.mark.every_engine
async def test_a_delete_of_another_uid_is_refused_and_the_object_stays(cluster: Cluster, namespace: str) -> None:
    for kind, body in ((GADGETS, gadget("one")), (CONFIG_MAPS, config_map("one"))):
        made = await cluster.create(kind, body, namespace=namespace)
        with pytest.raises(Conflict):
            await cluster.delete(kind, key_of(made), DeleteOptions(uid=ANOTHER_UID))
        assert await cluster.get(kind, key_of(made)) == made


async def test_a_delete_never_hits_the_successor_of_what_was_looked_at(cluster: Cluster, namespace: str) -> None:
    first = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await cluster.delete(GADGETS, key_of(first), DeleteOptions(uid=first.metadata.uid))
    second = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    with pytest.raises(Conflict):
        await cluster.delete(GADGETS, key_of(first), DeleteOptions(uid=first.metadata.uid))
    assert await cluster.get(GADGETS, key_of(first)) == second


async def test_a_delete_of_a_stale_version_is_refused_and_the_object_stays(cluster: Cluster, namespace: str) -> None:
    seen, current = await changed_since(cluster, namespace)
    with pytest.raises(Conflict):
        await cluster.delete(
            GADGETS, key_of(seen), DeleteOptions(uid=seen.metadata.uid, resource_version=seen.metadata.resource_version)
        )
    assert await cluster.get(GADGETS, key_of(seen)) == current


async def test_a_delete_of_exactly_what_was_looked_at_is_done(cluster: Cluster, namespace: str) -> None:
    _, current = await changed_since(cluster, namespace)
    await cluster.delete(
        GADGETS,
        key_of(current),
        DeleteOptions(uid=current.metadata.uid, resource_version=current.metadata.resource_version),
    )
    await gone(cluster, GADGETS, key_of(current))


async def test_every_change_gives_a_higher_version(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    labelled = await cluster.patch(GADGETS, key_of(made), {"metadata": {"labels": {"a": "b"}}})
    grown = await cluster.patch(GADGETS, key_of(made), {"spec": {"size": 2}})
    ready = await cluster.patch_status(GADGETS, key_of(made), {"status": {"phase": "Ready"}})
    versions = [int(each.metadata.resource_version) for each in (made, labelled, grown, ready)]
    assert versions == sorted(set(versions))


@pytest.mark.every_engine
async def test_a_write_that_changes_nothing_keeps_the_version_and_makes_no_event(
    cluster: Cluster, namespace: str
) -> None:
    await cluster.create(GADGETS, gadget("one", spec={"size": 2}, labels={"a": "b"}), namespace=namespace)
    key = Key(namespace, "one")
    ready = await cluster.patch_status(GADGETS, key, {"status": {"phase": "Ready"}})
    for repeated in (
        await cluster.patch(GADGETS, key, {"spec": {"size": 2}, "metadata": {"labels": {"a": "b"}}}),
        await cluster.patch(GADGETS, key, {"metadata": {"annotations": {"absent": None}}}),
        await cluster.patch_status(GADGETS, key, {"status": {"phase": "Ready"}}),
        await cluster.replace(
            GADGETS,
            key,
            gadget("one", spec=ready.spec, labels={"a": "b"}, resourceVersion=ready.metadata.resource_version),
        ),
    ):
        assert repeated == ready
    await cluster.create(GADGETS, gadget("last"), namespace=namespace)
    events = await follow(
        cluster, GADGETS, version=ready.metadata.resource_version, namespace=namespace, stop=lambda _: True
    )
    assert steps(events) == [("ADDED", "last")]
