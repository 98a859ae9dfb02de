"""Tells on the Node which flags its processors have: a checkpoint goes on only where all that it used is there."""

from collections.abc import Awaitable, Callable, Iterable

import structlog

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import Cluster
from holdfast.node.objects import AGENT_NODES
from holdfast.pods.restore.cpu import programs_flags
from holdfast.pods.restore.nodes import CPU_FLAGS_ANNOTATION

AGAIN_AFTER_S = 30.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


async def publish_cpu_flags(
    cluster: Cluster, node: str, flags: Iterable[str], sleep: Callable[[float], Awaitable[object]]
) -> None:
    """One write when the node is new or has another processor, and none else. Repeated until it is told."""
    wanted = " ".join(sorted(programs_flags(flags)))
    key = Key("", node)
    while True:
        try:
            found = await cluster.get(AGENT_NODES, key)
            if found.metadata.annotations.get(CPU_FLAGS_ANNOTATION) != wanted:
                await cluster.patch(AGENT_NODES, key, {"metadata": {"annotations": {CPU_FLAGS_ANNOTATION: wanted}}})
            return
        except ClusterError as error:
            log.warning("CPU flags not told: no checkpoint goes on on this node until they are", reason=str(error))
            await sleep(AGAIN_AFTER_S)
