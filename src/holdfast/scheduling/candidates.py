"""The room on all machines during one pass, as it is given to one gang after the other."""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice

from holdfast.scheduling.constraints import PodRequirements
from holdfast.scheduling.ledger import Ledger, NodeCapacity
from holdfast.scheduling.resources import Amounts, how_many_fit, minus

# What every machine has, and every pod needs.
NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})


class CandidateNodes:
    """Where workers of one shape can be, and how many fit there. During a pass that only ever gets less."""

    def __init__(self, shape: PodRequirements, room: "PassCapacity") -> None:
        self.shape = shape
        self.matching = [machine for machine in room.machines if shape.matches(machine)]
        self.suiting = [machine for machine in self.matching if how_many_fit(shape.requests, machine.offered)]
        self.entered = [machine for machine in self.suiting if shape.can_run_on(machine)]
        self.counts = {machine.name: how_many_fit(shape.requests, room.free(machine.name)) for machine in self.entered}
        self._open = dict(self.counts)
        self._total = sum(self._open.values())
        self._domains = (
            {machine.name: shape.domains(machine) for machine in self.suiting} if shape.anti_affinity_keys else {}
        )
        # The roomiest first. An entry is only good while `_open` says the same.
        self._heap = [(-count, name) for name, count in self._open.items()]
        heapify(self._heap)
        # Where a gang found too little, one that is as large finds too little as well.
        self._too_many: int | None = None

    def choose(self, workers: int) -> list[str]:
        """A machine for each worker; none at all when there is not room for everyone."""
        if not self.shape.anti_affinity_keys:
            return self.choose_some(workers) if workers <= self._total else []
        if self._too_many is not None and workers >= self._too_many:
            return []
        chosen = self.choose_some(workers)
        if len(chosen) == workers:
            return chosen
        self._too_many = workers
        return []

    def choose_some(self, workers: int, beside: Collection[str] = ()) -> list[str]:
        """Machines for as many workers as there is room for; `beside` are those that fellows are on.

        The roomiest goes first, as with the scheduler: a guess at where the workers will really be. What is gathered
        is to be taken.
        """
        if self.shape.anti_affinity_keys:
            return list(islice(self._apart(self._open, beside), workers))
        chosen: list[str] = []
        while self._heap and len(chosen) < workers:
            count, name = heappop(self._heap)
            if -count == self._open.get(name) and count:
                chosen.append(name)
                self._set(name, -count - 1)
        return chosen

    def recount(self, name: str, free: Amounts) -> None:
        """Something was taken on that machine."""
        if name in self.counts:
            self.counts[name] = how_many_fit(self.shape.requests, free)
        if name in self._open:
            self._set(name, self.counts[name])

    def hold(self, name: str) -> None:
        self._total -= self._open.pop(name, 0)

    def capacity(self, counts: Mapping[str, int]) -> int:
        """How many workers there would be room for with so much room on each machine."""
        return sum(1 for _ in self._apart(counts)) if self.shape.anti_affinity_keys else sum(counts.values())

    @cached_property
    def most(self) -> int:
        """How many there would be room for if the machines that it may enter were empty."""
        return self.capacity({each.name: how_many_fit(self.shape.requests, each.offered) for each in self.entered})

    @cached_property
    def max_workers_ignoring_taints(self) -> int:
        """The same if all that suit could be entered as well."""
        return self.capacity({each.name: how_many_fit(self.shape.requests, each.offered) for each in self.suiting})

    def _set(self, name: str, count: int) -> None:
        if count != self._open[name]:
            self._total += count - self._open[name]
            self._open[name] = count
            heappush(self._heap, (-count, name))

    def _apart(self, counts: Mapping[str, int], beside: Collection[str] = ()) -> Iterator[str]:
        used = {domain for name in beside for domain in self._domains.get(name, ())}
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            domains = self._domains[name]
            if not domains:
                yield from [name] * count
            elif count > 0 and used.isdisjoint(domains):
                used |= domains
                yield name


class PassCapacity:
    """What is free, less what is given away in this pass."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._free: dict[str, Amounts] = {}
        self._closed: dict[str, frozenset[str]] = {}
        self._spots: dict[bytes, CandidateNodes] = {}

    @property
    def machines(self) -> Collection[NodeCapacity]:
        return self._ledger.machines.values()

    def free(self, name: str) -> Amounts:
        changed = self._free.get(name)
        return self._ledger.free(name) if changed is None else changed

    @property
    def given(self) -> dict[str, Amounts]:
        """What was given away so far, by machine."""
        return {name: minus(self._ledger.free(name), left) for name, left in self._free.items()}

    @property
    def closed(self) -> Collection[str]:
        """Machines of which something is reserved."""
        return self._closed.keys()

    def spots(self, shape: PodRequirements) -> CandidateNodes:
        if shape.digest not in self._spots:
            spots = self._spots[shape.digest] = CandidateNodes(shape, self)
            for name, reserved in self._closed.items():
                if not reserved.isdisjoint(shape.requests):
                    spots.hold(name)
        return self._spots[shape.digest]

    def put(self, shape: PodRequirements, workers: int) -> bool:
        """Give all workers their room, or none."""
        chosen = self.spots(shape).choose(workers)
        self._take(chosen, shape)
        return bool(chosen)

    def reserve(self, shape: PodRequirements, workers: int, beside: Collection[str]) -> None:
        """Give as many workers their room as there is room for."""
        self._take(self.spots(shape).choose_some(workers, beside), shape)

    def scarce(self, shape: PodRequirements, workers: int) -> frozenset[str]:
        """The resources for lack of which such workers wait: their devices while there are too few, else all they ask.

        Devices stay scarce when something else is missing as well: jobs that take the one and jobs that take the other
        would keep such workers waiting in turns.
        """
        devices = {name: amount for name, amount in shape.requests.items() if name not in NATIVE}
        spots = self.spots(shape)
        free = {machine.name: how_many_fit(devices, self.free(machine.name)) for machine in spots.entered}
        return frozenset(devices if devices and spots.capacity(free) < workers else shape.requests)

    def hold(self, shape: PodRequirements, reserved: frozenset[str]) -> None:
        """From now on nobody gets any of the reserved resources where such workers could be."""
        for machine in self.spots(shape).entered:
            before = self._closed.get(machine.name, frozenset())
            self._closed[machine.name] = before | reserved
            for spots in self._spots.values():
                if not reserved.isdisjoint(spots.shape.requests):
                    spots.hold(machine.name)

    def _take(self, names: Collection[str], shape: PodRequirements) -> None:
        for name in names:
            self._free[name] = minus(self.free(name), shape.requests)
        for name in dict.fromkeys(names):
            for spots in self._spots.values():
                spots.recount(name, self._free[name])
