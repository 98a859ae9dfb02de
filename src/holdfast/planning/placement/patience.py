"""Who has waited too long gets a machine kept: those behind it in the line no longer pass it there.

Without that, a workload that needs all GPUs of a machine would wait for ever while small ones come and go.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from holdfast.planning.ledger import Ledger
from holdfast.planning.placement.index import NodeIndex
from holdfast.planning.placement.line import QueuedRequest
from holdfast.planning.placement.request import gpus_in


class StarvationGuard:
    """Kept is only from those behind: each look goes along the line anew, and ends with nothing kept."""

    def __init__(self, ledger: Ledger, patience_s: float) -> None:
        self._ledger = ledger
        self._patience_s = patience_s
        self._kept: dict[str, str] = {}
        self._now: dict[str, str] = {}

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        self._now = {}
        try:
            yield
        finally:
            for uid in self._now:
                self._ledger.release(_place(uid))
            self._kept = self._now

    def reserve_if_starved(self, waiter: QueuedRequest, index: NodeIndex, now_s: float) -> None:
        """It does not fit. Once its patience is over, a machine is kept from all who come after it in this look."""
        uid, asked = waiter.request.uid, waiter.request.shape.requests
        if now_s - waiter.since_s < self._patience_s:
            return
        machine = self._machine(waiter, index)
        if machine is not None:
            self._now[uid] = machine
            self._ledger.reserve(_place(uid), machine, asked, inf)

    def _machine(self, waiter: QueuedRequest, index: NodeIndex) -> str | None:
        """The same as before, so that it empties; else the one that lacks the least."""
        request = waiter.request
        if index.schedulable.most() < request.gpus:
            return None

        def will_do(name: str) -> bool:
            return name in index.schedulable and index.is_large_enough(request, name)

        before = self._kept.get(request.uid)
        if before is not None and will_do(before):
            return before
        fitting = filter(will_do, self._ledger.machines)
        return min(fitting, key=lambda name: (-gpus_in(self._ledger.available(name)), name), default=None)


def _place(uid: str) -> str:
    return f"kept for {uid}"
