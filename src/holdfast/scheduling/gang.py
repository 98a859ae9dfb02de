"""Gang admission: the workers of a job start together, and each pass decides which gangs may start."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from holdfast.api.meta import Key
from holdfast.scheduling.candidates import CandidateIndex, PassCapacity
from holdfast.scheduling.constraints import PodRequirements, displaced
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.messages import (
    PermanentObstacle,
    demand_text,
    exceeds_cluster_text,
    obstacle,
    ordinal,
    shortage,
)
from holdfast.scheduling.resources import Amounts
from holdfast.times import parse_time

# started: the gang may start, or has started; its workers without a node get capacity first.
# waiting: the gang waits for its first start, or for the next start after it was stopped.
# keeping: the gang ran and is being restarted; gangs behind it do not get its capacity.
GangState: TypeAlias = Literal["started", "waiting", "keeping"]


class Gang(Struct, frozen=True, kw_only=True, dict=True):
    key: Key
    uid: str
    workers: int
    shape: PodRequirements
    state: GangState = "waiting"
    priority: int = 0
    created_at: str = ""
    """Creation time of the job: the older job goes first."""
    restarting_since: str = ""
    """Since when a gang in state keeping has no workers."""
    unbound: int = 0
    """How many workers of a started gang have no node yet."""
    nodes: tuple[str, ...] = ()
    """The nodes of the other workers of a started gang."""

    @cached_property
    def rank(self) -> tuple[int, bool, str, Key]:
        """The queue order. A restarting gang goes before waiting gangs of its priority: its capacity is not theirs."""
        return -self.priority, self.state != "keeping", self.created_at, self.key

    @cached_property
    def waits_since(self) -> datetime | None:
        """None for a gang that has not waited."""
        since = self.restarting_since or self.created_at
        return parse_time(since) if since else None


class AdmissionDecision(Struct, frozen=True, kw_only=True):
    admitted: bool
    message: str = ""
    """What the gang waits for, and what would change that."""
    position: int = 0
    """The queue position, from 1; 0 for a gang that does not wait."""
    impossible: bool = False
    """The gang would not fit even if every node were empty."""


ADMITTED = AdmissionDecision(admitted=True)


# One pass over all waiting gangs, in queue order: which gangs may start, and what the others wait for.

# How many gangs get a message with the missing amounts. The amounts change all the time, and each change is a status
# write for each such job: further back in a long queue the writes cost more than the amounts are worth.
DETAILED_MESSAGES = 10


# How many gangs are admitted in one pass; the next pass goes on. Other tasks must not stall meanwhile.
ADMISSIONS_PER_PASS = 50


class AdmissionResult(Struct, frozen=True, kw_only=True):
    """The result of one pass."""

    decisions: dict[str, AdmissionDecision]
    """The decision for every gang, by its uid."""
    demand: Mapping[str, Amounts]
    """Expected requests of admitted workers that have no node yet, by node."""
    held_nodes: frozenset[str]
    """Nodes that are held for gangs that have waited long."""
    is_complete: bool
    """Whether every gang was looked at."""
    patience_ends: datetime | None
    """When the first of the gangs that wait may have nodes held for it."""


def admit(
    gangs: Iterable[Gang], ledger: Ledger, now: datetime, starvation_timeout_s: float = 600.0
) -> dict[str, AdmissionDecision]:
    """Only the decisions of `run_admission`."""
    return run_admission(gangs, ledger, now, starvation_timeout_s).decisions


def run_admission(
    gangs: Iterable[Gang], ledger: Ledger, now: datetime, starvation_timeout_s: float = 600.0, per_namespace: int = 1
) -> AdmissionResult:
    """One pass over these gangs alone."""
    queue, all_gangs = GangQueue(ledger), list(gangs)
    for gang in all_gangs:
        queue.put(gang)
    result = queue.run_pass(now, starvation_timeout_s, per_namespace, limit=len(all_gangs))
    return structs.replace(result, decisions={gang.uid: result.decisions.get(gang.uid, ADMITTED) for gang in all_gangs})


class GangQueue:
    """The gangs that need capacity, kept as they change. A started gang whose workers all have nodes costs nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._index = CandidateIndex(ledger)
        self._gangs: dict[str, Gang] = {}
        self._line: list[Gang] = []
        self._started: dict[str, Gang] = {}
        self.is_outdated = False
        """Demand or capacity has changed since the last pass."""
        self._version = ledger.version

    @property
    def is_waiting(self) -> bool:
        """Whether a gang waits: then all capacity that becomes free matters."""
        return bool(self._line)

    @property
    def needs_pass(self) -> bool:
        """Whether a pass may decide anything new."""
        return self.is_outdated and self.is_waiting

    def follow(self) -> None:
        """Follow the ledger from now on, so that a pass looks at changed nodes alone."""
        self._ledger.listeners.append(self._node_changed)

    def put(self, gang: Gang) -> None:
        """Add the gang, or replace what it was before."""
        if gang == self._gangs.get(gang.uid):
            return
        self.remove(gang.uid)
        self._gangs[gang.uid] = gang
        if gang.state != "started":
            insort(self._line, gang, key=_rank)
        elif gang.unbound:
            self._started[gang.uid] = gang
        self.touch()

    def remove(self, uid: str) -> None:
        gang = self._gangs.pop(uid, None)
        if gang is None:
            return
        if gang.state != "started":
            place = bisect_left(self._line, gang.rank, key=_rank)
            del self._line[self._line.index(gang, place)]
        self._started.pop(uid, None)
        self.touch()

    def touch(self) -> None:
        """Capacity or time has changed: those who wait may be decided differently."""
        self.is_outdated = True

    def catch_up(self, limit: int) -> bool:
        """Take in changed nodes, at most `limit` of them; whether that was all. A pass takes in all that are left."""
        gangs = (*self._started.values(), *self._line)
        return self._index.catch_up({gang.shape.digest: gang.shape for gang in gangs}.values(), limit)

    def run_pass(
        self, now: datetime, starvation_timeout_s: float, per_namespace: int, limit: int = ADMISSIONS_PER_PASS
    ) -> AdmissionResult:
        """One admission pass over all gangs.

        Started gangs get capacity for their workers without a node; then all other gangs follow by priority and age. A
        gang that does not fit lets the gangs behind it pass until its patience ends. Then the resources that it lacks
        are reserved on the nodes that it could use, for at most `per_namespace` jobs of a namespace at a time.
        """
        capacity = PassCapacity(self._ledger, self._index)
        try:
            self._reserve_for_started(capacity)
            admission_pass = _AdmissionPass(capacity, now, starvation_timeout_s, per_namespace)
            decisions: dict[str, AdmissionDecision] = {}
            for gang in self._line:
                decisions[gang.uid] = admission_pass.judge(gang)
                limit -= decisions[gang.uid].admitted
                if not limit:
                    break
            result = AdmissionResult(
                decisions=decisions,
                demand=capacity.assigned,
                held_nodes=capacity.held_nodes,
                is_complete=len(decisions) == len(self._line),
                patience_ends=admission_pass.patience_ends,
            )
        finally:
            capacity.end()
        admitted = [gang for gang in self._line if decisions.get(gang.uid) is ADMITTED]
        self._start(admitted)
        # What is admitted comes first from now on, and may be guessed at other nodes then.
        self.is_outdated = bool(admitted) or not result.is_complete
        return result

    def start_all(self) -> list[str]:
        """Admit all that wait if they fit wherever the workers without a node go, and return their uids; else nobody.

        That spares the guess where these go, which no decision hangs on while there is room for all.
        """
        claims: Counter[bytes] = Counter()
        shapes: dict[bytes, PodRequirements] = {}
        for gang in (*self._started.values(), *self._line):
            shape = shapes.setdefault(gang.shape.digest, gang.shape)
            if gang.state != "started":
                taken = sum(workers * displaced(shapes[digest], shape) for digest, workers in claims.items())
                if shape.anti_affinity_keys or self._index.of(shape).open.total - taken < gang.workers:
                    return []
            claims[shape.digest] += gang.unbound if gang.state == "started" else gang.workers
        admitted = list(self._line)
        self._start(admitted)
        return [gang.uid for gang in admitted]

    def expected_demand(self) -> Mapping[str, Amounts]:
        """The requests of started workers that have no node yet, by the nodes where they may go."""
        capacity = PassCapacity(self._ledger, self._index)
        try:
            self._reserve_for_started(capacity)
            return capacity.assigned
        finally:
            capacity.end()

    def _reserve_for_started(self, capacity: PassCapacity) -> None:
        """The guess at their nodes does not depend on the order in which the gangs are listed."""
        alike: dict[bytes, list[Gang]] = {}
        for gang in self._started.values():
            alike.setdefault(gang.shape.digest, []).append(gang)
        for _, gangs in sorted(alike.items()):
            shape = gangs[0].shape
            if not shape.anti_affinity_keys:
                capacity.reserve(shape, sum(gang.unbound for gang in gangs), ())
                continue
            for gang in sorted(gangs, key=lambda gang: gang.key):
                capacity.reserve(shape, gang.unbound, gang.nodes)

    def _start(self, gangs: Collection[Gang]) -> None:
        for gang in gangs:
            self._gangs[gang.uid] = structs.replace(gang, state="started", unbound=gang.workers)
            self._started[gang.uid] = self._gangs[gang.uid]
        if gangs:
            self._line = [gang for gang in self._line if gang.uid not in self._started]

    def _node_changed(self, name: str) -> None:
        """The expected demand of the gangs themselves does not count."""
        if self._ledger.version != self._version:
            self._version = self._ledger.version
            self._index.changed(name)
            self.touch()


def _rank(gang: Gang) -> tuple[int, bool, str, Key]:
    return gang.rank


class _AdmissionPass:
    """Walks the queue once."""

    def __init__(self, capacity: PassCapacity, now: datetime, starvation_timeout_s: float, per_namespace: int) -> None:
        self._capacity = capacity
        self._patience = timedelta(seconds=starvation_timeout_s)
        self._patient_since = now - self._patience
        self._first_patient: datetime | None = None
        self._per_namespace = per_namespace
        self._reservations: Counter[str] = Counter()
        self._position = 0
        self._blocking_gang: Gang | None = None
        self._obstacles: dict[bytes, PermanentObstacle | None] = {}
        self._far_reasons: dict[tuple[bytes, int], tuple[str, bool]] = {}

    def judge(self, gang: Gang) -> AdmissionDecision:
        if self._capacity.assign_all(gang.shape, gang.workers):
            return ADMITTED
        self._position += 1
        message, impossible = self._reason(gang)
        if self._holds_nodes(gang):
            self._reserve(gang)
        return AdmissionDecision(admitted=False, message=message, position=self._position, impossible=impossible)

    def _reserve(self, gang: Gang) -> None:
        shape = gang.shape
        if gang.state == "keeping" and self._is_patient(gang):
            reserved = frozenset(shape.requests)  # what the gang had before the restart
        else:
            self._reservations[gang.key.namespace] += 1
            reserved = self._capacity.scarce(shape, gang.workers)
        self._capacity.hold(shape, reserved)
        self._blocking_gang = gang

    def _reason(self, gang: Gang) -> tuple[str, bool]:
        """What the gang waits for, and whether it would do so on empty nodes too.

        Far back in the line that is one text for all gangs that are alike.
        """
        if self._position <= DETAILED_MESSAGES:
            return self._make_reason(gang)
        alike = (gang.shape.digest, gang.workers)
        if alike not in self._far_reasons:
            self._far_reasons[alike] = self._make_reason(gang)
        return self._far_reasons[alike]

    def _make_reason(self, gang: Gang) -> tuple[str, bool]:
        candidates, found = self._capacity.candidates(gang.shape), self._obstacle(gang.shape)
        message = found.message if found is not None else self._shortage(gang)
        if candidates.large_enough and candidates.max_workers_ignoring_taints < gang.workers:
            return message + exceeds_cluster_text(candidates), True
        return message, found is not None and found.impossible

    def _holds_nodes(self, gang: Gang) -> bool:
        """Whether to reserve capacity for the gang. A gang that can never fit would hold it in vain, for ever."""
        is_patient = self._is_patient(gang)
        # A gang that was running may get back the node that it lost: that is worth some waiting.
        if is_patient or self._reservations[gang.key.namespace] >= self._per_namespace:
            return is_patient and gang.state == "keeping"
        return gang.workers <= self._capacity.candidates(gang.shape).max_workers

    @property
    def patience_ends(self) -> datetime | None:
        """When the first patience of a gang that is refused ends."""
        return self._first_patient + self._patience if self._first_patient is not None else None

    def _is_patient(self, gang: Gang) -> bool:
        since = gang.waits_since
        if since is None:
            return True
        if since < self._patient_since:
            return False
        if self._first_patient is None or since < self._first_patient:
            self._first_patient = since
        return True

    def _obstacle(self, shape: PodRequirements) -> PermanentObstacle | None:
        """Computed once for all gangs of the same shape."""
        if shape.digest not in self._obstacles:
            self._obstacles[shape.digest] = obstacle(self._capacity.candidates(shape), self._capacity.node_count)
        return self._obstacles[shape.digest]

    def _shortage(self, gang: Gang) -> str:
        if self._position > DETAILED_MESSAGES:
            return f"{demand_text(gang.shape, gang.workers)}; at least {DETAILED_MESSAGES} jobs are in line before it"
        candidates, ahead = self._capacity.candidates(gang.shape), self._blocking_gang
        if ahead is not None and candidates.fitting >= gang.workers:
            return f"{ordinal(self._position)} in line, behind {ahead.key} (priority {ahead.priority})"
        return shortage(candidates, gang.workers)
