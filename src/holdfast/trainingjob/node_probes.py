"""Connections to nodes of workers: whether anything answers there when workers and Lease are silent."""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from holdfast.runtime.reachability import Address, Answer, Connect, is_address
from holdfast.trainingjob.decide.node_death import AddressHistory, observe_answer

MOST_AT_ONCE = 32
# A node that answered is asked again after so long, so that a new firewall is noticed before it matters.
ASK_AGAIN_S = 600.0
LATE_ASK_AGAIN_S = 2.0
# One that did, did not answer since, and has workers that report: it is back.
BACK_ASK_AGAIN_S = 15.0
FORGOTTEN_S = 3600.0
MOST_KEPT = 20_000

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NodeProbes:
    """Nothing is asked without `connect`. Answers come later: a reconcile waits for none."""

    def __init__(self, connect: Connect | None, clock: Callable[[], float]) -> None:
        self._connect = connect
        self._clock = clock
        self._asked: asyncio.Queue[Address] = asyncio.Queue()
        self._under_way: set[Address] = set()
        self._histories: dict[Address, AddressHistory] = {}

    def of(self, address: Address) -> AddressHistory | None:
        return self._histories.get(address)

    def know(self, addresses: Iterable[Address]) -> None:
        """Try them now and then, so that it is known whether they answer before it matters."""
        for address in addresses:
            last = self._histories.get(address)
            is_back = last is not None and last.accepted_s is not None and last.answer != "accepted"
            self.ask((address,), every_s=BACK_ASK_AGAIN_S if is_back else ASK_AGAIN_S)

    def ask(self, addresses: Iterable[Address], *, every_s: float) -> None:
        """Try those that were not tried within `every_s`."""
        for address in addresses:
            last = self._histories.get(address)
            is_due = last is None or self._clock() - last.told_s >= every_s
            if self._connect is not None and is_due and address not in self._under_way and is_address(address[0]):
                self._under_way.add(address)
                self._asked.put_nowait(address)

    async def run(self) -> None:
        slots = asyncio.Semaphore(MOST_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                address = await self._asked.get()
                await slots.acquire()
                task = group.create_task(self._try(address))
                task.add_done_callback(lambda _: slots.release())

    async def _try(self, address: Address) -> None:
        assert self._connect is not None, "nothing is asked without it"
        asked_s = self._clock()
        answer: Answer = "failed"
        try:
            answer = await self._connect(address)
        except Exception:  # a node may tell any port, and nothing that one node tells may end the operator
            log.exception("can't try to connect", address=address)
        finally:
            self._under_way.discard(address)
        told_s = self._clock()
        self._histories[address] = observe_answer(self._histories.get(address), answer, asked_s, told_s)
        if len(self._histories) > MOST_KEPT:
            self._histories = {
                each: history for each, history in self._histories.items() if told_s - history.told_s < FORGOTTEN_S
            }
