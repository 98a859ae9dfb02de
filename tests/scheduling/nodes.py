"""Nodes and pods as the cache has them, with little said about each."""

from typing import Any

import msgspec

from holdfast.api.core.objects import Node, Pod
from holdfast.cluster.protocol import JSON
from holdfast.scheduling.ledger import GPU, Ledger


def node(
    name: str = "gpu-1",
    *,
    gpus: int | str | None = None,
    labels: JSON | None = None,
    ready: bool = True,
    capacity: JSON | None = None,
    room: JSON | None = None,
    **spec: Any,
) -> Node:
    """A machine of 8 CPUs, 64Gi of memory and 110 pods, with so many GPUs; `room` has more, or changes these."""
    allocatable: JSON = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    if gpus is not None:
        allocatable[GPU] = gpus
    body = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "allocatable": {**allocatable, **(room or {})},
            "capacity": capacity or {},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }
    return msgspec.convert(body, Node)


def pod(name: str = "p", on: str = "gpu-1", *, phase: str = "Running", deleted: str = "", **requests: str) -> Pod:
    """One that asks for so much; `gpu` stands for the resource's long name."""
    named = {GPU if resource == "gpu" else resource: amount for resource, amount in requests.items()}
    body = {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-of-{name}", "deletionTimestamp": deleted},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"requests": named}}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


def ledger(*things: Node | Pod) -> Ledger:
    """One that has seen all of these come."""
    kept = Ledger()
    for thing in things:
        if isinstance(thing, Node):
            kept.node_changed(None, thing)
        else:
            kept.pod_changed(None, thing)
    return kept
