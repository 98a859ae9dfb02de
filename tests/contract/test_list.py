"""A list is one moment, however many objects there are, and can be watched on from."""

import asyncio

import pytest

from holdfast.cluster.protocol import Change, Cluster

from .kinds import CONFIG_MAPS, Document, config_map, key_of
from .watching import follow, is_about, steps

MORE_THAN_A_PAGE = 620
AT_A_TIME = 20


async def fill(cluster: Cluster, namespace: str, count: int) -> list[Document]:
    limit = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> Document:
        async with limit:
            body = config_map(f"c{number:04}", labels={"parity": "odd" if number % 2 else "even"})
            return await cluster.create(CONFIG_MAPS, body, namespace=namespace)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def test_an_empty_list_has_a_version_to_watch_from(cluster: Cluster, namespace: str) -> None:
    listing = await cluster.list(CONFIG_MAPS, namespace=namespace, labels="run=never")
    assert listing.items == ()
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace=namespace)
    events = await follow(
        cluster,
        CONFIG_MAPS,
        version=listing.resource_version,
        namespace=namespace,
        stop=is_about(Change.ADDED, "one"),
    )
    assert steps(events)[-1] == ("ADDED", "one")


async def test_a_list_holds_every_write_that_was_answered_before_it(cluster: Cluster, namespace: str) -> None:
    for number in range(20):
        made = await cluster.create(CONFIG_MAPS, config_map(f"c{number}"), namespace=namespace)
        listing = await cluster.list(CONFIG_MAPS, namespace=namespace)
        assert made in listing.items
        assert int(listing.resource_version) >= int(made.metadata.resource_version)


@pytest.mark.every_engine
async def test_more_objects_than_a_page_come_whole_and_each_once(cluster: Cluster, namespace: str) -> None:
    made = await fill(cluster, namespace, MORE_THAN_A_PAGE)
    listing = await cluster.list(CONFIG_MAPS, namespace=namespace, labels="parity")
    assert sorted(key_of(item) for item in listing.items) == [key_of(each) for each in made]
    odd = await cluster.list(CONFIG_MAPS, namespace=namespace, labels="parity=odd")
    assert len(odd.items) == MORE_THAN_A_PAGE // 2


@pytest.mark.every_engine
async def test_a_list_and_the_watch_from_it_make_one_history(cluster: Cluster, namespace: str) -> None:
    """Whatever is not in the list comes in the watch, and nothing comes twice."""
    writing = asyncio.create_task(fill(cluster, namespace, 200))
    listing = await cluster.list(CONFIG_MAPS, namespace=namespace, labels="parity")
    made = {key_of(each).name for each in await writing}
    await cluster.create(CONFIG_MAPS, config_map("last", labels={"parity": "none"}), namespace=namespace)
    events = await follow(
        cluster,
        CONFIG_MAPS,
        version=listing.resource_version,
        namespace=namespace,
        labels="parity",
        stop=is_about(Change.ADDED, "last"),
    )
    names = [key_of(item).name for item in listing.items] + [name for _, name in steps(events)]
    assert len(names) == len(set(names))
    assert set(names) == made | {"last"}
