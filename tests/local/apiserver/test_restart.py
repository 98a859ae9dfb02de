"""A cluster that is closed and opened again goes on where it was."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Expired, Invalid
from holdfast.cluster.protocol import DeleteOptions, Propagation
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.apiserver.storage import DatabaseUnusable
from tests.contract.kinds import (
    CONFIG_MAPS,
    DEFINITIONS,
    GADGETS,
    NAMESPACES,
    config_map,
    definition,
    gadget,
    key_of,
    owned_by,
)
from tests.contract.waiting import gone

from .bodies import TRAINING_JOBS, training_job
from .clock import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "objects.db"


async def opened(path: Path) -> EmbeddedCluster:
    return await open_cluster(path, now=Clock(), rng=Random(7))


async def test_objects_versions_and_uids_outlive_a_restart(path: Path) -> None:
    cluster = await opened(path)
    made = await cluster.create(CONFIG_MAPS, config_map("one", data={"k": "v"}), namespace="default")
    version = (await cluster.list(CONFIG_MAPS)).resource_version
    await cluster.close()
    cluster = await opened(path)
    assert await cluster.get(CONFIG_MAPS, key_of(made)) == made
    assert (await cluster.list(CONFIG_MAPS)).resource_version == version
    later = await cluster.create(CONFIG_MAPS, config_map("two"), namespace="default")
    assert int(later.metadata.resource_version) == int(version) + 1
    await cluster.close()


async def test_a_restart_of_a_settled_cluster_writes_nothing(path: Path) -> None:
    versions = []
    for _ in range(3):
        cluster = await opened(path)
        versions.append((await cluster.list(CONFIG_MAPS)).resource_version)
        await cluster.close()
    assert len(set(versions)) == 1


async def test_uids_do_not_come_back_with_the_seed(path: Path) -> None:
    uids = set()
    for _ in range(3):
        cluster = await opened(path)
        made = await cluster.create(CONFIG_MAPS, {"metadata": {"generateName": "c-"}}, namespace="default")
        uids.add((made.metadata.uid, made.metadata.name))
        await cluster.close()
    assert len({uid for uid, _ in uids}) == len({name for _, name in uids}) == 3


async def test_the_same_seed_gives_the_same_cluster() -> None:
    async def lived() -> list[str]:
        cluster = await open_cluster(None, now=Clock(), rng=Random(11))
        for _ in range(3):
            await cluster.create(CONFIG_MAPS, {"metadata": {"generateName": "c-"}}, namespace="default")
        listing = await cluster.list(CONFIG_MAPS)
        await cluster.close()
        return [f"{item.metadata}" for item in listing.items]

    assert await lived() == await lived()


async def test_versions_from_before_a_restart_are_expired_or_complete(path: Path) -> None:
    cluster = await opened(path)
    old = (await cluster.list(CONFIG_MAPS)).resource_version
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace="default")
    current = (await cluster.list(CONFIG_MAPS)).resource_version
    await cluster.close()
    cluster = await opened(path)
    with pytest.raises(Expired):
        async with cluster.watch(CONFIG_MAPS, resource_version=old) as events:
            await anext(events)
    two = await cluster.create(CONFIG_MAPS, config_map("two"), namespace="default")
    async with asyncio.timeout(60), cluster.watch(CONFIG_MAPS, resource_version=current) as events:
        assert (await anext(events)).object == two
    await cluster.close()


async def test_a_custom_kind_is_served_again_after_a_restart(path: Path) -> None:
    cluster = await opened(path)
    await cluster.create(DEFINITIONS, definition(GADGETS))
    made = await cluster.create(GADGETS, gadget("one"), namespace="default")
    await cluster.close()
    cluster = await opened(path)
    assert await cluster.get(GADGETS, key_of(made)) == made
    with pytest.raises(Invalid):
        await cluster.patch(GADGETS, key_of(made), {"spec": {"size": 101}})
    await cluster.close()


async def test_an_older_definition_of_ours_is_brought_up_to_date(path: Path) -> None:
    cluster = await opened(path)
    name = f"{TRAINING_JOBS.plural}.{TRAINING_JOBS.group}"
    current = await cluster.get(DEFINITIONS, Key("", name))
    await cluster.patch(DEFINITIONS, Key("", name), {"spec": {"names": {"shortNames": ["old"]}}})
    made = await cluster.create(TRAINING_JOBS, training_job(), namespace="default")
    await cluster.close()
    cluster = await opened(path)
    assert (await cluster.get(DEFINITIONS, Key("", name))).spec == current.spec
    assert await cluster.get(TRAINING_JOBS, key_of(made)) == made
    await cluster.close()


async def test_a_collection_that_a_restart_interrupted_is_carried_on(path: Path) -> None:
    cluster = await opened(path)
    owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace="default")
    child = await cluster.create(
        CONFIG_MAPS, config_map("child", ownerReferences=[owned_by(owner, CONFIG_MAPS)]), namespace="default"
    )
    held = await cluster.create(CONFIG_MAPS, config_map("held"), namespace="default")
    reference = owned_by(held, CONFIG_MAPS, blockOwnerDeletion=True)
    await cluster.create(
        CONFIG_MAPS,
        config_map("late", ownerReferences=[reference], finalizers=["holdfast.dev/held"]),
        namespace="default",
    )
    await cluster.delete(CONFIG_MAPS, key_of(held), DeleteOptions(propagation=Propagation.FOREGROUND))
    await cluster.delete(CONFIG_MAPS, key_of(owner))
    await cluster.close()
    cluster = await opened(path)
    await gone(cluster, CONFIG_MAPS, key_of(child))
    await cluster.patch(CONFIG_MAPS, Key("default", "late"), {"metadata": {"finalizers": None}})
    await gone(cluster, CONFIG_MAPS, key_of(held))
    await cluster.close()


async def test_a_namespace_that_was_ending_ends_after_a_restart(path: Path) -> None:
    cluster = await opened(path)
    await cluster.create(NAMESPACES, {"metadata": {"name": "short"}})
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace="short")
    await cluster.delete(NAMESPACES, Key("", "short"))
    await cluster.close()
    cluster = await opened(path)
    await gone(cluster, NAMESPACES, Key("", "short"))
    await gone(cluster, CONFIG_MAPS, Key("short", "one"))
    await cluster.close()


async def test_a_cluster_in_use_is_refused_and_not_disturbed(path: Path) -> None:
    cluster = await opened(path)
    with pytest.raises(DatabaseUnusable, match="in use by another process"):
        await opened(path)
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace="default")
    await cluster.close()
