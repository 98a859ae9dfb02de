"""A node's processor is told once, and again when it is another."""

from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.resources import NODES
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.node.cpu_flags import AGAIN_AFTER_S, publish_cpu_flags
from holdfast.pods.restore.nodes import CPU_FLAGS_ANNOTATION

NEW = Key("", "new")


async def never(_: float) -> None:
    pytest.fail("there is nothing to wait for")


async def told(cluster: EmbeddedCluster) -> tuple[str, str]:
    """What the Node says, and its version: the same version is no write."""
    metadata = (await cluster.get(NODES, NEW)).metadata
    return metadata.annotations[CPU_FLAGS_ANNOTATION], metadata.resource_version


async def test_flags_of_programs_are_told_once_and_no_others(cluster: EmbeddedCluster) -> None:
    await cluster.create(NODES, {"metadata": {"name": "new"}})
    await publish_cpu_flags(cluster, "new", ("sse2", "avx2", "constant_tsc"), never)
    first = await told(cluster)
    assert first[0] == "avx2 sse2"
    flags = ["avx2", "hypervisor", "sse2"]
    Random(1).shuffle(flags)
    await publish_cpu_flags(cluster, "new", flags, never)
    assert await told(cluster) == first, "the same processor is no reason to write"
    await publish_cpu_flags(cluster, "new", ("sse2",), never)
    assert (await told(cluster))[0] == "sse2"


async def test_a_node_that_is_not_there_yet_is_told_later(cluster: EmbeddedCluster) -> None:
    pauses: list[float] = []

    async def appears(seconds: float) -> None:
        pauses.append(seconds)
        await cluster.create(NODES, {"metadata": {"name": "new"}})

    await publish_cpu_flags(cluster, "new", ("avx2",), appears)
    assert (await told(cluster))[0] == "avx2"
    assert pauses == [AGAIN_AFTER_S]
