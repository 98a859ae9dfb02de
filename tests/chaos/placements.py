"""Many GPUWorkloads at once, what the API server told about them, and the plain way to tell who should be where."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast.api.builtin import Node, Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.planning.gpuworkload.observed import FINISHED
from tests.control_plane.api import STRATEGIC, Api, Session
from tests.control_plane.changes import Change, changes

WORKLOADS = "/apis/gpu.warp.dev/v1alpha1/namespaces/default/gpuworkloads"
SOURCES: dict[str, type[Any]] = {"/api/v1/pods": Pod, "/api/v1/nodes": Node, WORKLOADS: GPUWorkload}
CHEAP = {"gpu-orchestrator/cheap-node": "true"}
STRATEGIES = ("leastLoaded", "random", "costOptimized")


def manifest(number: int, gpus: int) -> dict[str, Any]:
    return {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": f"w-{number:04}"},
        "spec": {
            "modelName": "resnet50",
            "gpuCount": gpus,
            "priority": number * 7 % 5,
            "schedulingStrategy": STRATEGIES[number % len(STRATEGIES)],
        },
    }


async def submit(session: Session, sizes: Iterable[int]) -> None:
    bodies = [manifest(number, gpus) for number, gpus in enumerate(sizes)]
    await asyncio.gather(*(session.request("POST", WORKLOADS, body) for body in bodies))


async def succeed(session: Session, pod: str) -> None:
    """As a kubelet reports it."""
    path = f"/api/v1/namespaces/default/pods/{pod}/status"
    await session.request("PATCH", path, {"status": {"phase": "Succeeded"}}, content_type=STRATEGIC)


class History:
    """Every change since the recording began, and what is there now."""

    def __init__(self) -> None:
        self.changes: list[Change[Any]] = []
        self._now: dict[type[Any], dict[str, Any]] = {model: {} for model in SOURCES.values()}
        self.first_nodes: dict[str, str] = {}
        """Where each workload was sent first."""

    @property
    def pods(self) -> dict[str, Pod]:
        return self._now[Pod]

    @property
    def nodes(self) -> dict[str, Node]:
        return self._now[Node]

    @property
    def workloads(self) -> dict[str, GPUWorkload]:
        return self._now[GPUWorkload]

    async def follow(self, session: Session, path: str) -> None:
        async for change in changes(session, path, SOURCES[path]):
            self.changes.append(change)
            there = self._now[SOURCES[path]]
            there[change.obj.metadata.name] = change.obj
            if change.gone:
                del there[change.obj.metadata.name]
            if isinstance(change.obj, GPUWorkload) and status_of(change.obj).assigned_node:
                self.first_nodes.setdefault(change.obj.metadata.name, status_of(change.obj).assigned_node or "")

    def phases(self) -> dict[str, str]:
        return {name: status_of(it).phase or "" for name, it in self.workloads.items()}

    def running(self) -> list[str]:
        """Pods that run, by name."""
        return sorted(name for name, pod in self.pods.items() if pod.status.phase == "Running")


@asynccontextmanager
async def recording(api: Api) -> AsyncIterator[History]:
    history = History()
    async with api.session() as session, asyncio.TaskGroup() as group:
        followers = [group.create_task(history.follow(session, path)) for path in SOURCES]
        yield history
        for follower in followers:
            follower.cancel()


def status_of(workload: GPUWorkload) -> GPUWorkloadStatus:
    return workload.status or GPUWorkloadStatus()


def in_line(workloads: Iterable[GPUWorkload]) -> list[GPUWorkload]:
    return sorted(workloads, key=lambda it: (-it.spec.priority, it.metadata.creation_timestamp, it.metadata.key))


def broken_rules(
    workloads: Iterable[GPUWorkload], sent: Mapping[str, str], cheap: set[str], free: dict[str, int]
) -> list[str]:
    """One look at everyone who waits, done by going through all nodes for each: where somebody else was sent."""
    free, found = dict(free), []
    for it in in_line(workloads):
        name, gpus = it.metadata.name, it.spec.gpu_count
        fitting = [node for node, left in free.items() if left >= gpus]
        preferred = (
            [node for node in fitting if node in cheap] if it.spec.scheduling_strategy == "costOptimized" else []
        )
        best = min(preferred or fitting, key=lambda node: (-free[node], node), default=None)
        allowed = set(fitting) if it.spec.scheduling_strategy == "random" and fitting else {best}
        if sent.get(name) not in allowed:
            found.append(f"{name} ({it.spec.scheduling_strategy}, {gpus}) was sent to {sent.get(name)}, not to {best}")
        if sent.get(name) is not None:
            free[sent[name]] -= gpus
    return found


def overpromised(changes: Iterable[Change[Any]], gpus: int) -> Iterator[str]:
    """Moments at which a node was chosen that did not have so much left beside what was chosen for it before."""
    promised: defaultdict[str, dict[str, int]] = defaultdict(dict)
    where: dict[str, str] = {}
    for change in sorted(changes, key=lambda each: each.version):
        obj = change.obj
        if isinstance(obj, Pod) and (change.gone or obj.has_ended):
            name = obj.metadata.labels.get("gpu-workload", "")
            promised[where.get(name, "")].pop(name, None)
        if not isinstance(obj, GPUWorkload):
            continue
        name, status = obj.metadata.name, status_of(obj)
        node = status.assigned_node if status.phase not in FINISHED and not change.gone else None
        if node is not None and where.get(name) != node:
            promised[where.get(name, "")].pop(name, None)
            promised[node][name] = obj.spec.gpu_count
            where[name] = node
            if sum(promised[node].values()) > gpus:
                yield f"{change.version}: {node} was promised to {promised[node]}"
