"""What every machine offers and what is taken of it: kept up with every change instead of counted anew."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.builtin import Node, Pod, PodSpec
from holdfast.api.placing import NodeSpec
from holdfast.planning.placing.amounts import Amounts, minus, plus, readable
from holdfast.planning.placing.needs import needs

GPU = "nvidia.com/gpu"
# Set by NVIDIA's feature discovery, also where the device plugin has not reported yet.
GPU_COUNT_LABEL = "nvidia.com/gpu.count"


class Machine(Struct, frozen=True, kw_only=True):
    """What is looked at of a node: heartbeats and the like are not."""

    name: str
    labels: dict[str, str]
    spec: NodeSpec
    ready: bool
    offered: Amounts


Machines: TypeAlias = Mapping[str, Machine]


class Ledger:
    """Follows the nodes and all pods. `version` grows with every change that may matter to someone who waits."""

    def __init__(self) -> None:
        self.version = 0
        self._machines: dict[str, Machine] = {}
        self._taken: dict[str, Amounts] = {}
        self._free: dict[str, Amounts] = {}

    @property
    def machines(self) -> Machines:
        return self._machines

    def free(self, name: str) -> Amounts:
        """What is left on a machine; less than nothing where more is taken than it offers."""
        if name not in self._free:
            self._free[name] = minus(self._machines[name].offered, self._taken.get(name, {}))
        return self._free[name]

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
        if before == after:
            return
        if before is not None:
            self._take(before.node_name, minus(self._taken[before.node_name], needs(before)))
        if after is not None:
            self._take(after.node_name, plus(self._taken.get(after.node_name, {}), needs(after)))

    def _take(self, name: str, taken: Amounts) -> None:
        self._taken[name] = taken
        if not taken["pods"]:
            del self._taken[name]
        self._change(name)

    def _change(self, name: str) -> None:
        self._free.pop(name, None)
        self.version += 1


def machine(node: Node) -> Machine:
    return Machine(
        name=node.metadata.name,
        labels=node.metadata.labels,
        spec=node.spec,
        ready=node.is_ready,
        offered=_offered(node),
    )


def _holding(pod: Pod | None) -> PodSpec | None:
    """The spec of a pod that takes room: it has a machine and has not ended. One that is being stopped still does."""
    return pod.spec if pod is not None and pod.spec.node_name and not pod.has_ended else None


def _offered(node: Node) -> dict[str, int]:
    """A machine that claims more for pods than it has offers what it has; nonsense is nothing."""
    capacity = {name: readable(amount) for name, amount in node.status.capacity.items()}
    written = node.status.allocatable or node.status.capacity
    allocatable = {name: readable(amount) for name, amount in written.items()}
    offered = {name: min(amount, capacity.get(name, amount)) for name, amount in allocatable.items()}
    if GPU not in offered and (GPU in capacity or GPU_COUNT_LABEL in node.metadata.labels):
        offered[GPU] = capacity.get(GPU, readable(node.metadata.labels.get(GPU_COUNT_LABEL, 0)))
    return offered
