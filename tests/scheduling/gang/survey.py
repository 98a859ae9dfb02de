"""Admission as a survey: every pass reads every gang and every node anew. What admission by changes has to agree with.

It was the operator's own way before; only the words for amounts are shared with today's.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice

from msgspec import Struct

from holdfast.scheduling.constraints import PodRequirements, exclusion_reason
from holdfast.scheduling.gang import ADMITTED, DETAILED_MESSAGES, AdmissionDecision, Gang
from holdfast.scheduling.ledger import GPU, Ledger, NodeCapacity
from holdfast.scheduling.messages import (
    PODS,
    PermanentObstacle,
    by_importance,
    demand_text,
    join_words,
    nodes,
    number_text,
    ordinal,
    per_worker,
)
from holdfast.scheduling.resources import Amounts, how_many_fit, minus
from holdfast.times import parse_time

NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})


class SurveyResult(Struct, frozen=True):
    decisions: dict[str, AdmissionDecision]
    demand: Mapping[str, Amounts]
    held_nodes: Collection[str]


def survey(
    gangs: Iterable[Gang], ledger: Ledger, now: datetime, starvation_timeout_s: float = 600.0, per_namespace: int = 1
) -> SurveyResult:
    all_gangs = list(gangs)
    capacity, waiting = PassCapacity(ledger), []
    for gang in all_gangs:
        if gang.state == "started":
            capacity.reserve(gang.shape, gang.unbound, gang.nodes)
        else:
            waiting.append(gang)
    admission_pass = _AdmissionPass(capacity, now, starvation_timeout_s, per_namespace)
    decisions = {gang.uid: admission_pass.judge(gang) for gang in sorted(waiting, key=lambda gang: gang.rank)}
    verdicts = {gang.uid: decisions.get(gang.uid, ADMITTED) for gang in all_gangs}
    return SurveyResult(verdicts, capacity.assigned, capacity.reserved_nodes)


class _AdmissionPass:
    """Walks the queue once."""

    def __init__(
        self, capacity: "PassCapacity", now: datetime, starvation_timeout_s: float, per_namespace: int
    ) -> None:
        self._capacity = capacity
        self._now = now
        self._starvation_timeout_s = starvation_timeout_s
        self._per_namespace = per_namespace
        self._reservations: Counter[str] = Counter()
        self._position = 0
        self._blocking_gang: Gang | None = None
        self._obstacles: dict[bytes, PermanentObstacle | None] = {}

    def judge(self, gang: Gang) -> AdmissionDecision:
        if self._capacity.assign_all(gang.shape, gang.workers):
            return ADMITTED
        self._position += 1
        decision = self._refusal(gang)
        if self._holds_nodes(gang):
            self._reserve(gang)
        return decision

    def _reserve(self, gang: Gang) -> None:
        shape, namespace = gang.shape, gang.key.namespace
        if gang.state == "keeping" and _waited_s(gang, self._now) <= self._starvation_timeout_s:
            reserved = frozenset(shape.requests)  # what the gang had before the restart
        elif self._reservations[namespace] < self._per_namespace:
            self._reservations[namespace] += 1
            reserved = self._capacity.scarce(shape, gang.workers)
        else:
            return
        self._capacity.hold(shape, reserved)
        self._blocking_gang = gang

    def _refusal(self, gang: Gang) -> AdmissionDecision:
        candidates, found = self._capacity.candidates(gang.shape), self._obstacle(gang.shape)
        message = found.message if found is not None else self._shortage(gang)
        impossible = found is not None and found.impossible
        if candidates.large_enough and candidates.max_workers_ignoring_taints < gang.workers:
            message, impossible = message + exceeds_cluster_text(candidates), True
        return AdmissionDecision(admitted=False, message=message, position=self._position, impossible=impossible)

    def _holds_nodes(self, gang: Gang) -> bool:
        """Whether to reserve capacity for the gang. A gang that can never fit would hold it in vain, for ever."""
        can_ever_fit = gang.workers <= self._capacity.candidates(gang.shape).max_workers
        is_patient = _waited_s(gang, self._now) <= self._starvation_timeout_s
        # A gang that was running may get back the node that it lost: that is worth some waiting.
        return can_ever_fit or is_patient if gang.state == "keeping" else can_ever_fit and not is_patient

    def _obstacle(self, shape: PodRequirements) -> PermanentObstacle | None:
        """Computed once for all gangs of the same shape."""
        if shape.digest not in self._obstacles:
            self._obstacles[shape.digest] = obstacle(self._capacity.candidates(shape), len(self._capacity.nodes))
        return self._obstacles[shape.digest]

    def _shortage(self, gang: Gang) -> str:
        if self._position > DETAILED_MESSAGES:
            return f"{demand_text(gang.shape, gang.workers)}; at least {DETAILED_MESSAGES} jobs are in line before it"
        candidates, ahead = self._capacity.candidates(gang.shape), self._blocking_gang
        if ahead is not None and candidates.capacity(candidates.counts) >= gang.workers:
            return f"{ordinal(self._position)} in line, behind {ahead.key} (priority {ahead.priority})"
        return shortage(candidates, gang.workers, self._capacity)


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


def obstacle(candidates: CandidateNodes, node_count: int) -> PermanentObstacle | None:
    """Why no node can take such workers; None when the nodes are only in use. `node_count` counts all nodes."""
    if not node_count:
        return PermanentObstacle("no node is there")
    if not candidates.matching:
        return PermanentObstacle(f"no node matches {_constraints_text(candidates.shape)} (of {nodes(node_count)})")
    if not candidates.large_enough:
        return PermanentObstacle(_worker_too_large(candidates), impossible=True)
    if not candidates.schedulable:
        return PermanentObstacle(_all_excluded(candidates))
    return None


def shortage(candidates: CandidateNodes, workers: int, capacity: PassCapacity) -> str:
    """The resource that is missing at the moment, and how many nodes have it free."""
    shape = candidates.shape
    for name in by_importance(shape.requests):
        counts = {
            each.name: max(0, capacity.free(each.name).get(name, 0) // shape.requests[name])
            for each in candidates.schedulable
        }
        if sum(counts.values()) < workers:
            return (
                f"{demand_text(shape, workers, name)}; {_available_text(name, shape, counts)}"
                f"{_excluded_nodes_text(candidates)}"
            )
    node_count = sum(1 for count in candidates.counts.values() if count > 0)
    if sum(candidates.counts.values()) < workers:
        everything = join_words(per_worker(shape, name) for name in by_importance(shape.requests) if name != PODS)
        return (
            f"needs {workers} × {everything}; {nodes(node_count)} {_have(node_count)} all of it free"
            f"{_excluded_nodes_text(candidates)}"
        )
    return (
        f"{_anti_affinity_text(shape, workers)}; {candidates.capacity(candidates.counts)} can be placed"
        f"{_excluded_nodes_text(candidates)}"
    )


def exceeds_cluster_text(candidates: CandidateNodes) -> str:
    """The suffix for a gang that is larger than all nodes together."""
    return f"; even on empty nodes only {candidates.max_workers_ignoring_taints} fit: lower numWorkers or add nodes"


def _available_text(name: str, shape: PodRequirements, counts: Mapping[str, int]) -> str:
    node_count, workers = sum(count > 0 for count in counts.values()), sum(counts.values())
    if workers > node_count:
        return f"{nodes(node_count)} {_have(node_count)} room for {workers}"
    if name == PODS:
        return f"{nodes(node_count)} {_have(node_count)} room for one more"
    return f"{nodes(node_count)} {_have(node_count)} {number_text(name, shape.requests[name])} free"


def _have(count: int) -> str:
    return "have" if count > 1 else "has"


def _constraints_text(shape: PodRequirements) -> str:
    selector = ",".join(f"{key}={value}" for key, value in sorted(shape.constraints.node_selector.items()))
    required = shape.constraints.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    parts = [f"nodeSelector {selector}"] if selector else []
    return join_words([*parts, "the required node affinity"] if required is not None else parts)


def _worker_too_large(candidates: CandidateNodes) -> str:
    shape = candidates.shape
    for name in by_importance(shape.requests):
        largest = max(each.offered.get(name, 0) for each in candidates.matching)
        if largest < shape.requests[name]:
            has = f"the largest node has {number_text(name, largest, down=True)}" if largest else "no node has any"
            return f"needs {per_worker(shape, name)} per worker; {has}: {_advice(name, largest)}"
    everything = join_words(per_worker(shape, name) for name in by_importance(shape.requests) if name != PODS)
    return f"needs {everything} per worker; no node is large enough for all of it: {_advice('', 1)}"


def _advice(name: str, largest: int) -> str:
    if name == GPU:
        return "lower gpusPerWorker or add a node" if largest else "add a node with GPUs, or write gpusPerWorker: 0"
    return "lower resources or add a node"


def _anti_affinity_text(shape: PodRequirements, workers: int) -> str:
    return f"{demand_text(shape, workers)}, no two in one {join_words(shape.anti_affinity_keys)} (podAntiAffinity)"


def _all_excluded(candidates: CandidateNodes) -> str:
    count = len(candidates.large_enough)
    which = "the only matching node is" if count == 1 else f"all {count} matching nodes are"
    has = "has" if count == 1 else "have"
    return (
        f"{which} cordoned, not ready or {has} taints that the job does not tolerate: {_worker_exclusions(candidates)}"
    )


def _excluded_nodes_text(candidates: CandidateNodes) -> str:
    """Nodes that would count if the job could be scheduled to them."""
    return (
        f"; not counted: {_worker_exclusions(candidates)}"
        if len(candidates.schedulable) < len(candidates.large_enough)
        else ""
    )


def _worker_exclusions(candidates: CandidateNodes) -> str:
    reasons = Counter(
        exclusion_reason(candidates.shape, node)
        for node in candidates.large_enough
        if not candidates.shape.can_run_on(node)
    )
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))


def _waited_s(gang: Gang, now: datetime) -> float:
    since = gang.restarting_since or gang.created_at
    return (now - parse_time(since)).total_seconds() if since else 0.0
