"""Stores are shared, and cover the namespaces that were asked for."""

import asyncio
from collections.abc import Iterable
from functools import partial
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Forbidden, NotFound, Unreachable
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import HOSTS, PARTS, THINGS, A, Thing, part, running, thing
from tests.runtime.virtual import settled, virtual


def by_size(obj: Thing) -> Iterable[str]:
    return (str(obj.spec.size),)


def by_name(obj: Thing) -> Iterable[str]:
    return (obj.metadata.name,)


def informers_on(cluster: ScriptedCluster, *namespaces: str) -> Informers:
    return Informers(cluster, namespaces, metrics=Metrics(), random=Random(1))


@virtual
async def test_all_users_of_a_resource_share_one_store_and_one_watch() -> None:
    cluster = ScriptedCluster()
    informers = informers_on(cluster)
    store = informers.store(THINGS, {"size": by_size})
    assert informers.store(THINGS, {"name": by_name}) is store
    assert informers.of(THINGS).store is informers.find(THINGS) is store
    await informers.sync()
    async with running(informers.run()):
        cluster.put(THINGS, thing("a", 5))
        await settled()
        assert store.by("size", "5") == store.by("name", "a") == [store.get(A)]
    assert len(cluster.calls_of("list")) == len(cluster.calls_of("watch")) == 1


@virtual
async def test_every_handler_gets_every_change() -> None:
    cluster = ScriptedCluster()
    informers = informers_on(cluster)
    heard: list[tuple[int, str]] = []

    def hear(listener: int, old: Thing | None, new: Thing | None) -> None:
        heard.append((listener, new.metadata.name if new else "gone"))

    informers.of(THINGS).handlers += [partial(hear, 1), partial(hear, 2)]
    cluster.put(THINGS, thing("a"))
    await informers.sync()
    async with running(informers.run()):
        cluster.drop(THINGS, A)
        await settled()
    assert heard == [(1, "a"), (2, "a"), (1, "gone"), (2, "gone")]


@virtual
async def test_of_several_namespaces_each_is_watched_and_no_other() -> None:
    cluster = ScriptedCluster()
    informers = informers_on(cluster, "ns", "other")
    store = informers.store(THINGS)
    for namespace in ("ns", "other", "foreign"):
        cluster.put(THINGS, thing("a"), namespace=namespace)
    await informers.sync()
    async with running(informers.run()):
        for namespace in ("ns", "other", "foreign"):
            cluster.put(THINGS, thing("b"), namespace=namespace)
        await settled()
    assert sorted(store.keys()) == [Key("ns", "a"), Key("ns", "b"), Key("other", "a"), Key("other", "b")]
    assert {call[2].namespace for call in cluster.calls} == {"ns", "other"}


@virtual
async def test_what_lives_in_no_namespace_is_watched_as_a_whole() -> None:
    cluster = ScriptedCluster()
    informers = informers_on(cluster, "ns")
    store = informers.store(HOSTS)
    cluster.put(HOSTS, part("h", "a"))
    await informers.sync()
    assert store.keys() == [Key("", "h")]


@virtual
async def test_a_store_can_be_limited_to_labels() -> None:
    cluster = ScriptedCluster()
    informers = informers_on(cluster)
    informers.of(THINGS)  # somebody watches, whatever the store holds
    store = informers.store(THINGS, labels="made-by=holdfast")
    cluster.put(THINGS, {"metadata": {"name": "theirs"}})
    cluster.put(THINGS, {"metadata": {"name": "a", "labels": {"made-by": "holdfast"}}})
    await informers.sync()
    async with running(informers.run()):
        cluster.put(THINGS, {"metadata": {"name": "b", "labels": {"made-by": "holdfast"}}})
        cluster.put(THINGS, {"metadata": {"name": "too"}})
        await settled()
    assert {obj.metadata.name for obj in store} == {"a", "b"}


@virtual
async def test_users_who_disagree_on_labels_get_an_error() -> None:
    informers = informers_on(ScriptedCluster())
    informers.store(THINGS, labels="a=b")
    informers.store(THINGS, labels="a=b")
    with pytest.raises(ValueError, match="'a=b' and ''"):
        informers.store(THINGS)


@virtual
async def test_the_first_lists_raise_the_first_resources_error() -> None:
    cluster = ScriptedCluster()
    informers = informers_on(cluster)
    informers.store(THINGS)
    informers.store(PARTS)
    cluster.errors["list"] = [NotFound("no things"), Forbidden("no right to parts")]
    with pytest.raises(NotFound, match="no things"):
        await informers.sync()


@virtual
async def test_a_store_asked_for_after_the_start_would_stay_empty_and_is_refused() -> None:
    informers = informers_on(ScriptedCluster())
    informers.store(THINGS)
    await informers.sync()
    assert informers.store(THINGS) is informers.find(THINGS)
    with pytest.raises(RuntimeError, match="declare its store before"):
        informers.store(PARTS)
    assert informers.find(PARTS) is None


@virtual
async def test_troubles_are_one_line_for_each_watch_that_is_cut_off() -> None:
    cluster = ScriptedCluster()
    informers = informers_on(cluster)
    informers.store(THINGS)
    informers.store(PARTS)
    assert informers.unready_reasons() == ["things.tests.holdfast.dev: not listed yet", "parts: not listed yet"]
    await informers.sync()
    async with running(informers.run()):
        await settled()
        assert informers.unready_reasons() == []
        cluster.cut(Unreachable("the server is away"))
        await settled()
        assert informers.unready_reasons() == [
            "things.tests.holdfast.dev: the server is away",
            "parts: the server is away",
        ]
        await asyncio.sleep(5.0)
        assert informers.unready_reasons() == []
