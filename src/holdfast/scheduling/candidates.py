"""The nodes for workers of each shape, kept up to date with the ledger, and what one admission pass takes of them."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice

from msgspec import Struct

from holdfast.scheduling.constraints import PodRequirements, exclusion_reason
from holdfast.scheduling.ledger import Ledger, NodeCapacity
from holdfast.scheduling.open_nodes import OpenNodes
from holdfast.scheduling.resources import Amounts, how_many_fit, minus

# Resources that every node has, and every pod needs.
NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})
# The candidates of so many shapes that nobody waits with are retained: the next gang most likely is of such a shape.
MAX_IDLE = 8


class FreeResource(Struct):
    """How much of one resource is free on the schedulable nodes."""

    workers: int = 0
    """For how many workers it is enough."""
    nodes: int = 0
    """How many nodes have enough for a worker."""


class CandidateNodes:
    """The nodes for workers of one shape, and how many workers fit there; `refresh` takes in a change of a node.

    During a pass the counts only shrink, and nodes are held for gangs that have waited long.
    """

    def __init__(self, shape: PodRequirements, names: Iterable[str]) -> None:
        self.shape = shape
        # The nodes that have changed since they were looked at; all of them at the beginning.
        self.stale = dict.fromkeys(names)
        self.matching: dict[str, NodeCapacity] = {}
        # How many workers would fit if the node were empty.
        self.large_enough: dict[str, int] = {}
        self.schedulable: dict[str, int] = {}
        self.excluded: dict[str, str] = {}
        # The schedulable nodes with room, held or not, and what is free there of each resource.
        self.open = OpenNodes()
        self.free_resources = {resource: FreeResource() for resource in shape.requests}
        self._amounts = tuple(shape.requests.items())
        self._totals = tuple(self.free_resources.values())
        self._nothing_fits = [0] * len(self._amounts)
        self._fits_by_node: dict[str, list[int]] = {}
        self._domains: dict[str, frozenset[tuple[str, str]]] = {}
        # For this pass alone: the nodes that are not held, and the size of a gang that did not fit. No gang of the same
        # or a larger size fits then.
        self._unheld: OpenNodes | None = None
        self._smallest_refused: int | None = None

    def refresh(self, name: str, node: NodeCapacity | None, free: Amounts) -> None:
        """Take in the node as it is now; None when it is gone."""
        if node is not self.matching.get(name):
            self._forget(name)
            if node is not None and self.shape.matches(node):
                self._add(node)
        if name in self.schedulable:
            fits = [free.get(resource, 0) // amount for resource, amount in self._amounts]
            self._count(name, fits if min(fits) >= 0 else [max(0, each) for each in fits])

    def choose(self, workers: int) -> Mapping[str, int]:
        """How many workers each node gets; empty if not all workers fit."""
        if self._smallest_refused is not None and workers >= self._smallest_refused:
            return {}
        if self.shape.anti_affinity_keys or workers <= self._usable.total:
            chosen = self.choose_some(workers)
            if chosen.total() == workers:
                return chosen
        self._smallest_refused = workers
        return {}

    def choose_some(self, workers: int, occupied: Collection[str] = ()) -> Counter[str]:
        """Nodes for as many workers as fit; `occupied` are the nodes of the other workers of the gang.

        The node with the most capacity goes first, as in the scheduler: a guess at the real nodes of the workers. The
        caller has to take the returned nodes.
        """
        if self.shape.anti_affinity_keys:
            return Counter(islice(self._spread_over_domains(self._usable.by_capacity(), occupied), workers))
        return self._usable.most_free(workers)

    def hold(self, names: Container[str]) -> None:
        """Stop offering these nodes until the pass ends."""
        self._unheld = self._usable.without(names)

    def end_pass(self) -> None:
        self._unheld = None
        self._smallest_refused = None

    @property
    def fitting(self) -> int:
        """How many workers fit in all at the moment, on held nodes too."""
        return self._spread_capacity if self.shape.anti_affinity_keys else self.open.total

    @property
    def fitting_devices(self) -> int:
        """How many workers would fit if they needed nothing but their devices."""
        devices = [number for number, (resource, _) in enumerate(self._amounts) if resource not in NATIVE]
        if len(devices) == 1 and not self.shape.anti_affinity_keys:
            return self.free_resources[self._amounts[devices[0]][0]].workers
        return self._capacity(
            {name: min((fits[number] for number in devices), default=0) for name, fits in self._fits_by_node.items()}
        )

    @cached_property
    def max_workers(self) -> int:
        """How many workers would fit if the nodes that they can run on were empty."""
        return self._capacity(self.schedulable)

    @cached_property
    def max_workers_ignoring_taints(self) -> int:
        """As `max_workers`, if all taints were tolerated and all nodes were ready."""
        return self._capacity(self.large_enough)

    @cached_property
    def exclusions(self) -> Counter[str]:
        """Why nodes that are large enough can't be scheduled to, and how many for each reason."""
        return Counter(self.excluded.values())

    def largest(self, resource: str) -> int:
        """The most of the resource that a matching node offers."""
        return max(node.offered.get(resource, 0) for node in self.matching.values())

    @property
    def _usable(self) -> OpenNodes:
        return self.open if self._unheld is None else self._unheld

    @cached_property
    def _spread_capacity(self) -> int:
        return sum(1 for _ in self._spread_over_domains(self.open.by_capacity()))

    def _capacity(self, counts: Mapping[str, int]) -> int:
        if not self.shape.anti_affinity_keys:
            return sum(counts.values())
        by_capacity = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return sum(1 for _ in self._spread_over_domains(by_capacity))

    def _add(self, node: NodeCapacity) -> None:
        name, shape = node.name, self.shape
        self.matching[name] = node
        size = how_many_fit(shape.requests, node.offered)
        if not size:
            return
        self.large_enough[name] = size
        if shape.anti_affinity_keys:
            self._domains[name] = shape.domains(node)
        if shape.can_run_on(node):
            self.schedulable[name] = size
        else:
            self.excluded[name] = exclusion_reason(shape, node)
        self._outdate("max_workers", "max_workers_ignoring_taints", "exclusions")

    def _forget(self, name: str) -> None:
        self._count(name, self._nothing_fits)
        for facts in (
            self.matching,
            self.large_enough,
            self.schedulable,
            self.excluded,
            self._fits_by_node,
            self._domains,
        ):
            facts.pop(name, None)
        self._outdate("max_workers", "max_workers_ignoring_taints", "exclusions")

    def _count(self, name: str, fits: list[int]) -> None:
        """Count the node with so much room, by resource in the order of the requests."""
        before = self._fits_by_node.get(name, self._nothing_fits)
        self._fits_by_node[name] = fits
        if fits == before:
            return
        for total, new, old in zip(self._totals, fits, before, strict=True):
            total.workers += new - old
            if not (new and old):
                total.nodes += bool(new) - bool(old)
        count = min(fits)
        self.open.put(name, count)
        if self._unheld is not None and name in self._unheld:
            self._unheld.put(name, count)
        if self.shape.anti_affinity_keys:
            self._outdate("_spread_capacity")

    def _outdate(self, *properties: str) -> None:
        for each in properties:
            self.__dict__.pop(each, None)

    def _spread_over_domains(
        self, by_capacity: Iterable[tuple[str, int]], occupied: Collection[str] = ()
    ) -> Iterator[str]:
        used = {domain for name in occupied for domain in self._domains.get(name, ())}
        for name, count in by_capacity:
            domains = self._domains[name]
            if not domains:
                yield from [name] * count
            elif count > 0 and used.isdisjoint(domains):
                used |= domains
                yield name


class CandidateIndex:
    """The candidates of each shape that was asked for lately. Its owner calls `changed` for every changed node."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._candidates: dict[bytes, CandidateNodes] = {}

    def __iter__(self) -> Iterator[CandidateNodes]:
        return iter(self._candidates.values())

    def changed(self, name: str) -> None:
        for candidates in self._candidates.values():
            candidates.stale[name] = None

    def of(self, shape: PodRequirements) -> CandidateNodes:
        """They may be stale."""
        if shape.digest not in self._candidates:
            self._candidates[shape.digest] = CandidateNodes(shape, self._ledger.nodes)
        return self._candidates[shape.digest]

    def catch_up(self, shapes: Iterable[PodRequirements], limit: int) -> bool:
        """Take in changed nodes, at most `limit` of them; whether that was all. Drops shapes that are idle for long."""
        wanted = {shape.digest: self.of(shape) for shape in shapes}
        for candidates in wanted.values():
            while candidates.stale:
                if not limit:
                    return False
                limit -= 1
                name, _ = candidates.stale.popitem()
                node = self._ledger.nodes.get(name)
                candidates.refresh(name, node, self._ledger.free(name) if node is not None else {})
        idle = [digest for digest in self._candidates if digest not in wanted]
        self._candidates = {digest: self._candidates[digest] for digest in (*idle[-MAX_IDLE:], *wanted)}
        return True


class PassCapacity:
    """Free capacity, less what was assigned in this pass."""

    def __init__(self, ledger: Ledger, index: CandidateIndex) -> None:
        self._ledger = ledger
        self._index = index
        self._free: dict[str, Amounts] = {}
        # For whom nodes are held and which resources, and how many of these holds the candidates of a shape know of.
        self._holds: dict[tuple[bytes, frozenset[str]], CandidateNodes] = {}
        self._known_holds: dict[bytes, int] = {}

    @property
    def node_count(self) -> int:
        return len(self._ledger.nodes)

    @property
    def assigned(self) -> dict[str, Amounts]:
        """The amounts assigned so far, by node."""
        return {name: minus(self._ledger.free(name), left) for name, left in self._free.items()}

    @property
    def held_nodes(self) -> frozenset[str]:
        """Nodes with reserved resources."""
        return frozenset().union(*(holder.schedulable for holder in self._holds.values()))

    def candidates(self, shape: PodRequirements) -> CandidateNodes:
        """The nodes as they are now in this pass."""
        candidates = self._index.of(shape)
        while candidates.stale:
            name, _ = candidates.stale.popitem()
            node = self._ledger.nodes.get(name)
            free = self._free.get(name) or (self._ledger.free(name) if node is not None else {})
            candidates.refresh(name, node, free)
        known = self._known_holds.get(shape.digest, 0)
        if known < len(self._holds):
            self._known_holds[shape.digest] = len(self._holds)
            for (_, reserved), holder in islice(self._holds.items(), known, None):
                if not reserved.isdisjoint(shape.requests):
                    candidates.hold(holder.schedulable)
        return candidates

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
        devices = shape.requests.keys() - NATIVE
        return frozenset(devices if devices and self.candidates(shape).fitting_devices < workers else shape.requests)

    def hold(self, shape: PodRequirements, reserved: frozenset[str]) -> None:
        """Stop assigning the reserved resources on all nodes that such workers could run on."""
        self._holds.setdefault((shape.digest, reserved), self.candidates(shape))

    def end(self) -> None:
        """Leave the index as the ledger is: what this pass assigned is no part of it."""
        for name in self._free:
            self._index.changed(name)
        for candidates in self._index:
            candidates.end_pass()

    def _take(self, chosen: Mapping[str, int], shape: PodRequirements) -> None:
        for name, workers in chosen.items():
            free = self._free.get(name) or self._ledger.free(name)
            taken = {resource: workers * amount for resource, amount in shape.requests.items()}
            self._free[name] = minus(free, taken)
            self._index.changed(name)
