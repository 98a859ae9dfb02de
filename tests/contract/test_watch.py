"""A watch shows every change after a version, once and in order, or says that the version is too old."""

import asyncio
from collections import defaultdict

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Expired
from holdfast.cluster.protocol import Change, Cluster, Event

from .engine import Engine
from .kinds import CONFIG_MAPS, GADGETS, RELICS, Document, config_map, gadget, key_of
from .waiting import PATIENCE_S
from .watching import Progress, follow, is_about, steps


async def some_history(cluster: Cluster, namespace: str) -> str:
    """Writes that make six events, the last of them the creation of "last"; the version before the first of them."""
    await cluster.create(GADGETS, gadget("before"), namespace=namespace)
    start = (await cluster.list(GADGETS, namespace=namespace)).resource_version
    one = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await cluster.patch(GADGETS, key_of(one), {"spec": {"size": 2}})
    await cluster.create(GADGETS, gadget("two"), namespace=namespace)
    await cluster.patch_status(GADGETS, key_of(one), {"status": {"phase": "Ready"}})
    await cluster.delete(GADGETS, key_of(one))
    await cluster.create(GADGETS, gadget("last"), namespace=namespace)
    return start


SIX_STEPS = [
    ("ADDED", "one"),
    ("MODIFIED", "one"),
    ("ADDED", "two"),
    ("MODIFIED", "one"),
    ("DELETED", "one"),
    ("ADDED", "last"),
]


async def seen_from(cluster: Cluster, namespace: str, version: str) -> list[Event[Document]]:
    return await follow(cluster, GADGETS, version=version, namespace=namespace, stop=is_about(Change.ADDED, "last"))


async def test_a_watch_from_a_list_shows_exactly_what_followed(cluster: Cluster, namespace: str) -> None:
    start = await some_history(cluster, namespace)
    assert steps(await seen_from(cluster, namespace, start)) == SIX_STEPS


@pytest.mark.every_engine
async def test_a_watch_resumed_anywhere_shows_the_rest_without_loss_or_repeat(cluster: Cluster, namespace: str) -> None:
    start = await some_history(cluster, namespace)
    whole = await seen_from(cluster, namespace, start)
    for seen, event in enumerate(whole[:-1], start=1):
        assert await seen_from(cluster, namespace, event.resource_version) == whole[seen:]


async def test_an_open_watch_shows_changes_as_they_come(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(GADGETS, namespace=namespace)).resource_version
    async with (
        asyncio.timeout(PATIENCE_S),
        cluster.watch(GADGETS, resource_version=start, namespace=namespace) as events,
    ):
        for size in range(1, 4):
            made = await cluster.create(GADGETS, gadget(f"g{size}", spec={"size": size}), namespace=namespace)
            event = await anext(events)
            assert event == Event(Change.ADDED, made.metadata.resource_version, made)


async def test_a_deletion_carries_the_last_state_and_a_newer_version(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(GADGETS, namespace=namespace)).resource_version
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    last = await cluster.patch(GADGETS, key_of(made), {"spec": {"size": 7}, "metadata": {"labels": {"a": "b"}}})
    await cluster.delete(GADGETS, key_of(made))
    event = (await follow(cluster, GADGETS, version=start, namespace=namespace, stop=is_about(Change.DELETED, "one")))[
        -1
    ]
    assert event.object is not None
    assert event.object.spec == last.spec
    assert event.object.metadata.labels == {"a": "b"}
    assert event.object.metadata.uid == made.metadata.uid
    assert int(event.resource_version) > int(last.metadata.resource_version)
    assert event.object.metadata.resource_version == event.resource_version


async def test_an_event_carries_the_object_as_it_was_then(cluster: Cluster, namespace: str) -> None:
    start = await some_history(cluster, namespace)
    ones = [
        e.object for e in await seen_from(cluster, namespace, start) if e.object and e.object.metadata.name == "one"
    ]
    assert [(one.spec["size"], one.status) for one in ones] == [
        (1, {}),
        (2, {}),
        (2, {"phase": "Ready"}),
        (2, {"phase": "Ready"}),
    ]


@pytest.mark.every_engine
async def test_a_version_that_is_no_longer_kept_is_expired(engine: Engine, namespace: str) -> None:
    cluster = engine.cluster
    old = (await cluster.list(RELICS, namespace=namespace)).resource_version
    made = await cluster.create(RELICS, gadget("one"), namespace=namespace)
    await cluster.patch(RELICS, key_of(made), {"spec": {"size": 2}})
    await engine.forget(RELICS)
    with pytest.raises(Expired):
        await follow(cluster, RELICS, version=old, namespace=namespace, stop=lambda _: True)


async def test_after_an_expired_version_a_new_list_can_be_watched_from(engine: Engine, namespace: str) -> None:
    cluster = engine.cluster
    kept = await cluster.create(RELICS, gadget("one"), namespace=namespace)
    await engine.forget(RELICS)
    listing = await cluster.list(RELICS, namespace=namespace)
    assert listing.items == (kept,)
    await cluster.create(RELICS, gadget("two"), namespace=namespace)
    events = await follow(cluster, RELICS, version=listing.resource_version, namespace=namespace, stop=lambda _: True)
    assert steps(events) == [("ADDED", "two")]


WRITERS, CHANGES, WATCHERS = 8, 25, 3


async def write(cluster: Cluster, namespace: str, writer: int) -> list[str]:
    """One object's whole life; the versions that it had."""
    key = Key(namespace, f"w{writer}")
    made = await cluster.create(CONFIG_MAPS, config_map(key.name), namespace=namespace)
    versions = [made.metadata.resource_version]
    for change in range(CHANGES):
        patched = await cluster.patch(CONFIG_MAPS, key, {"data": {"change": str(change)}})
        versions.append(patched.metadata.resource_version)
    await cluster.delete(CONFIG_MAPS, key)
    return versions


async def test_under_load_nothing_is_lost_and_all_watchers_see_one_order(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(CONFIG_MAPS, namespace=namespace)).resource_version
    watchers = [
        asyncio.create_task(
            follow(cluster, CONFIG_MAPS, version=start, namespace=namespace, stop=is_about(Change.ADDED, "last"))
        )
        for _ in range(WATCHERS)
    ]
    written = await asyncio.gather(*(write(cluster, namespace, writer) for writer in range(WRITERS)))
    await cluster.create(CONFIG_MAPS, config_map("last"), namespace=namespace)
    histories = await asyncio.gather(*watchers)
    assert all(history == histories[0] for history in histories)
    versions = [int(event.resource_version) for event in histories[0]]
    assert versions == sorted(set(versions))
    seen: dict[str, list[Event[Document]]] = defaultdict(list)
    for event in histories[0]:
        assert event.object is not None
        seen[event.object.metadata.name].append(event)
    for writer, expected in enumerate(written):
        life = seen[f"w{writer}"]
        assert [event.change for event in life] == [Change.ADDED] + [Change.MODIFIED] * CHANGES + [Change.DELETED]
        assert [event.resource_version for event in life[:-1]] == expected


async def test_a_watch_that_has_nothing_to_show_says_how_far_it_has_come(
    cluster: Cluster, namespace: str, first_bookmark: asyncio.Task[Progress]
) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        start, bookmark = await first_bookmark
    assert (bookmark.change, bookmark.object) == (Change.BOOKMARK, None)
    assert int(bookmark.resource_version) > int(start)
    await cluster.create(CONFIG_MAPS, config_map("after"), namespace=namespace)
    events = await follow(
        cluster,
        CONFIG_MAPS,
        version=bookmark.resource_version,
        namespace=namespace,
        stop=is_about(Change.ADDED, "after"),
    )
    assert steps(events)[-1] == ("ADDED", "after")
