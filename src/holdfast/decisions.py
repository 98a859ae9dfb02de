"""What the decisions of every kind share: the facts that the operator adds, a state with its reason, common actions.

Pure: no I/O, no clock.
"""

from datetime import datetime
from typing import Protocol

from msgspec import Struct

from holdfast.api.meta import Condition
from holdfast.pods.failure import WorkerFailure

# The length limit of a message in the CRD schemas.
MAX_MESSAGE = 32768


class Snapshot(Struct, frozen=True, kw_only=True):
    """One object and what belongs to it at one moment, as the kind's `decide` reads it."""

    blocked_by: str = ""
    """Why a child can't be made now, in a sentence; the obstacle may be temporary."""
    rejected_reason: str = ""
    """Why the children can never be made as the spec requests them."""

    @property
    def finished(self) -> bool:
        """A finished object stays finished, whatever becomes of its children."""
        raise NotImplementedError


class StateReason(Struct, frozen=True):
    """The state or phase of an object, a one-word reason, and a message for people."""

    state: str
    reason: str
    message: str


class CleanUp(Struct, frozen=True):
    """The object has ended: none of its pods may keep running."""


class Finish(Struct, frozen=True):
    """The object ends now. Status has the end first: the next reconcile stops what still runs."""

    finding: StateReason


class Wait(Struct, frozen=True):
    """Make nothing yet. Without a finding the status does not change either."""

    finding: StateReason | None


class GiveUp(Struct, frozen=True):
    """No further attempt follows a failure."""

    reason: str
    message: str


class Retry(Struct, frozen=True):
    """Another attempt follows a failure."""

    failure: WorkerFailure
    at: datetime | None
    """When the next attempt may start; None means at once."""
    consecutive: int = 0
    """Quick failures in a row, for a kind whose backoff depends on them."""


class HasConditions(Protocol):
    @property
    def conditions(self) -> tuple[Condition, ...]: ...


def reason_of(status: HasConditions) -> str:
    """The one-word reason of the state, taken from Running, the condition that always exists."""
    return next((each.reason for each in status.conditions if each.type == "Running"), "")
