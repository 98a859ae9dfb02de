"""Which machines workloads of one sort can go to, by free GPUs: kept with the ledger instead of looked for."""

from holdfast.planning.ledger import Ledger, Machine
from holdfast.planning.placement.dice import Dice
from holdfast.planning.placement.request import Request, Sort, gpus_in
from holdfast.planning.placement.shelf import Shelf
from holdfast.planning.placing.amounts import times


class Index:
    """For workloads of one sort. Whoever made it tells it what has changed."""

    def __init__(self, sort: Sort, ledger: Ledger) -> None:
        self._shape = sort.shape
        self._prefers = sort.strategy.prefers if sort.strategy is not None else None
        self._ledger = ledger
        # All machines that are asked for, and those of them that may be entered, by what each would have if empty.
        self.sizes = Shelf()
        self.entered = Shelf()
        # The latter by what they have free, as far as there is room for all else that is asked for.
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
        size = gpus_in(machine.offered) if times(self._shape.asked, machine.offered) else 0
        self.sizes.put(name, size)
        if self._shape.may_enter(machine):
            self.entered.put(name, size)
        else:
            self.entered.remove(name)
        self._refresh_room(machine)

    def choose(self, request: Request, dice: Dice) -> str | None:
        """The machine for it; one that it avoids only if there is no other."""
        for avoided in (request.avoided, ()) if request.avoided else ((),):
            for shelf in (self.preferred, self.others):
                found = request.rule.pick(shelf, request.gpus, avoided, dice)
                if found is not None:
                    return found
        return None

    def most_free(self) -> int:
        return max(self.preferred.most(), self.others.most())

    def _refresh_room(self, machine: Machine) -> None:
        name = machine.name
        is_preferred = self._prefers is not None and self._prefers(machine)
        shelf, other = (self.preferred, self.others) if is_preferred else (self.others, self.preferred)
        other.remove(name)
        left = self._ledger.unclaimed(name)
        if name in self.entered and name not in self._ledger.kept and times(self._shape.asked, left):
            shelf.put(name, gpus_in(left))
        else:
            shelf.remove(name)
