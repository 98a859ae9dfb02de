"""When pods are seen to be made and to fail: both told by one watch, so that the times can be compared."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.api.core.objects import Pod
from tests.control_plane.api import Api, Session
from tests.control_plane.changes import Change, changes, following

PODS = "/api/v1/namespaces/default/pods"


class Births:
    def __init__(self) -> None:
        self.made: defaultdict[str, list[float]] = defaultdict(list)
        """The moments at which pods were made, by the name of their owner."""
        self.failed: dict[str, float] = {}
        """The moment at which a pod failed, by its uid."""
        self._pods: dict[str, Pod] = {}
        self._news = asyncio.Condition()

    def running(self, owner: str) -> list[Pod]:
        """By name, the owner's pods that run."""
        pods = (pod for pod in self._pods.values() if _owner(pod) == owner and pod.status.phase == "Running")
        return sorted(pods, key=lambda pod: pod.metadata.name)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(holds)

    async def follow(self, session: Session) -> None:
        async for change in changes(session, PODS, Pod):
            async with self._news:
                self._take(change, time.perf_counter())
                self._news.notify_all()

    def _take(self, change: Change[Pod], now: float) -> None:
        pod = change.obj
        if change.new:
            self.made[_owner(pod)].append(now)
        if pod.status.phase == "Failed":
            self.failed.setdefault(pod.metadata.uid, now)
        self._pods[pod.metadata.uid] = pod
        if change.gone:
            del self._pods[pod.metadata.uid]


def _owner(pod: Pod) -> str:
    owner = pod.metadata.controller
    return owner.name if owner is not None else ""


@asynccontextmanager
async def followed(api: Api) -> AsyncIterator[Births]:
    births = Births()
    async with following(api, births.follow):
        yield births
