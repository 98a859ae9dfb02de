"""Small kinds for the tests: a Thing that is reconciled, and Parts that it owns."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from holdfast.api.meta import Key, Object, ObjectMeta, OwnerReference
from holdfast.cluster.protocol import JSON, Resource
from tests.control_plane.waiting import eventually
from tests.runtime.virtual import BEGINNING_S, now_s


class ThingSpec(Struct, frozen=True, rename="camel"):
    size: int = 0


class Thing(Object, frozen=True, kw_only=True):
    spec: ThingSpec = ThingSpec()


class Part(Object, frozen=True, kw_only=True):
    pass


THINGS = Resource(group="tests.holdfast.dev", version="v1", kind="Thing", plural="things", model=Thing)
PARTS = Resource(group="", version="v1", kind="Part", plural="parts", model=Part)
HOSTS = Resource(group="", version="v1", kind="Host", plural="hosts", model=Part, namespaced=False)

A, B, C = Key("ns", "a"), Key("ns", "b"), Key("ns", "c")


def thing(name: str, size: int = 0, **labels: str) -> JSON:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"size": size}}


def cached(key: Key, *, uid: str = "u", version: str = "1", size: int = 0, **labels: str) -> Thing:
    """A Thing as a store holds it."""
    meta = ObjectMeta(name=key.name, namespace=key.namespace, uid=uid, resource_version=version, labels=labels)
    return Thing(metadata=meta, spec=ThingSpec(size))


def part(name: str, owner: str) -> JSON:
    reference = OwnerReference(api_version="tests.holdfast.dev/v1", kind="Thing", name=owner, uid="u", controller=True)
    return {"metadata": {"name": name, "ownerReferences": [reference]}}


def noon() -> datetime:
    """The time on the wall: noon when a virtual loop begins, and it goes on with the loop."""
    return datetime(2026, 1, 2, 12, 0, tzinfo=UTC) + timedelta(seconds=now_s() - BEGINNING_S)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` beside the block, and end it with the block; what it raised by itself is raised here."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""

    async def look() -> bool:
        return bool(holds())

    await eventually(look, bool, what=what)
