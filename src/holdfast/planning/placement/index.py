"""Which machines workloads of one sort can go to, by free GPUs: kept with the ledger instead of looked for."""

from holdfast.planning.ledger import Ledger, Machine
from holdfast.planning.placement.dice import Dice
from holdfast.planning.placement.request import Request, Sort, gpus_in
from holdfast.planning.placement.shelf import Shelf, Suits
from holdfast.planning.placing.amounts import times


class Index:
    """For workloads of one sort. Whoever made it tells it what has changed.

    Shelves count GPUs alone. Whether there is room for all else that a workload asks for is looked at when it asks,
    beginning with the best machine: mostly that will do, and nobody has to keep shelves for every mixture of needs.
    """

    def __init__(self, sort: Sort, ledger: Ledger) -> None:
        self._shape = sort.shape
        self._prefers = sort.strategy.prefers if sort.strategy is not None else None
        self._ledger = ledger
        # All machines that are asked for, and those of them that may be entered, by what each would have if empty.
        self.sizes = Shelf()
        self.entered = Shelf()
        # The latter by what they have free.
        self.preferred = Shelf()
        self.others = Shelf()
        for name in ledger.machines:
            self.refresh(name)

    def refresh(self, name: str) -> None:
        """Something has changed on that machine."""
        machine = self._ledger.machines.get(name)
        if machine is None or not self._shape.matches(machine):
            for shelf in (self.sizes, self.entered, self.preferred, self.others):
                shelf.remove(name)
            return
        size = gpus_in(machine.offered)
        self.sizes.put(name, size)
        if self._shape.may_enter(machine):
            self.entered.put(name, size)
        else:
            self.entered.remove(name)
        self._refresh_room(machine)

    def choose(self, request: Request, dice: Dice) -> str | None:
        """The machine for it; one that it avoids only if there is no other."""
        suits = self._has_room(request)
        better = [lambda name: name not in request.avoided and suits(name)] if request.avoided else []
        for will_do in (*better, suits):
            for shelf in (self.preferred, self.others):
                found = request.rule.pick(shelf, request.gpus, will_do, dice)
                if found is not None:
                    return found
        return None

    def most_free(self, request: Request) -> int:
        """The most GPUs that are free on a machine where there is room for all else that it asks for."""
        suits = self._has_room(request)
        return max(_most(shelf, suits) for shelf in (self.preferred, self.others))

    def largest(self, request: Request) -> int:
        """The most GPUs of a machine that is large enough for all else that it asks for."""
        return _most(self.sizes, self._is_large(request))

    def largest_entered(self, request: Request) -> int:
        """Of those that may be entered."""
        return _most(self.entered, self._is_large(request))

    def is_large_enough(self, request: Request, name: str) -> bool:
        """Whether that machine would do if it were empty and open."""
        return self.sizes.free(name) >= request.gpus and self._is_large(request)(name)

    def _has_room(self, request: Request) -> Suits:
        """For all that it asks for beside GPUs."""
        rest = request.rest
        return lambda name: times(rest, self._ledger.unclaimed(name)) > 0

    def _is_large(self, request: Request) -> Suits:
        """Whether there would be, if the machine were empty."""
        rest = request.rest
        return lambda name: times(rest, self._ledger.machines[name].offered) > 0

    def _refresh_room(self, machine: Machine) -> None:
        name = machine.name
        is_preferred = self._prefers is not None and self._prefers(machine)
        shelf, other = (self.preferred, self.others) if is_preferred else (self.others, self.preferred)
        other.remove(name)
        if name in self.entered and name not in self._ledger.kept:
            shelf.put(name, gpus_in(self._ledger.unclaimed(name)))
        else:
            shelf.remove(name)


def _most(shelf: Shelf, suits: Suits) -> int:
    name = shelf.roomiest(1, suits)
    return shelf.free(name) if name is not None else 0
