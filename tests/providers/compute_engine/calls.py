"""Calls of the double: how they are recorded, limited and lost."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec import Struct


class ConnectionLost(Exception):
    """The answer is not given. is_silent: the connection stays open."""

    def __init__(self, *, is_silent: bool) -> None:
        super().__init__()
        self.is_silent = is_silent


class RecordedCall(Struct, kw_only=True):
    """One call, in the order of their arrival; `status` is 0 until it is answered, or for ever."""

    number: int
    at_s: float
    method: str
    project: str = ""
    zone: str = ""
    target: str = ""
    """The machine, machine type or operation of the path; of an insert the machine's name."""
    request_id: str = ""
    account: str = ""
    status: int = 0


Watch: TypeAlias = Callable[[RecordedCall], Awaitable[None]]


class RateLimit(Struct, frozen=True):
    calls: int
    per_s: float
    retry_after_s: int | None = None
