"""Reading a watch up to a known event, so that a test sees exactly what happened before it and nothing is left out."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from holdfast.api.meta import Object
from holdfast.cluster.protocol import Change, Cluster, Event, Resource

from .kinds import CONFIG_MAPS, Document
from .waiting import PATIENCE_S

T = TypeVar("T", bound=Object)


async def follow(
    cluster: Cluster,
    resource: Resource[T],
    *,
    version: str,
    namespace: str,
    stop: Callable[[Event[T]], object],
    labels: str = "",
    fields: str = "",
) -> list[Event[T]]:
    """Every event but bookmarks after `version`, up to and with the first for which `stop` holds."""
    seen: list[Event[T]] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with cluster.watch(
                resource, resource_version=version, namespace=namespace, labels=labels, fields=fields
            ) as events:
                async for event in events:
                    version = event.resource_version
                    if event.change is Change.BOOKMARK:
                        continue
                    seen.append(event)
                    if stop(event):
                        return seen


def is_about(change: Change, name: str) -> Callable[[Event[T]], bool]:
    def matches(event: Event[T]) -> bool:
        return event.change is change and event.object is not None and event.object.metadata.name == name

    return matches


def steps(events: list[Event[T]]) -> list[tuple[str, str]]:
    """The events as (change, name)."""
    return [(event.change.value, event.object.metadata.name) for event in events if event.object is not None]


class Progress(NamedTuple):
    start: str
    event: Event[Document]


async def progress_of_a_quiet_watch(cluster: Cluster) -> Progress:
    """The first event of a watch that selects nothing, of a kind that others write all the time."""
    start = (await cluster.list(CONFIG_MAPS, labels="contract.holdfast.dev/never")).resource_version
    while True:
        async with cluster.watch(CONFIG_MAPS, resource_version=start, labels="contract.holdfast.dev/never") as events:
            async for event in events:
                return Progress(start, event)
