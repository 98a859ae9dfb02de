"""What every machine offers and what is taken of it: kept up with every change instead of counted anew.

One ledger for all kinds that use GPUs. A gang leaves it to the scheduler where its workers go: what is expected of
those that may start is a guess, made anew with each look at them (`expect`). A workload of one pod knows its machine
before the scheduler does: its room counts as taken until its pod is seen there (`assume`).
"""

from collections.abc import Callable, Collection, Mapping
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.core.objects import Node, Pod, PodSpec
from holdfast.api.core.selectors import NodeSpec
from holdfast.scheduling.resources import NANO, Amounts, minus, parse_nanos_or_zero, plus, pod_requests

GPU = "nvidia.com/gpu"
# Set by NVIDIA's feature discovery, also where the device plugin has not reported yet.
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
# Of anything on one machine.
MOST = (2**63 - 1) * NANO
# On a pod: the assumption that it makes good.
PLACE_LABEL = "holdfast.dev/place"


class NodeCapacity(Struct, frozen=True, kw_only=True):
    """What is looked at of a node: heartbeats and the like are not."""

    name: str
    labels: dict[str, str]
    spec: NodeSpec
    ready: bool
    offered: Amounts


Machines: TypeAlias = Mapping[str, NodeCapacity]
# Is told the name of a machine on which something has changed.
Follower: TypeAlias = Callable[[str], None]


class Reservation(Struct, frozen=True, kw_only=True):
    """Room that is given away, to a pod that the scheduler has not bound yet."""

    machine: str
    asked: Amounts
    until_s: float
    """By a clock that never jumps: an assumption that nothing came of must not hold its room for ever."""


class Ledger:
    """Follows the nodes and all pods. `version` grows with every change that may matter to someone who waits."""

    def __init__(self) -> None:
        self.version = 0
        self.listeners: list[Follower] = []
        self._machines: dict[str, NodeCapacity] = {}
        self._taken: dict[str, Amounts] = {}
        self._free: dict[str, Amounts] = {}
        self._assumptions: dict[str, Reservation] = {}
        self._assumed: dict[str, Amounts] = {}
        self._ends: list[tuple[float, str]] = []
        self._arrived: dict[str, int] = {}
        self._expected: Mapping[str, Amounts] = {}
        self._kept: frozenset[str] = frozenset()

    @property
    def machines(self) -> Machines:
        return self._machines

    @property
    def assumptions(self) -> Mapping[str, Reservation]:
        return self._assumptions

    def free(self, name: str) -> Amounts:
        """What is left on a machine; less than nothing where more is taken than it offers."""
        if name not in self._free:
            left = minus(self._machines[name].offered, self._taken.get(name, {}))
            self._free[name] = minus(left, self._assumed[name]) if name in self._assumed else left
        return self._free[name]

    def available(self, name: str) -> Amounts:
        """What is left for a workload that no gang is expected to take."""
        free, expected = self.free(name), self._expected.get(name)
        return free if expected is None else minus(free, expected)

    @property
    def nodes_held_for_gangs(self) -> frozenset[str]:
        """Machines that are kept free for gangs that have waited long."""
        return self._kept

    def reserve(self, reservation_id: str, machine: str, asked: Amounts, until_s: float) -> None:
        """The room is taken from now on. `place` is on the pod that will take it; one that is bound already counts."""
        self.release(reservation_id)
        if reservation_id in self._arrived:
            return
        self._assumptions[reservation_id] = Reservation(machine=machine, asked=asked, until_s=until_s)
        self._assumed[machine] = plus(self._assumed.get(machine, {}), asked)
        if until_s < inf:
            heappush(self._ends, (until_s, reservation_id))
        self._change(machine)

    def release(self, reservation_id: str) -> None:
        """The pod is not going to come, or has come."""
        ended = self._assumptions.pop(reservation_id, None)
        if ended is None:
            return
        left = minus(self._assumed[ended.machine], ended.asked)
        self._assumed[ended.machine] = left
        if not any(left.values()):
            del self._assumed[ended.machine]
        self._change(ended.machine)

    def expire(self, now_s: float) -> list[str]:
        """Give up assumptions whose time is over: their places."""
        over = []
        while self._ends and self._ends[0][0] <= now_s:
            until_s, reservation_id = heappop(self._ends)
            found = self._assumptions.get(reservation_id)
            if found is not None and found.until_s == until_s:
                self.release(reservation_id)
                over.append(reservation_id)
        return over

    @property
    def next_end_s(self) -> float | None:
        """When the next assumption may end by itself."""
        return self._ends[0][0] if self._ends else None

    def set_gang_demand(self, taken: Mapping[str, Amounts], kept: Collection[str] = ()) -> None:
        """What gangs that may start are going to take, and the machines that are kept for those who waited long.

        It replaces what was expected before. `free` stays as it is: gangs count their own.
        """
        before, was_kept = self._expected, self._kept
        self._expected, self._kept = dict(taken), frozenset(kept)
        moved = {name for name in {**before, **taken} if before.get(name) != taken.get(name)}
        for name in sorted(moved | (was_kept ^ self._kept)):
            self._notify(name)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        before = self._machines.pop(old.metadata.name, None) if old is not None else None
        after = machine(new) if new is not None else None
        if after is not None:
            self._machines[after.name] = after
        if before != after:
            for changed in filter(None, (before, after)):
                self._change(changed.name)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before, after = _holding(old), _holding(new)
        if before == after and _place(old) == _place(new):
            return
        if before is not None:
            self._take(before.node_name, minus(self._taken[before.node_name], pod_requests(before)))
            self._on_pod_arrived(_place(old), -1)
        if after is not None:
            self._take(after.node_name, plus(self._taken.get(after.node_name, {}), pod_requests(after)))
            self._on_pod_arrived(_place(new), 1)

    def _take(self, name: str, taken: Amounts) -> None:
        self._taken[name] = taken
        if not taken["pods"]:
            del self._taken[name]
        self._change(name)

    def _on_pod_arrived(self, reservation_id: str, by: int) -> None:
        """A pod that was waited for has come, or one that had come is gone."""
        if not reservation_id:
            return
        self._arrived[reservation_id] = self._arrived.get(reservation_id, 0) + by
        if self._arrived[reservation_id] == 0:
            del self._arrived[reservation_id]
        if by > 0:
            self.release(reservation_id)

    def _change(self, name: str) -> None:
        self._free.pop(name, None)
        self.version += 1
        self._notify(name)

    def _notify(self, name: str) -> None:
        for follower in self.listeners:
            follower(name)


def machine(node: Node) -> NodeCapacity:
    return NodeCapacity(
        name=node.metadata.name,
        labels=node.metadata.labels,
        spec=node.spec,
        ready=node.is_ready,
        offered=_offered(node),
    )


def _holding(pod: Pod | None) -> PodSpec | None:
    """The spec of a pod that takes room: it has a machine and has not ended. One that is being stopped still does."""
    return pod.spec if pod is not None and pod.spec.node_name and not pod.is_finished else None


def _place(pod: Pod | None) -> str:
    return pod.metadata.labels.get(PLACE_LABEL, "") if pod is not None else ""


def _offered(node: Node) -> dict[str, int]:
    """A machine that claims more for pods than it has offers what it has; nonsense is nothing."""
    capacity = {name: _sane_quantity(amount) for name, amount in node.status.capacity.items()}
    written = node.status.allocatable or node.status.capacity
    allocatable = {name: _sane_quantity(amount) for name, amount in written.items()}
    offered = {name: min(amount, capacity.get(name, amount)) for name, amount in allocatable.items()}
    if GPU not in offered and (GPU in capacity or GPU_COUNT_LABEL in node.metadata.labels):
        offered[GPU] = capacity.get(GPU, _sane_quantity(node.metadata.labels.get(GPU_COUNT_LABEL, 0)))
    return offered


def _sane_quantity(text: str | int | float) -> int:
    """The scheduler counts in 64 bits, and finds no room where more is written."""
    amount = parse_nanos_or_zero(text)
    return amount if amount <= MOST else 0
