"""A process that writes without end, and says each time what has been acknowledged. It is ended by SIGKILL."""

import asyncio
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from tests.contract.kinds import CONFIG_MAPS, Document, config_map

WRITERS = 4
CHANGES = 3
GONE = "gone"


async def write(cluster: EmbeddedCluster, name: str) -> None:
    """One object's life, over and over: found or made, changed, removed."""
    key = Key("default", name)
    with suppress(NotFound):
        await cluster.delete(CONFIG_MAPS, key)
    while True:
        made = await cluster.create(CONFIG_MAPS, config_map(name, data={"change": "0"}), namespace="default")
        say(name, made)
        for change in range(1, CHANGES + 1):
            say(name, await cluster.patch(CONFIG_MAPS, key, {"data": {"change": str(change)}}))
        await cluster.delete(CONFIG_MAPS, key)
        say(name, None)


def say(name: str, state: Document | None) -> None:
    words = (state.metadata.uid, state.data["change"], state.metadata.resource_version) if state else (GONE, "", "0")
    sys.stdout.write("|".join((name, *words)) + "\n")
    sys.stdout.flush()


async def main(path: Path) -> None:
    cluster = await open_cluster(path, now=lambda: datetime.now(UTC), rng=Random(0))
    await asyncio.gather(*(write(cluster, f"w{number}") for number in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
