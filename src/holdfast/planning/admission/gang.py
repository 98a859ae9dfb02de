"""The workers of one job, who start together, and what is decided about them."""

from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.planning.admission.shape import PodRequirements
from holdfast.planning.times import parse_time

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
