"""Fake nodes: kwok keeps them ready, the scheduler puts pods on them."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from tests.control_plane.api import JSON, Api, Refused, Session
from tests.control_plane.waiting import eventually

FAKE = "kwok.holdfast.dev/fake"
HOSTNAME = "kubernetes.io/hostname"  # a kubelet sets it, and affinities count on it


class Nodes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._added: list[str] = []

    async def add(
        self,
        count: int = 1,
        *,
        prefix: str = "fake",
        gpus: int = 0,
        cpu: str = "64",
        memory: str = "512Gi",
        pods: int = 110,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[JSON] = (),
    ) -> list[str]:
        """Make nodes that differ in name alone, wait until they are ready, and return their names."""
        room = {"cpu": cpu, "memory": memory, "pods": str(pods)}
        if gpus:
            room["nvidia.com/gpu"] = str(gpus)
        names = [f"{prefix}-{secrets.token_hex(4)}" for _ in range(count)]
        bodies: list[JSON] = [
            {
                "metadata": {"name": name, "labels": {FAKE: "true", HOSTNAME: name, **(labels or {})}},
                "spec": {"taints": list(taints)},
                "status": {"capacity": room, "allocatable": room},
            }
            for name in names
        ]
        async with self._api.session() as session:
            await asyncio.gather(*(session.request("POST", "/api/v1/nodes", body) for body in bodies))
        self._added += names
        await eventually(self._ready, set(names).issubset, what=f"{count} fake nodes ready", within_s=60 + count / 4)
        return names

    async def remove(self, *names: str) -> None:
        """Take nodes away, all that were added if none is named; the pods on them are left to the control plane."""
        gone = list(names or self._added)
        async with self._api.session() as session:
            await asyncio.gather(*(self._delete(session, name) for name in gone))
        self._added = [name for name in self._added if name not in gone]

    async def _delete(self, session: Session, name: str) -> None:
        try:
            await session.request("DELETE", f"/api/v1/nodes/{name}")
        except Refused as refused:
            if refused.code != HTTPStatus.NOT_FOUND:  # the test has taken it away itself
                raise

    async def _ready(self) -> set[str]:
        nodes = await self._api.request("GET", "/api/v1/nodes", labelSelector=f"{FAKE}=true")
        return {str(node["metadata"]["name"]) for node in nodes["items"] if _is_ready(node)}


def _is_ready(node: JSON) -> bool:
    """Ready, and no longer marked as not ready for the scheduler, which follows a moment later."""
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", ())}
    tainted = any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", ()))
    return conditions.get("Ready") == "True" and not tainted
