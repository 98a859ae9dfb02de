"""The workers of one job, who start together, and what is decided about them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.scheduling.candidates import PassCapacity
from holdfast.scheduling.constraints import PodRequirements
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.messages import PermanentObstacle, beyond, demand_text, obstacle, ordinal, shortage
from holdfast.scheduling.resources import Amounts
from holdfast.times import parse_time

# started: may start, or has; those without a machine yet get theirs first.
# waiting: for its first start, or for another one after it was stopped.
# keeping: it ran and is being restarted; who comes after it does not get its room.
GangState: TypeAlias = Literal["started", "waiting", "keeping"]


class Gang(Struct, frozen=True, kw_only=True):
    key: Key
    uid: str
    workers: int
    shape: PodRequirements
    state: GangState = "waiting"
    priority: int = 0
    created_at: str = ""
    """When the job was made: who came first goes first."""
    restarting_since: str = ""
    """Since when a keeping one is without its workers."""
    unbound: int = 0
    """How many of a started one's workers have no machine yet."""
    machines: tuple[str, ...] = ()
    """Where a started one's other workers are."""

    @property
    def rank(self) -> tuple[int, bool, str, Key]:
        """Who restarts goes before those of its importance who wait: its room is not theirs."""
        return -self.priority, self.state != "keeping", self.created_at, self.key

    def waited_s(self, now: datetime) -> float:
        began = self.restarting_since or self.created_at
        return (now - parse_time(began)).total_seconds() if began else 0.0


class AdmissionDecision(Struct, frozen=True, kw_only=True):
    admitted: bool
    message: str = ""
    """What it waits for, and what would change it."""
    position: int = 0
    """Its place among those who wait, from 1; 0 for who does not wait in line."""
    impossible: bool = False
    """It would not fit if every machine were empty."""


ADMITTED = AdmissionDecision(admitted=True)


# One look at everyone who waits, in order: who may start, and what the others wait for.

# How many are told in numbers what is missing. The numbers change all the time, and each change is a write for each
# job that is told: further back in a long line they would cost more than they say.
DETAILED_MESSAGES = 10


class AdmissionResult(Struct, frozen=True):
    """What one look comes to."""

    verdicts: dict[str, AdmissionDecision]
    """For every gang, by its uid."""
    taken: Mapping[str, Amounts]
    """What those who may start and have no machine yet are expected to take, by machine."""
    kept: Collection[str]
    """Machines that are kept for gangs that have waited long."""


def admit(
    gangs: Iterable[Gang], ledger: Ledger, now: datetime, patience_s: float = 600.0
) -> dict[str, AdmissionDecision]:
    """The verdicts alone."""
    return run_admission(gangs, ledger, now, patience_s).verdicts


def run_admission(
    gangs: Iterable[Gang], ledger: Ledger, now: datetime, patience_s: float = 600.0, per_namespace: int = 1
) -> AdmissionResult:
    """Looks at everyone.

    Those who started get room for the workers that have none; then all others by importance and age. One that does not
    fit lets those behind it pass until its patience ends; then what it lacks is reserved for it on the machines that it
    could use, for at most `per_namespace` jobs of a namespace at a time.
    """
    everyone = list(gangs)
    room, line = PassCapacity(ledger), []
    for gang in everyone:
        if gang.state == "started":
            room.reserve(gang.shape, gang.unbound, gang.machines)
        else:
            line.append(gang)
    look = _AdmissionPass(room, now, patience_s, per_namespace)
    judged = {gang.uid: look.judge(gang) for gang in sorted(line, key=lambda gang: gang.rank)}
    verdicts = {gang.uid: judged.get(gang.uid, ADMITTED) for gang in everyone}
    return AdmissionResult(verdicts, room.given, room.closed)


class _AdmissionPass:
    """Goes along the line once."""

    def __init__(self, room: PassCapacity, now: datetime, patience_s: float, per_namespace: int) -> None:
        self._room = room
        self._now = now
        self._patience_s = patience_s
        self._per_namespace = per_namespace
        self._reservations: Counter[str] = Counter()
        self._position = 0
        self._insisting: Gang | None = None
        self._obstacles: dict[bytes, PermanentObstacle | None] = {}

    def judge(self, gang: Gang) -> AdmissionDecision:
        if self._room.put(gang.shape, gang.workers):
            return ADMITTED
        self._position += 1
        verdict = self._refusal(gang)
        if self._holds_nodes(gang):
            self._reserve(gang)
        return verdict

    def _reserve(self, gang: Gang) -> None:
        shape, namespace = gang.shape, gang.key.namespace
        if gang.state == "keeping" and gang.waited_s(self._now) <= self._patience_s:
            reserved = frozenset(shape.requests)  # what it had before it restarts
        elif self._reservations[namespace] < self._per_namespace:
            self._reservations[namespace] += 1
            reserved = self._room.scarce(shape, gang.workers)
        else:
            return
        self._room.hold(shape, reserved)
        self._insisting = gang

    def _refusal(self, gang: Gang) -> AdmissionDecision:
        spots, found = self._room.spots(gang.shape), self._obstacle(gang.shape)
        message = found.message if found is not None else self._shortage(gang)
        impossible = found is not None and found.impossible
        if spots.suiting and spots.max_workers_ignoring_taints < gang.workers:
            message, impossible = message + beyond(spots), True
        return AdmissionDecision(admitted=False, message=message, position=self._position, impossible=impossible)

    def _holds_nodes(self, gang: Gang) -> bool:
        """Whether room is kept for it. For who would not fit even then, it would be kept in vain and for ever."""
        fits_some_day = gang.workers <= self._room.spots(gang.shape).most
        is_patient = gang.waited_s(self._now) <= self._patience_s
        # Who was running may get back the machine that it lost: that is worth some waiting.
        return fits_some_day or is_patient if gang.state == "keeping" else fits_some_day and not is_patient

    def _obstacle(self, shape: PodRequirements) -> PermanentObstacle | None:
        """Found once for gangs that are alike."""
        if shape.digest not in self._obstacles:
            self._obstacles[shape.digest] = obstacle(self._room.spots(shape), len(self._room.machines))
        return self._obstacles[shape.digest]

    def _shortage(self, gang: Gang) -> str:
        if self._position > DETAILED_MESSAGES:
            return f"{demand_text(gang.shape, gang.workers)}; at least {DETAILED_MESSAGES} jobs are in line before it"
        spots, ahead = self._room.spots(gang.shape), self._insisting
        if ahead is not None and spots.capacity(spots.counts) >= gang.workers:
            return f"{ordinal(self._position)} in line, behind {ahead.key} (priority {ahead.priority})"
        return shortage(spots, gang.workers, self._room)
