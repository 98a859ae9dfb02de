"""Which cloud this machine runs in: by the Node's providerID, else by asking the metadata server."""

import asyncio

from holdfast.node.notice.azure import Azure
from holdfast.node.notice.compute_engine import ComputeEngine
from holdfast.node.notice.ec2 import Ec2
from holdfast.node.notice.metadata import MetadataError, MetadataServer, MetadataUnreachable, NoticeSource

# A machine that boots may not reach its metadata server yet.
TRIES = 3
PAUSE_S = 5.0


def notice_sources(server: MetadataServer) -> tuple[NoticeSource, ...]:
    return ComputeEngine(server), Ec2(server), Azure(server)


async def find_source(server: MetadataServer, provider_id: str) -> NoticeSource | None:
    """The source of this machine's notices; None where no cloud that is known here answers.

    A Node whose providerID names a cloud is in that cloud, even while its metadata server is silent.
    """
    sources = notice_sources(server)
    provider = provider_id.partition("://")[0]
    for source in sources:
        if source.provider == provider:
            return source
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        found = await _ask_each(sources)
        if found is not None:
            return found
    return None


async def _ask_each(sources: tuple[NoticeSource, ...]) -> NoticeSource | None:
    for source in sources:
        try:
            if await source.is_here():
                return source
        except MetadataUnreachable:
            return None  # all clouds use one address: nobody else answers there either
        except MetadataError:
            continue
    return None
