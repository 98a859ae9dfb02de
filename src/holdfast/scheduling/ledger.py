"""Capacity and usage of every node, updated with every event instead of recounted.

One ledger serves all kinds that use GPUs. The scheduler chooses the nodes of a gang's workers: the demand of admitted
gangs is a guess, computed anew with each admission pass (`set_gang_demand`). A workload of one pod knows its node
before the scheduler does: its requests count as taken until its pod is seen on the node (`reserve`).
"""

from collections.abc import Callable, Collection, Mapping
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.core.objects import Node, NodeSpec, Pod, PodSpec
from holdfast.scheduling.resources import NANO, Amounts, minus, parse_nanos_or_zero, plus, pod_requests

GPU = "nvidia.com/gpu"
# Set by NVIDIA's feature discovery, also where the device plugin has not reported yet.
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
# The largest amount of any resource on one node.
MAX_AMOUNT = (2**63 - 1) * NANO
# On a pod: the id of the reservation that the pod fulfils.
RESERVATION_LABEL = "holdfast.dev/place"


class NodeCapacity(Struct, frozen=True, kw_only=True):
    """The part of a node that matters for scheduling; heartbeats and the like do not."""

    name: str
    labels: dict[str, str]
    spec: NodeSpec
    ready: bool
    offered: Amounts


Nodes: TypeAlias = Mapping[str, NodeCapacity]
# Receives the name of a node whose capacity or usage has changed.
NodeListener: TypeAlias = Callable[[str], None]


class Reservation(Struct, frozen=True, kw_only=True):
    """Capacity for a pod that the scheduler has not bound yet."""

    node: str
    requests: Amounts
    until_s: float
    """By a monotonic clock: a reservation whose pod never comes must not hold its capacity for ever."""


class Ledger:
    """Follows the nodes and all pods. `version` grows with every change that may matter to a waiting workload."""

    def __init__(self) -> None:
        self.version = 0
        self.listeners: list[NodeListener] = []
        self.update_gang_demand: Callable[[], None] = lambda: None
        """Called before a workload gets capacity: sets the expected demand of gangs if it is not up to date."""
        self._nodes: dict[str, NodeCapacity] = {}
        self._taken: dict[str, Amounts] = {}
        self._free: dict[str, Amounts] = {}
        self._reservations: dict[str, Reservation] = {}
        self._reserved: dict[str, Amounts] = {}
        self._expirations: list[tuple[float, str]] = []
        self._bound_pods: dict[str, int] = {}
        self._gang_demand: Mapping[str, Amounts] = {}
        self._held_nodes: frozenset[str] = frozenset()

    @property
    def nodes(self) -> Nodes:
        return self._nodes

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        return self._reservations

    def free(self, name: str) -> Amounts:
        """The free resources of a node; negative where more is taken than the node offers."""
        if name not in self._free:
            left = minus(self._nodes[name].offered, self._taken.get(name, {}))
            self._free[name] = minus(left, self._reserved[name]) if name in self._reserved else left
        return self._free[name]

    def available(self, name: str) -> Amounts:
        """The free resources without the expected demand of gangs."""
        free, expected = self.free(name), self._gang_demand.get(name)
        return free if expected is None else minus(free, expected)

    @property
    def nodes_held_for_gangs(self) -> frozenset[str]:
        """Nodes that are held free for gangs that have waited long."""
        return self._held_nodes

    def reserve(self, reservation_id: str, node_name: str, requests: Amounts, until_s: float) -> None:
        """Count the requests as taken from now on, unless the pod with the label `reservation_id` is bound already."""
        self.release(reservation_id)
        if reservation_id in self._bound_pods:
            return
        self._reservations[reservation_id] = Reservation(node=node_name, requests=requests, until_s=until_s)
        self._reserved[node_name] = plus(self._reserved.get(node_name, {}), requests)
        if until_s < inf:
            heappush(self._expirations, (until_s, reservation_id))
        self._change(node_name)

    def release(self, reservation_id: str) -> None:
        """End a reservation: its pod has come, or never will."""
        reservation = self._reservations.pop(reservation_id, None)
        if reservation is None:
            return
        left = minus(self._reserved[reservation.node], reservation.requests)
        self._reserved[reservation.node] = left
        if not any(left.values()):
            del self._reserved[reservation.node]
        self._change(reservation.node)

    def expire(self, now_s: float) -> list[str]:
        """Release the reservations that have expired, and return their ids."""
        expired = []
        while self._expirations and self._expirations[0][0] <= now_s:
            until_s, reservation_id = heappop(self._expirations)
            reservation = self._reservations.get(reservation_id)
            if reservation is not None and reservation.until_s == until_s:
                self.release(reservation_id)
                expired.append(reservation_id)
        return expired

    @property
    def next_end_s(self) -> float | None:
        """When the next reservation may expire."""
        return self._expirations[0][0] if self._expirations else None

    def set_gang_demand(self, taken: Mapping[str, Amounts], held_nodes: Collection[str] = ()) -> None:
        """Set the expected demand of admitted gangs, and the nodes that are held for gangs that have waited long.

        The new demand replaces the old one. `free` does not change: gangs count their own demand.
        """
        before, old_held_nodes = self._gang_demand, self._held_nodes
        self._gang_demand, self._held_nodes = dict(taken), frozenset(held_nodes)
        changed = {name for name in {**before, **taken} if before.get(name) != taken.get(name)}
        for name in sorted(changed | (old_held_nodes ^ self._held_nodes)):
            self._notify(name)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        before = self._nodes.pop(old.metadata.name, None) if old is not None else None
        after = node_capacity(new) if new is not None else None
        if after is not None:
            self._nodes[after.name] = after
        if before != after:
            for changed in filter(None, (before, after)):
                self._change(changed.name)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before, after = _spec_using_capacity(old), _spec_using_capacity(new)
        if before == after and _reservation_id(old) == _reservation_id(new):
            return
        if before is not None:
            self._take(before.node_name, minus(self._taken[before.node_name], pod_requests(before)))
            self._on_pod_arrived(_reservation_id(old), -1)
        if after is not None:
            self._take(after.node_name, plus(self._taken.get(after.node_name, {}), pod_requests(after)))
            self._on_pod_arrived(_reservation_id(new), 1)

    def _take(self, name: str, taken: Amounts) -> None:
        self._taken[name] = taken
        if not taken["pods"]:
            del self._taken[name]
        self._change(name)

    def _on_pod_arrived(self, reservation_id: str, by: int) -> None:
        """Count the pods of a reservation: one has been bound, or a bound one is gone."""
        if not reservation_id:
            return
        self._bound_pods[reservation_id] = self._bound_pods.get(reservation_id, 0) + by
        if self._bound_pods[reservation_id] == 0:
            del self._bound_pods[reservation_id]
        if by > 0:
            self.release(reservation_id)

    def _change(self, name: str) -> None:
        self._free.pop(name, None)
        self.version += 1
        self._notify(name)

    def _notify(self, name: str) -> None:
        for listener in self.listeners:
            listener(name)


def node_capacity(node: Node) -> NodeCapacity:
    return NodeCapacity(
        name=node.metadata.name,
        labels=node.metadata.labels,
        spec=node.spec,
        ready=node.is_ready,
        offered=_offered(node),
    )


def _spec_using_capacity(pod: Pod | None) -> PodSpec | None:
    """The spec of a pod that uses capacity: bound to a node and not finished. A terminating pod still uses capacity."""
    return pod.spec if pod is not None and pod.spec.node_name and not pod.is_finished else None


def _reservation_id(pod: Pod | None) -> str:
    return pod.metadata.labels.get(RESERVATION_LABEL, "") if pod is not None else ""


def _offered(node: Node) -> dict[str, int]:
    """The allocatable amounts, at most the capacity; an invalid quantity counts as zero."""
    capacity = {name: _sane_quantity(amount) for name, amount in node.status.capacity.items()}
    source = node.status.allocatable or node.status.capacity
    allocatable = {name: _sane_quantity(amount) for name, amount in source.items()}
    offered = {name: min(amount, capacity.get(name, amount)) for name, amount in allocatable.items()}
    if GPU not in offered and (GPU in capacity or GPU_COUNT_LABEL in node.metadata.labels):
        offered[GPU] = capacity.get(GPU, _sane_quantity(node.metadata.labels.get(GPU_COUNT_LABEL, 0)))
    return offered


def _sane_quantity(text: str | int | float) -> int:
    """The scheduler counts in 64 bits, and finds no capacity where a larger quantity is written."""
    amount = parse_nanos_or_zero(text)
    return amount if amount <= MAX_AMOUNT else 0
