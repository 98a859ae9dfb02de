"""What a reconcile says about when to look at its object again."""

from typing import TypeAlias

from msgspec import Struct

from holdfast.errors import HoldfastError


class Done(Struct, frozen=True):
    """Nothing to do until something changes."""


class RequeueAfter(Struct, frozen=True):
    """Look again after this long even if nothing changes."""

    seconds: float


Result: TypeAlias = Done | RequeueAfter


class TerminalError(HoldfastError):
    """What no retry can mend: it goes to the object's status and an event, and waits for the object to change."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
