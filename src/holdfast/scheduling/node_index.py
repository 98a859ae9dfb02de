"""The nodes that workloads of one scheduling class can use, by free GPUs: updated with the ledger, not searched."""

from holdfast.scheduling.constraints import Request, SchedulingClass, gpus_in
from holdfast.scheduling.free_gpus import FreeGpuIndex, NodeFilter, RandomSource
from holdfast.scheduling.ledger import Ledger, NodeCapacity
from holdfast.scheduling.resources import how_many_fit


class NodeIndex:
    """The nodes of one scheduling class. The owner calls `refresh` for every changed node.

    The indexes count GPUs alone. Capacity for the other requests of a workload is checked at placement, beginning with
    the best node: mostly that node fits, and no index is needed for every combination of requests.
    """

    def __init__(self, scheduling_class: SchedulingClass, ledger: Ledger) -> None:
        self._shape = scheduling_class.shape
        self._prefers = scheduling_class.strategy.prefers if scheduling_class.strategy is not None else None
        self._ledger = ledger
        # All matching nodes, and the schedulable nodes among them, by the GPUs that each node would have if empty.
        self.by_capacity = FreeGpuIndex()
        self.schedulable = FreeGpuIndex()
        # The schedulable nodes by free GPUs.
        self.preferred = FreeGpuIndex()
        self.others = FreeGpuIndex()
        for name in ledger.nodes:
            self.refresh(name)

    def refresh(self, name: str) -> None:
        """Update the indexes after a change of the node."""
        node = self._ledger.nodes.get(name)
        if node is None or not self._shape.matches(node):
            for index in (self.by_capacity, self.schedulable, self.preferred, self.others):
                index.remove(name)
            return
        size = gpus_in(node.offered)
        self.by_capacity.put(name, size)
        if self._shape.can_run_on(node):
            self.schedulable.put(name, size)
        else:
            self.schedulable.remove(name)
        self._refresh_free(node)

    def choose(self, request: Request, rng: RandomSource) -> str | None:
        """The node for the request; an avoided node only if no other node fits."""
        suits = self._has_capacity(request)
        not_avoided = [lambda name: name not in request.avoided and suits(name)] if request.avoided else []
        for node_filter in (*not_avoided, suits):
            for index in (self.preferred, self.others):
                found = request.strategy_impl.pick(index, request.gpus, node_filter, rng)
                if found is not None:
                    return found
        return None

    def most_free(self, request: Request) -> int:
        """The most free GPUs of a node that has capacity for the other requests."""
        suits = self._has_capacity(request)
        return max(_most(index, suits) for index in (self.preferred, self.others))

    def largest(self, request: Request) -> int:
        """The most GPUs of a node that is large enough for the other requests."""
        return _most(self.by_capacity, self._is_large_enough_without_gpus(request))

    def largest_schedulable(self, request: Request) -> int:
        """As `largest`, among schedulable nodes."""
        return _most(self.schedulable, self._is_large_enough_without_gpus(request))

    def is_large_enough(self, request: Request, name: str) -> bool:
        """Whether the node would fit if it were empty and schedulable."""
        return self.by_capacity.free(name) >= request.gpus and self._is_large_enough_without_gpus(request)(name)

    def _has_capacity(self, request: Request) -> NodeFilter:
        """Whether a node has free capacity for all requests but GPUs."""
        other_requests = request.other_requests
        return lambda name: how_many_fit(other_requests, self._ledger.available(name)) > 0

    def _is_large_enough_without_gpus(self, request: Request) -> NodeFilter:
        """Whether a node would have the capacity for all requests but GPUs if it were empty."""
        other_requests = request.other_requests
        return lambda name: how_many_fit(other_requests, self._ledger.nodes[name].offered) > 0

    def _refresh_free(self, node: NodeCapacity) -> None:
        name = node.name
        is_preferred = self._prefers is not None and self._prefers(node)
        index, other = (self.preferred, self.others) if is_preferred else (self.others, self.preferred)
        other.remove(name)
        if name in self.schedulable and name not in self._ledger.nodes_held_for_gangs:
            index.put(name, gpus_in(self._ledger.available(name)))
        else:
            index.remove(name)


def _most(index: FreeGpuIndex, suits: NodeFilter) -> int:
    name = index.most_free_node(1, suits)
    return index.free(name) if name is not None else 0
