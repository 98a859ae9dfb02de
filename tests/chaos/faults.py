"""Takes pods and nodes away at random; the choice comes from a seed, the moment from whatever runs then."""

import asyncio
from contextlib import suppress
from random import Random

from holdfast.api.core.objects import Pod
from tests.chaos.history import History
from tests.control_plane.api import JSON, Refused, Session

# So many of the pods are deleted as if their machine were known to be gone.
BY_FORCE = 0.3
# What a server adds to a Node and would not take back.
SERVER_SIDE = ("uid", "resourceVersion", "creationTimestamp", "managedFields")


class Faults:
    def __init__(self, session: Session, history: History, random: Random) -> None:
        self._session = session
        self._history = history
        self._random = random

    def running(self) -> list[Pod]:
        """By name, so that the same seed chooses the same of the same pods."""
        pods = (pod for pod in self._history.pods.values() if pod.status.phase == "Running" and not pod.is_terminating)
        return sorted(pods, key=lambda pod: pod.metadata.name)

    async def take_pods(self, count: int, every_s: float) -> None:
        """One after the other, as long as there are any."""
        while count:
            count -= await self.take_pod()
            await asyncio.sleep(every_s)

    async def take_pod(self) -> bool:
        """Delete one that runs, in order or by force; False when none runs."""
        running = self.running()
        if not running:
            return False
        pod = self._random.choice(running)
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        options = {"gracePeriodSeconds": 0 if self._random.random() < BY_FORCE else 30}
        with suppress(Refused):  # it has ended since
            await self._session.request("DELETE", path, options)
        return True

    async def take_node(self, name: str, away_s: float) -> None:
        """The machine vanishes and comes back under its name."""
        body = await self._session.request("GET", f"/api/v1/nodes/{name}")
        await self._session.request("DELETE", f"/api/v1/nodes/{name}")
        await asyncio.sleep(away_s)
        await self._session.request("POST", "/api/v1/nodes", _as_new(body))


def _as_new(node: JSON) -> JSON:
    metadata = {name: value for name, value in node["metadata"].items() if name not in SERVER_SIDE}
    room = {name: node["status"][name] for name in ("capacity", "allocatable")}
    return {"metadata": metadata, "spec": {}, "status": room}
