"""Objects as they are, and then every change, across the ends and gaps of watches."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from holdfast.cluster.errors import Expired, Unreachable
from holdfast.cluster.protocol import Cluster, Event, Listing, Resource
from holdfast.cluster.whole import RawObject

BREATH_S = 0.2


async def follow(
    cluster: Cluster, resource: Resource[RawObject], *, namespace: str = "", labels: str = "", fields: str = ""
) -> AsyncGenerator[Listing[RawObject] | Event[RawObject], None]:
    """A listing, then what changes; again a listing when changes may have been missed. It does not end by itself."""
    while True:
        listing = await cluster.list(resource, namespace=namespace, labels=labels, fields=fields)
        yield listing
        version = listing.resource_version
        with suppress(Expired):
            while True:
                async with cluster.watch(
                    resource, resource_version=version, namespace=namespace, labels=labels, fields=fields
                ) as events:
                    # Cut off in the middle is as good as ended; a server that is gone does not let us back in.
                    with suppress(Unreachable):
                        async for event in events:
                            version = event.resource_version
                            yield event
                await asyncio.sleep(BREATH_S)


def by_name(name: str) -> str:
    return f"metadata.name={name}"
