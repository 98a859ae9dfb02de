"""Gang admission: the workers of a job start together, and each pass decides which gangs may start."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.scheduling.candidates import PassCapacity
from holdfast.scheduling.constraints import PodRequirements
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


class Gang(Struct, frozen=True, kw_only=True):
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

    @property
    def rank(self) -> tuple[int, bool, str, Key]:
        """The queue order. A restarting gang goes before waiting gangs of its priority: its capacity is not theirs."""
        return -self.priority, self.state != "keeping", self.created_at, self.key

    def waited_s(self, now: datetime) -> float:
        since = self.restarting_since or self.created_at
        return (now - parse_time(since)).total_seconds() if since else 0.0


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


class AdmissionResult(Struct, frozen=True):
    """The result of one pass."""

    decisions: dict[str, AdmissionDecision]
    """The decision for every gang, by its uid."""
    demand: Mapping[str, Amounts]
    """Expected requests of admitted workers that have no node yet, by node."""
    held_nodes: Collection[str]
    """Nodes that are held for gangs that have waited long."""


def admit(
    gangs: Iterable[Gang], ledger: Ledger, now: datetime, starvation_timeout_s: float = 600.0
) -> dict[str, AdmissionDecision]:
    """Only the decisions of `run_admission`."""
    return run_admission(gangs, ledger, now, starvation_timeout_s).decisions


def run_admission(
    gangs: Iterable[Gang], ledger: Ledger, now: datetime, starvation_timeout_s: float = 600.0, per_namespace: int = 1
) -> AdmissionResult:
    """One admission pass over all gangs.

    Started gangs get capacity for their workers without a node; then all other gangs follow by priority and age. A gang
    that does not fit lets the gangs behind it pass until its patience ends. Then the resources that it lacks are
    reserved on the nodes that it could use, for at most `per_namespace` jobs of a namespace at a time.
    """
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
    return AdmissionResult(verdicts, capacity.assigned, capacity.reserved_nodes)


class _AdmissionPass:
    """Walks the queue once."""

    def __init__(self, capacity: PassCapacity, now: datetime, starvation_timeout_s: float, per_namespace: int) -> None:
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
        if gang.state == "keeping" and gang.waited_s(self._now) <= self._starvation_timeout_s:
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
        is_patient = gang.waited_s(self._now) <= self._starvation_timeout_s
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
