"""Which machines workloads of one sort can go to, by free GPUs: kept with the ledger instead of looked for."""

from holdfast.scheduling.free_gpus import FreeGpuIndex, NodeFilter, RandomSource
from holdfast.scheduling.ledger import Ledger, NodeCapacity
from holdfast.scheduling.request import Request, SchedulingClass, gpus_in
from holdfast.scheduling.resources import how_many_fit


class NodeIndex:
    """For workloads of one sort. Whoever made it tells it what has changed.

    Shelves count GPUs alone. Whether there is room for all else that a workload asks for is looked at when it asks,
    beginning with the best machine: mostly that will do, and nobody has to keep shelves for every mixture of needs.
    """

    def __init__(self, sort: SchedulingClass, ledger: Ledger) -> None:
        self._shape = sort.shape
        self._prefers = sort.strategy.prefers if sort.strategy is not None else None
        self._ledger = ledger
        # All machines that are asked for, and those of them that may be entered, by what each would have if empty.
        self.by_capacity = FreeGpuIndex()
        self.schedulable = FreeGpuIndex()
        # The latter by what they have free.
        self.preferred = FreeGpuIndex()
        self.others = FreeGpuIndex()
        for name in ledger.machines:
            self.refresh(name)

    def refresh(self, name: str) -> None:
        """Something has changed on that machine."""
        machine = self._ledger.machines.get(name)
        if machine is None or not self._shape.matches(machine):
            for shelf in (self.by_capacity, self.schedulable, self.preferred, self.others):
                shelf.remove(name)
            return
        size = gpus_in(machine.offered)
        self.by_capacity.put(name, size)
        if self._shape.can_run_on(machine):
            self.schedulable.put(name, size)
        else:
            self.schedulable.remove(name)
        self._refresh_room(machine)

    def choose(self, request: Request, dice: RandomSource) -> str | None:
        """The machine for it; one that it avoids only if there is no other."""
        suits = self._has_room(request)
        better = [lambda name: name not in request.avoided and suits(name)] if request.avoided else []
        for will_do in (*better, suits):
            for shelf in (self.preferred, self.others):
                found = request.strategy_impl.pick(shelf, request.gpus, will_do, dice)
                if found is not None:
                    return found
        return None

    def most_free(self, request: Request) -> int:
        """The most GPUs that are free on a machine where there is room for all else that it asks for."""
        suits = self._has_room(request)
        return max(_most(shelf, suits) for shelf in (self.preferred, self.others))

    def largest(self, request: Request) -> int:
        """The most GPUs of a machine that is large enough for all else that it asks for."""
        return _most(self.by_capacity, self._is_large(request))

    def largest_entered(self, request: Request) -> int:
        """Of those that may be entered."""
        return _most(self.schedulable, self._is_large(request))

    def is_large_enough(self, request: Request, name: str) -> bool:
        """Whether that machine would do if it were empty and open."""
        return self.by_capacity.free(name) >= request.gpus and self._is_large(request)(name)

    def _has_room(self, request: Request) -> NodeFilter:
        """For all that it asks for beside GPUs."""
        rest = request.other_requests
        return lambda name: how_many_fit(rest, self._ledger.available(name)) > 0

    def _is_large(self, request: Request) -> NodeFilter:
        """Whether there would be, if the machine were empty."""
        rest = request.other_requests
        return lambda name: how_many_fit(rest, self._ledger.machines[name].offered) > 0

    def _refresh_room(self, machine: NodeCapacity) -> None:
        name = machine.name
        is_preferred = self._prefers is not None and self._prefers(machine)
        shelf, other = (self.preferred, self.others) if is_preferred else (self.others, self.preferred)
        other.remove(name)
        if name in self.schedulable and name not in self._ledger.nodes_held_for_gangs:
            shelf.put(name, gpus_in(self._ledger.available(name)))
        else:
            shelf.remove(name)


def _most(shelf: FreeGpuIndex, suits: NodeFilter) -> int:
    name = shelf.most_free_node(1, suits)
    return shelf.free(name) if name is not None else 0
