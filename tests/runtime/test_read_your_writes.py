"""A reconcile never reads less than its last run wrote, and never waits for ever for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from random import Random

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unreachable
from holdfast.cluster.protocol import Resource
from holdfast.runtime.informer import Informers, Store
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.read_your_writes import PATIENCE_S, TrackedClient, WriteTracker
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import PARTS, THINGS, A, B, Part, Thing, cached, part, running, thing
from tests.runtime.virtual import settled, virtual

UNREAD = Resource(group="unread", version="v1", kind="Part", plural="parts", model=Part)


class Rig:
    """A store of things that has a thing named a, and has fallen behind since."""

    def __init__(self, *namespaces: str) -> None:
        self.cluster = ScriptedCluster()
        self.informers = Informers(self.cluster, namespaces, metrics=Metrics(), random=Random(1))
        self.informers.store(THINGS)
        self.informers.store(PARTS)
        self.writer = WriteTracker(self.cluster, self.informers)
        self.cluster.put(THINGS, thing("a", 1))

    @asynccontextmanager
    async def behind(self) -> AsyncIterator[TrackedClient]:
        await self.informers.sync()
        async with running(self.informers.run()):
            await settled()
            self.cluster.delivering.clear()
            yield self.writer.for_key(A)

    async def catch_up(self) -> None:
        self.cluster.delivering.set()
        await settled()


async def create(session: TrackedClient) -> None:
    await session.create(THINGS, thing("new"), namespace="ns")


async def replace(session: TrackedClient) -> None:
    await session.replace(THINGS, A, thing("a", 2))


async def patch(session: TrackedClient) -> None:
    await session.patch(THINGS, A, {"spec": {"size": 3}})


async def patch_status(session: TrackedClient) -> None:
    await session.patch_status(THINGS, A, {"status": {"state": "Running"}})


async def delete(session: TrackedClient) -> None:
    await session.delete(THINGS, A)


def marked(key: Key) -> Thing:
    """Deleted, and kept by a finalizer."""
    obj = cached(key)
    return structs.replace(obj, metadata=structs.replace(obj.metadata, deletion_timestamp="2026-01-02T12:00:00Z"))


Write = Callable[[TrackedClient], Awaitable[None]]


@pytest.mark.parametrize("write", [create, replace, patch, patch_status, delete])
def test_after_any_write_its_key_and_no_other_waits_until_the_store_shows_it(write: Write) -> None:
    @virtual
    async def waits() -> None:
        rig = Rig()
        async with rig.behind() as session:
            assert not rig.writer.is_cache_stale(A)
            await write(session)
            assert rig.writer.is_cache_stale(A)
            assert not rig.writer.is_cache_stale(B)
            await rig.catch_up()
            assert not rig.writer.is_cache_stale(A)

    waits()


@virtual
async def test_what_the_cluster_answers_is_handed_on() -> None:
    rig = Rig()
    async with rig.behind() as session:
        assert (await session.create(THINGS, thing("b", 7), namespace="ns")).spec.size == 7
        assert (await session.patch(THINGS, A, {"spec": {"size": 8}})).spec.size == 8
        assert rig.cluster.peek(THINGS, A)["spec"] == {"size": 8}


@virtual
async def test_every_store_that_was_written_to_has_to_catch_up() -> None:
    rig = Rig()
    async with rig.behind() as session:
        await session.create(PARTS, part("p", "a"), namespace="ns")
        await session.patch(THINGS, A, {"spec": {"size": 2}})
        rig.informers.store(THINGS).set_resource_version("9999")
        assert rig.writer.is_cache_stale(A)
        rig.informers.store(PARTS).set_resource_version("9999")
        assert not rig.writer.is_cache_stale(A)


@virtual
async def test_a_bookmark_is_enough() -> None:
    rig = Rig()
    async with rig.behind() as session:
        made = await session.create(THINGS, thing("b"), namespace="ns")
        rig.informers.store(THINGS).set_resource_version(str(int(made.metadata.resource_version) - 1))
        assert rig.writer.is_cache_stale(A)
        rig.informers.store(THINGS).set_resource_version(made.metadata.resource_version)
        assert not rig.writer.is_cache_stale(A)


@virtual
async def test_a_write_that_changed_nothing_is_not_waited_for() -> None:
    rig = Rig()
    async with rig.behind() as session:
        known = rig.informers.store(THINGS).resource_version()
        rig.writer.note_write(A, THINGS, cached(A, version=known))
        assert not rig.writer.is_cache_stale(A)
        await session.patch(THINGS, A, {})
        assert rig.writer.is_cache_stale(A)  # this cluster counts every patch


@virtual
async def test_what_nobody_reads_is_not_waited_for() -> None:
    rig = Rig()
    async with rig.behind() as session:
        await session.create(UNREAD, part("p", "a"), namespace="ns")
        await session.delete(UNREAD, Key("ns", "p"))
        assert not rig.writer.is_cache_stale(A)


@virtual
async def test_a_namespace_that_nobody_watches_is_not_waited_for() -> None:
    rig = Rig("ns", "other")
    async with rig.behind() as session:
        await session.create(THINGS, thing("b"), namespace="foreign")
        assert not rig.writer.is_cache_stale(A)
        await session.create(THINGS, thing("b"), namespace="other")
        rig.informers.store(THINGS).set_resource_version(
            "9999", "ns"
        )  # how far another namespace has come says nothing
        assert rig.writer.is_cache_stale(A)
        rig.informers.store(THINGS).set_resource_version("9999", "other")
        assert not rig.writer.is_cache_stale(A)


@virtual
async def test_versions_that_are_not_numbers_count_as_seen() -> None:
    rig = Rig()
    async with rig.behind():
        rig.writer.note_write(A, THINGS, cached(A, version="abc"))
        assert not rig.writer.is_cache_stale(A)


@pytest.mark.parametrize("error", [AlreadyExists("there"), Unreachable("no answer"), Conflict("changed")])
def test_a_write_that_failed_is_not_waited_for(error: ClusterError) -> None:
    @virtual
    async def fails() -> None:
        rig = Rig()
        async with rig.behind() as session:
            rig.cluster.errors["create"] = [error]
            rig.cluster.errors["delete"] = [error]
            for write in (create, delete):
                with pytest.raises(type(error)):
                    await write(session)
            assert not rig.writer.is_cache_stale(A)

    fails()


@virtual
async def test_a_deletion_is_seen_when_the_object_is_marked_gone_or_another() -> None:
    rig = Rig()
    async with rig.behind():
        store: Store[Thing] = rig.informers.store(THINGS)
        for shown, uid in product((cached(A, uid="another"), marked(A), None), ("", "u")):
            store.put(cached(A))
            rig.writer.note_delete(A, THINGS, A, uid)
            assert rig.writer.is_cache_stale(A)
            store.remove(A)
            if shown is not None:
                store.put(shown)
            assert not rig.writer.is_cache_stale(A)


@virtual
async def test_deleting_what_the_store_does_not_show_is_not_waited_for() -> None:
    rig = Rig()
    async with rig.behind() as session:
        with pytest.raises(NotFound):
            await session.delete(THINGS, B)
        await rig.cluster.create(THINGS, thing("b"), namespace="ns")
        await session.delete(THINGS, B)
        assert not rig.writer.is_cache_stale(A)


@virtual
async def test_patience_ends_with_a_warning() -> None:
    rig = Rig()
    async with rig.behind() as session:
        await create(session)
        await asyncio.sleep(PATIENCE_S - 1)
        assert rig.writer.is_cache_stale(A)
        await asyncio.sleep(2)
        with capture_logs() as logs:
            assert not rig.writer.is_cache_stale(A)
            assert not rig.writer.is_cache_stale(A)
        assert [(line["log_level"], line["key"], line["writes"]) for line in logs] == [("warning", "ns/a", 1)]


@virtual
async def test_patience_counts_from_the_last_write() -> None:
    rig = Rig()
    async with rig.behind() as session:
        await create(session)
        await asyncio.sleep(PATIENCE_S - 1)
        await patch(session)
        await asyncio.sleep(PATIENCE_S - 1)
        assert rig.writer.is_cache_stale(A)
