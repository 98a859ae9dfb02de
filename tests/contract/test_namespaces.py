"""Namespaces hold objects, and take them along when they go."""

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Forbidden, NotFound
from holdfast.cluster.protocol import Change, Cluster, DeleteOptions

from .engine import Engine
from .kinds import CONFIG_MAPS, GADGETS, NAMESPACES, config_map, gadget, key_of
from .waiting import gone
from .watching import follow, is_about, steps


async def test_the_same_name_in_two_namespaces_is_two_objects(engine: Engine, namespace: str) -> None:
    other = await engine.namespace()
    here = await engine.cluster.create(GADGETS, gadget("one", spec={"size": 1}), namespace=namespace)
    there = await engine.cluster.create(GADGETS, gadget("one", spec={"size": 2}), namespace=other)
    await engine.cluster.delete(GADGETS, key_of(here), DeleteOptions(uid=here.metadata.uid))
    assert await engine.cluster.get(GADGETS, Key(other, "one")) == there
    await engine.cluster.delete(NAMESPACES, Key("", other))


async def test_a_list_over_all_namespaces_finds_what_each_of_them_holds(engine: Engine, namespace: str) -> None:
    other = await engine.namespace()
    for place in (namespace, other):
        await engine.cluster.create(GADGETS, gadget("one", labels={"run": namespace}), namespace=place)
    everywhere = await engine.cluster.list(GADGETS, labels=f"run={namespace}")
    assert {key_of(item) for item in everywhere.items} == {Key(namespace, "one"), Key(other, "one")}
    assert [key_of(item) for item in (await engine.cluster.list(GADGETS, namespace=other)).items] == [Key(other, "one")]
    await engine.cluster.delete(NAMESPACES, Key("", other))


@pytest.mark.every_engine
async def test_a_watch_over_all_namespaces_sees_each_of_them(engine: Engine, namespace: str) -> None:
    other = await engine.namespace()
    selector = f"run={namespace}"
    start = (await engine.cluster.list(GADGETS, labels=selector)).resource_version
    await engine.cluster.create(GADGETS, gadget("here", labels={"run": namespace}), namespace=namespace)
    await engine.cluster.create(GADGETS, gadget("there", labels={"run": namespace}), namespace=other)
    events = await follow(
        engine.cluster, GADGETS, version=start, namespace="", labels=selector, stop=is_about(Change.ADDED, "there")
    )
    assert steps(events) == [("ADDED", "here"), ("ADDED", "there")]
    await engine.cluster.delete(NAMESPACES, Key("", other))


async def test_an_object_in_a_missing_namespace_is_not_found(cluster: Cluster) -> None:
    for kind, body in ((GADGETS, gadget("one")), (CONFIG_MAPS, config_map("one"))):
        with pytest.raises(NotFound, match='namespaces "missing" not found'):
            await cluster.create(kind, body, namespace="missing")
        assert (await cluster.list(kind, namespace="missing")).items == ()


async def test_a_body_of_another_namespace_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(BadRequest):
        await cluster.create(CONFIG_MAPS, config_map("one", namespace="another"), namespace=namespace)


async def test_an_ending_namespace_takes_no_new_objects(engine: Engine) -> None:
    namespace = await engine.namespace()
    await engine.cluster.delete(NAMESPACES, Key("", namespace))
    for kind, body in ((GADGETS, gadget("late")), (CONFIG_MAPS, config_map("late"))):
        with pytest.raises(Forbidden, match="being terminated"):
            await engine.cluster.create(kind, body, namespace=namespace)


async def test_an_ending_namespace_takes_what_it_holds_along(engine: Engine) -> None:
    cluster, namespace = engine.cluster, await engine.namespace()
    for kind, body in ((GADGETS, gadget("one")), (CONFIG_MAPS, config_map("one"))):
        await cluster.create(kind, body, namespace=namespace)
    await cluster.delete(NAMESPACES, Key("", namespace))
    await gone(cluster, NAMESPACES, Key("", namespace))
    for kind in (GADGETS, CONFIG_MAPS):
        assert (await cluster.list(kind, namespace=namespace)).items == ()
