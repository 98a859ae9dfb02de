"""The free capacity of all nodes during one admission pass, as it is assigned to one gang after the other."""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice

from holdfast.scheduling.constraints import PodRequirements
from holdfast.scheduling.ledger import Ledger, NodeCapacity
from holdfast.scheduling.resources import Amounts, how_many_fit, minus

# Resources that every node has, and every pod needs.
NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})


class CandidateNodes:
    """The nodes for workers of one shape, and how many workers fit there. The counts only shrink during a pass."""

    def __init__(self, shape: PodRequirements, capacity: "PassCapacity") -> None:
        self.shape = shape
        self.matching = [node for node in capacity.nodes if shape.matches(node)]
        self.large_enough = [node for node in self.matching if how_many_fit(shape.requests, node.offered)]
        self.schedulable = [node for node in self.large_enough if shape.can_run_on(node)]
        self.counts = {node.name: how_many_fit(shape.requests, capacity.free(node.name)) for node in self.schedulable}
        self._open = dict(self.counts)
        self._total = sum(self._open.values())
        self._domains = (
            {node.name: shape.domains(node) for node in self.large_enough} if shape.anti_affinity_keys else {}
        )
        # The node with the most capacity first. An entry is valid only while `_open` holds the same count.
        self._heap = [(-count, name) for name, count in self._open.items()]
        heapify(self._heap)
        # If a gang does not fit, no gang of the same or a larger size fits.
        self._smallest_rejected: int | None = None

    def choose(self, workers: int) -> list[str]:
        """A node for each worker; empty if not all workers fit."""
        if not self.shape.anti_affinity_keys:
            return self.choose_some(workers) if workers <= self._total else []
        if self._smallest_rejected is not None and workers >= self._smallest_rejected:
            return []
        chosen = self.choose_some(workers)
        if len(chosen) == workers:
            return chosen
        self._smallest_rejected = workers
        return []

    def choose_some(self, workers: int, occupied: Collection[str] = ()) -> list[str]:
        """Nodes for as many workers as fit; `occupied` are the nodes of the other workers of the gang.

        The node with the most capacity goes first, as in the scheduler: a guess at the real nodes of the workers. The
        caller has to take the returned nodes.
        """
        if self.shape.anti_affinity_keys:
            return list(islice(self._spread_over_domains(self._open, occupied), workers))
        chosen: list[str] = []
        while self._heap and len(chosen) < workers:
            count, name = heappop(self._heap)
            if -count == self._open.get(name) and count:
                chosen.append(name)
                self._set(name, -count - 1)
        return chosen

    def recount(self, name: str, free: Amounts) -> None:
        """Update the count of a node after capacity was taken there."""
        if name in self.counts:
            self.counts[name] = how_many_fit(self.shape.requests, free)
        if name in self._open:
            self._set(name, self.counts[name])

    def hold(self, name: str) -> None:
        self._total -= self._open.pop(name, 0)

    def capacity(self, counts: Mapping[str, int]) -> int:
        """How many workers fit in all, with these counts per node."""
        return (
            sum(1 for _ in self._spread_over_domains(counts)) if self.shape.anti_affinity_keys else sum(counts.values())
        )

    @cached_property
    def max_workers(self) -> int:
        """How many workers would fit if the nodes that they can run on were empty."""
        return self.capacity({node.name: how_many_fit(self.shape.requests, node.offered) for node in self.schedulable})

    @cached_property
    def max_workers_ignoring_taints(self) -> int:
        """As `max_workers`, if all taints were tolerated and all nodes were ready."""
        return self.capacity({node.name: how_many_fit(self.shape.requests, node.offered) for node in self.large_enough})

    def _set(self, name: str, count: int) -> None:
        if count != self._open[name]:
            self._total += count - self._open[name]
            self._open[name] = count
            heappush(self._heap, (-count, name))

    def _spread_over_domains(self, counts: Mapping[str, int], occupied: Collection[str] = ()) -> Iterator[str]:
        used = {domain for name in occupied for domain in self._domains.get(name, ())}
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            domains = self._domains[name]
            if not domains:
                yield from [name] * count
            elif count > 0 and used.isdisjoint(domains):
                used |= domains
                yield name


class PassCapacity:
    """Free capacity, less what was assigned in this pass."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._free: dict[str, Amounts] = {}
        self._reserved: dict[str, frozenset[str]] = {}
        self._candidates: dict[bytes, CandidateNodes] = {}

    @property
    def nodes(self) -> Collection[NodeCapacity]:
        return self._ledger.nodes.values()

    def free(self, name: str) -> Amounts:
        changed = self._free.get(name)
        return self._ledger.free(name) if changed is None else changed

    @property
    def assigned(self) -> dict[str, Amounts]:
        """The amounts assigned so far, by node."""
        return {name: minus(self._ledger.free(name), left) for name, left in self._free.items()}

    @property
    def reserved_nodes(self) -> Collection[str]:
        """Nodes with reserved resources."""
        return self._reserved.keys()

    def candidates(self, shape: PodRequirements) -> CandidateNodes:
        if shape.digest not in self._candidates:
            candidates = self._candidates[shape.digest] = CandidateNodes(shape, self)
            for name, reserved in self._reserved.items():
                if not reserved.isdisjoint(shape.requests):
                    candidates.hold(name)
        return self._candidates[shape.digest]

    def assign_all(self, shape: PodRequirements, workers: int) -> bool:
        """Assign capacity to all workers, or to none."""
        chosen = self.candidates(shape).choose(workers)
        self._take(chosen, shape)
        return bool(chosen)

    def reserve(self, shape: PodRequirements, workers: int, occupied: Collection[str]) -> None:
        """Assign capacity to as many workers as fit."""
        self._take(self.candidates(shape).choose_some(workers, occupied), shape)

    def scarce(self, shape: PodRequirements, workers: int) -> frozenset[str]:
        """The resources that such workers wait for: their devices while too few are free, else all their requests.

        Devices stay scarce when another resource is missing as well: jobs that take the devices and jobs that take the
        other resource would keep such workers waiting in turns.
        """
        devices = {name: amount for name, amount in shape.requests.items() if name not in NATIVE}
        candidates = self.candidates(shape)
        free = {node.name: how_many_fit(devices, self.free(node.name)) for node in candidates.schedulable}
        return frozenset(devices if devices and candidates.capacity(free) < workers else shape.requests)

    def hold(self, shape: PodRequirements, reserved: frozenset[str]) -> None:
        """Stop assigning the reserved resources on all nodes that such workers could run on."""
        for node in self.candidates(shape).schedulable:
            before = self._reserved.get(node.name, frozenset())
            self._reserved[node.name] = before | reserved
            for candidates in self._candidates.values():
                if not reserved.isdisjoint(candidates.shape.requests):
                    candidates.hold(node.name)

    def _take(self, names: Collection[str], shape: PodRequirements) -> None:
        for name in names:
            self._free[name] = minus(self.free(name), shape.requests)
        for name in dict.fromkeys(names):
            for candidates in self._candidates.values():
                candidates.recount(name, self._free[name])
