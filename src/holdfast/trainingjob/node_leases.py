"""The Leases of nodes, followed while workers report: when each was renewed, by the operator's own clock."""

import asyncio
from collections.abc import Callable

import structlog

from holdfast.api.core.objects import Lease
from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import LEASES
from holdfast.runtime.informer import Handler, Reflector
from holdfast.trainingjob.decide.node_death import LeaseHistory, Serving, observe_lease, observe_serving

NODE_LEASES = "kube-node-lease"
OWN_LEASE_EVERY_S = 2.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NodeLeases:
    """One watch for all nodes, from the first worker's report on; without one, only the reads of `look` count.

    `clock` also counts while the host sleeps. `renewed_s`: when the API server last took a renewal of the operator's
    own Lease, by the same clock, so that a few nodes' renewals are not all there is to see whether it serves.
    """

    def __init__(
        self, cluster: Cluster, clock: Callable[[], float], renewed_s: Callable[[], float | None] = lambda: None
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._renewed_s = renewed_s
        self._wanted = asyncio.Event()
        self._unreadable: dict[str, str] = {}
        self.serving: Serving | None = None
        self.by_node: dict[str, LeaseHistory] = {}

    def follow(self) -> None:
        """From now on renewals matter."""
        self._wanted.set()

    async def run(self, reflector: Callable[[Handler[Lease]], Reflector[Lease]]) -> None:
        await self._wanted.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector(self._changed).run())
            group.create_task(self._follow_own_lease())

    async def _follow_own_lease(self) -> None:
        while True:
            if (renewed_s := self._renewed_s()) is not None:
                self.serving = observe_serving(self.serving, renewed_s)
            await asyncio.sleep(OWN_LEASE_EVERY_S)

    async def look(self, node: str) -> None:
        """A Lease that can't be read shows nothing: the look is missed, and missed looks prove nothing.

        The watch may be behind, so that a Lease that seems to stand still is read.
        """
        try:
            lease = await self._cluster.get(LEASES, Key(NODE_LEASES, node))
        except ClusterError as error:
            if self._unreadable.get(node) != str(error):  # looks come every two seconds
                self._unreadable[node] = str(error)
                log.info("can't look at a node's Lease", node=node, reason=str(error))
            return
        self._seen(lease)

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None:
            self._seen(new)
        elif old is not None:
            self.by_node.pop(old.metadata.name, None)

    def _seen(self, lease: Lease) -> None:
        now_s, node = self._clock(), lease.metadata.name
        self._unreadable.pop(node, None)
        self.serving = observe_serving(self.serving, now_s)
        self.by_node[node] = observe_lease(
            self.by_node.get(node), lease.metadata.resource_version, now_s, serving_since_s=self.serving.since_s
        )
