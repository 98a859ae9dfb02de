"""Faults of the double, one for each of the next calls of a method."""

from collections import defaultdict, deque
from typing import Literal

from msgspec import Struct

from tests.providers.compute_engine.refusals import OperationFailure, Refused, too_fast, unavailable

Loss = Literal["", "timeout", "reset"]


class Fault(Struct, frozen=True, kw_only=True):
    """executed: what the call asks for is done all the same. loss: how the answer is lost; else `answer` is given."""

    executed: bool = False
    loss: Loss = ""
    answer: Refused | None = None


def refusing(answer: Refused) -> Fault:
    """The call is answered so, and nothing is done."""
    return Fault(answer=answer)


def unavailable_though_done() -> Fault:
    return Fault(executed=True, answer=unavailable())


def lost(*, executed: bool, loss: Loss = "reset") -> Fault:
    return Fault(executed=executed, loss=loss)


def rate_limited(retry_after_s: int | None = None) -> Fault:
    return Fault(answer=too_fast(retry_after_s))


class Faults:
    def __init__(self) -> None:
        self._calls: dict[str, deque[Fault]] = defaultdict(deque)
        self._operations: dict[str, deque[OperationFailure]] = defaultdict(deque)

    def add(self, method: str, *faults: Fault, times: int = 1) -> None:
        """method: as in instances.insert; "token" is the address for tokens."""
        self._calls[method].extend(faults * times)

    def fail_operation(self, kind: str, failure: OperationFailure, times: int = 1) -> None:
        """kind: insert or delete. The request is accepted, and its operation fails."""
        self._operations[kind].extend((failure,) * times)

    def next_for_call(self, method: str) -> Fault | None:
        waiting = self._calls[method]
        return waiting.popleft() if waiting else None

    def next_for_operation(self, kind: str) -> OperationFailure | None:
        waiting = self._operations[kind]
        return waiting.popleft() if waiting else None
