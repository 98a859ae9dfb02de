"""Bounded waits for what the cluster does in its own time."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster, Resource
from tests.control_plane.waiting import eventually

T = TypeVar("T", bound=Object)

PATIENCE_S = 60.0


async def found(cluster: Cluster, resource: Resource[T], key: Key) -> T | None:
    try:
        return await cluster.get(resource, key)
    except NotFound:
        return None


async def until(cluster: Cluster, resource: Resource[T], key: Key, holds: Callable[[T], object], what: str) -> T:
    """The object, once it is there and the condition holds for it."""
    there = await eventually(
        partial(found, cluster, resource, key),
        lambda it: it is not None and bool(holds(it)),
        what=f"{resource} {key}: {what}",
    )
    assert there is not None
    return there


async def gone(cluster: Cluster, resource: Resource[T], key: Key) -> None:
    await eventually(partial(found, cluster, resource, key), lambda it: it is None, what=f"{resource} {key} is gone")


async def listed(
    cluster: Cluster,
    resource: Resource[T],
    namespace: str,
    holds: Callable[[tuple[T, ...]], object],
    what: str,
    *,
    labels: str = "",
) -> tuple[T, ...]:
    """What a list gives, once the condition holds for it."""

    async def look() -> tuple[T, ...]:
        return (await cluster.list(resource, namespace=namespace, labels=labels)).items

    return await eventually(look, lambda items: bool(holds(items)), what=what)
