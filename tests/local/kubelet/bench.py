"""A machine under test: pods bound to it by hand, and their status as the cluster has it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions
from holdfast.local.kubelet.environment import NODE_ID, POD_UID
from holdfast.local.kubelet.kubelet import Kubelet, identity_of
from holdfast.local.kubelet.processes import environment, processes
from tests.contract.kinds import PODS, Document
from tests.contract.waiting import gone, until
from tests.control_plane.waiting import eventually

TERMINAL = ("Succeeded", "Failed")
IMAGE = "registry.invalid/worker:1"


def shell(script: str, *, name: str = "main", **more: Any) -> JSON:
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **more}


def python(code: str, *, name: str = "main", **more: Any) -> JSON:
    return {"name": name, "image": IMAGE, "command": ["python", "-c", code], **more}


class Bench:
    def __init__(self, cluster: Cluster, machine: Kubelet, namespace: str, node: str, data: Path) -> None:
        self.cluster = cluster
        self.machine = machine
        self.namespace = namespace
        self.node = node
        self.data = data

    async def start(self, *containers: JSON, name: str = "p", metadata: JSON | None = None, **spec: Any) -> Key:
        made = await self.cluster.create(
            PODS,
            {
                "metadata": {"name": name, **(metadata or {})},
                "spec": {
                    "nodeName": self.node,
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 5,
                    "automountServiceAccountToken": False,
                    "containers": list(containers),
                    **spec,
                },
            },
            namespace=self.namespace,
        )
        return made.metadata.key

    async def until(self, key: Key, holds: Callable[[Document], object], what: str) -> Document:
        return await until(self.cluster, PODS, key, holds, what)

    async def phase(self, key: Key, *phases: str) -> Document:
        return await self.until(key, lambda pod: pod.status.get("phase") in phases, f"{key} is {phases}")

    async def ended(self, *containers: JSON, **more: Any) -> Document:
        """The pod, run to its end."""
        return await self.phase(await self.start(*containers, **more), *TERMINAL)

    async def delete(self, key: Key, grace_s: int | None = None) -> None:
        await self.cluster.delete(PODS, key, DeleteOptions(grace_period_s=grace_s))

    async def gone(self, key: Key) -> None:
        await gone(self.cluster, PODS, key)

    async def release(self, key: Key) -> None:
        """Take the finalizers off."""
        await self.cluster.patch(PODS, key, {"metadata": {"finalizers": []}})

    async def log(self, key: Key, **more: Any) -> str:
        return (await self.machine.pod_log(key, **more)).decode()

    async def logged(self, key: Key, text: str) -> str:
        """The log, once it holds the text."""

        async def look() -> str:
            return await self.log(key)

        return await eventually(look, lambda log: text in log, what=f"{key} has logged {text!r}")

    def folder(self, pod: Document) -> Path:
        return self.data / "pods" / pod.metadata.uid

    def processes(self, pod: Document) -> list[int]:
        """Those of the pod that run on this machine: a pod of another process's tests may have the same uid."""
        marker = {NODE_ID: identity_of(self.data), POD_UID: pod.metadata.uid}
        alive = [pid for pid, found in processes().items() if found.state != "Z"]
        return [pid for pid in alive if marker.items() <= environment(pid).items()]


class MakeBench(Protocol):
    """Starts a machine; a second one goes on with the first one's node and data folder."""

    async def __call__(self, **more: Any) -> Bench: ...


def state(pod: Document, container: str = "main", *, kind: str = "containerStatuses") -> JSON:
    """The one entry of a container's state: {"running": …}, {"waiting": …} or {"terminated": …}."""
    found: JSON = status_of(pod, container, kind=kind)["state"]
    return found


def status_of(pod: Document, container: str = "main", *, kind: str = "containerStatuses") -> JSON:
    return next((one for one in pod.status.get(kind) or () if one["name"] == container), {"state": {}})


def terminated(pod: Document, container: str = "main", **more: str) -> JSON:
    found: JSON = state(pod, container, **more)["terminated"]
    return found


def condition(pod: Document, kind: str) -> JSON:
    return next((one for one in pod.status.get("conditions") or () if one["type"] == kind), {})


def env_lines(log: str) -> dict[str, str]:
    """What `env` prints."""
    return dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
