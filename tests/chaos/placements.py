"""Many GPUWorkloads at once, what the API server told about them, and the plain way to tell who should be where."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.api.core.objects import Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.api.meta import Key
from holdfast.gpuworkload.snapshot import FINISHED_PHASES
from tests.chaos.history import Record
from tests.control_plane.api import STRATEGIC, Session
from tests.control_plane.changes import Change

WORKLOADS = "/apis/gpu.warp.dev/v1alpha1/namespaces/default/gpuworkloads"
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


class Placements(Record):
    """Of GPUWorkloads."""

    def __init__(self) -> None:
        super().__init__({WORKLOADS: GPUWorkload})
        self.first_nodes: dict[str, str] = {}
        """Where each workload was sent first."""

    @property
    def workloads(self) -> list[GPUWorkload]:
        return list(self._now[GPUWorkload].values())

    def take(self, change: Change[Any], there: dict[Key, Any]) -> None:
        super().take(change, there)
        if isinstance(change.obj, GPUWorkload) and status_of(change.obj).assigned_node:
            self.first_nodes.setdefault(change.obj.metadata.name, status_of(change.obj).assigned_node or "")

    def phases(self) -> dict[str, str]:
        return {it.metadata.name: status_of(it).phase or "" for it in self.workloads}

    def running(self) -> list[str]:
        """Pods that run, by name."""
        return sorted(pod.metadata.name for pod in self.pods.values() if pod.status.phase == "Running")


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
        if isinstance(obj, Pod) and (change.gone or obj.is_finished):
            name = obj.metadata.labels.get("gpu-workload", "")
            promised[where.get(name, "")].pop(name, None)
        if not isinstance(obj, GPUWorkload):
            continue
        name, status = obj.metadata.name, status_of(obj)
        node = status.assigned_node if status.phase not in FINISHED_PHASES and not change.gone else None
        if node is not None and where.get(name) != node:
            promised[where.get(name, "")].pop(name, None)
            promised[node][name] = obj.spec.gpu_count
            where[name] = node
            if sum(promised[node].values()) > gpus:
                yield f"{change.version}: {node} was promised to {promised[node]}"
