"""The pods that are bound to one node, as a kubelet follows them."""

import asyncio
import traceback
from collections.abc import Callable

import structlog

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, Expired
from holdfast.cluster.protocol import Change, Cluster
from holdfast.local.kubelet.objects import PODS, RunnablePod

RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BoundPods:
    """List and watch of the pods on this node: `seen` is called once per pod version, `gone` once per deleted pod."""

    def __init__(
        self, cluster: Cluster, node: str, *, seen: Callable[[RunnablePod], None], gone: Callable[[RunnablePod], None]
    ) -> None:
        self._cluster = cluster
        self._fields = f"spec.nodeName={node}"
        self._seen = seen
        self._gone = gone
        self._pods: dict[Key, RunnablePod] = {}
        self._version = ""

    async def sync(self) -> tuple[RunnablePod, ...]:
        """List the pods of this node and call back for every difference to the last known pods."""
        listing = await self._cluster.list(PODS, fields=self._fields)
        keys = {pod.metadata.key for pod in listing.items}
        for key in self._pods.keys() - keys:
            self._gone(self._pods.pop(key))
        for pod in listing.items:
            self._put(pod)
        self._version = listing.resource_version
        return listing.items

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self.sync()
                if await self._watch():
                    continue
            except Expired:
                self._version = ""
            except ClusterError as error:
                log.warning("pods of this node not seen", reason=str(error))
            except Exception:  # noqa: BLE001 - one broken pod must not stop the events of the other pods
                log.error("event of a pod not handled", traceback=traceback.format_exc())
                self._version = ""
            await asyncio.sleep(RETRY_S)

    async def _watch(self) -> bool:
        """Process watch events until the stream ends; returns whether there was any event."""
        before = self._version
        async with self._cluster.watch(PODS, resource_version=self._version, fields=self._fields) as events:
            async for event in events:
                if event.object is not None and event.change is Change.DELETED:
                    self._pods.pop(event.object.metadata.key, None)
                    self._gone(event.object)
                elif event.object is not None:
                    self._put(event.object)
                self._version = event.resource_version
        return self._version != before

    def _put(self, pod: RunnablePod) -> None:
        old = self._pods.get(pod.metadata.key)
        if old is not None and old.metadata.uid != pod.metadata.uid:
            self._gone(old)
        if old is None or old.metadata.resource_version != pod.metadata.resource_version:
            self._pods[pod.metadata.key] = pod
            self._seen(pod)
