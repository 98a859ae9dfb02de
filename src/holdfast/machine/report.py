"""Writes a pod's status to the cluster: the newest one, when it changed, until it is there."""

import asyncio
from collections.abc import Callable

import structlog

from holdfast.cluster.errors import BadRequest, ClusterError, Conflict, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.machine.objects import PODS, Pod
from holdfast.machine.status import Snapshot, pod_status

STATUS_RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PodStatusWriter:
    def __init__(self, cluster: Cluster, pod: Pod, snapshot: Callable[[], Snapshot], time: Callable[[], str]) -> None:
        self.pod = pod
        self._cluster = cluster
        self._snapshot = snapshot
        self._time = time
        self._dirty = asyncio.Event()
        self._written: JSON = {}
        self.is_gone = False

    def changed(self) -> None:
        self._dirty.set()

    async def run(self) -> None:
        while not self.is_gone:
            await self._dirty.wait()
            await self.flush()

    async def flush(self) -> None:
        """Until the newest status is written, or can't be."""
        self._dirty.set()
        while self._dirty.is_set() and not self.is_gone:
            self._dirty.clear()
            if not await self._attempt():
                self._dirty.set()

    async def _attempt(self) -> bool:
        """Whether there is nothing to try again."""
        key = self.pod.metadata.key
        try:
            await self._write()
        except Conflict:
            return await self._look_again()
        except NotFound:
            self.is_gone = True
        except (Invalid, BadRequest, Forbidden) as error:
            log.error("pod status refused", pod=str(key), reason=str(error))
        except ClusterError as error:
            log.warning("pod status not written yet", pod=str(key), reason=str(error))
            await asyncio.sleep(STATUS_RETRY_S)
            return False
        return True

    async def _write(self) -> None:
        metadata = self.pod.metadata
        status = pod_status(self._snapshot(), self.pod.status.conditions, self._time())
        if status != self._written:
            # The version is named because the list of conditions is written whole: others write into it too.
            guard = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
            self.pod = await self._cluster.patch_status(PODS, metadata.key, {"metadata": guard, "status": status})
            self._written = status

    async def _look_again(self) -> bool:
        try:
            pod = await self._cluster.get(PODS, self.pod.metadata.key)
        except ClusterError as error:
            self.is_gone = isinstance(error, NotFound)
            return self.is_gone
        self.is_gone = pod.metadata.uid != self.pod.metadata.uid
        self.pod = self.pod if self.is_gone else pod
        return self.is_gone
