"""Everything that happens to the objects of one kind, without a gap."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from tests.control_plane.api import Api, Session

T = TypeVar("T")


class Change(Struct, Generic[T], frozen=True):
    version: int
    """The API server counts all kinds in one row, so this is the order in which things happened."""
    obj: T
    new: bool = False
    gone: bool = False


class _Metadata(Struct, frozen=True, rename="camel"):
    resource_version: str


class _Versioned(Struct, frozen=True):
    metadata: _Metadata


class _Line(Struct, frozen=True):
    type: str
    object: msgspec.Raw


async def changes(session: Session, path: str, model: type[T]) -> AsyncGenerator[Change[T], None]:
    """First what is there, then what changes, for ever; a gap is an error, since nobody could say what was missed."""
    listing = await session.request("GET", path)
    for item in listing["items"]:
        yield Change(_version(item["metadata"]), msgspec.convert(item, model), new=True)
    version = _version(listing["metadata"])
    while True:  # the server ends a watch now and then
        async for line in session.watch(path, str(version)):
            told = msgspec.json.decode(line, type=_Line)
            assert told.type in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"), f"a gap in {path}: {line!r}"
            version = int(msgspec.json.decode(told.object, type=_Versioned).metadata.resource_version)
            if told.type != "BOOKMARK":
                obj = msgspec.json.decode(told.object, type=model)
                yield Change(version, obj, new=told.type == "ADDED", gone=told.type == "DELETED")


@asynccontextmanager
async def following(api: Api, *followers: Callable[[Session], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Meanwhile each of them follows what the server tells."""
    async with api.session() as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow(session)) for follow in followers]
        yield
        for task in tasks:
            task.cancel()


def _version(metadata: dict[str, Any]) -> int:
    return int(metadata["resourceVersion"])
