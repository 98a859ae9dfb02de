"""Logs of spot machines: when one more could be had, and when one was taken back.

A line is `milliseconds,add|remove,node`, as fleets of spot machines have been recorded: 480000,add,node1
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.errors import HoldfastError

Change: TypeAlias = Literal["add", "remove"]
LONGEST_QUOTE = 60


class InvalidTrace(HoldfastError):
    """A line of the log is not one."""


class TraceEvent(Struct, frozen=True):
    at_s: float
    """Since the log begins."""
    change: Change
    node: str


def parse_trace(text: str) -> tuple[TraceEvent, ...]:
    """The events in the order of time. A node that is removed before it is added was there from the beginning."""
    events = sorted(_events(text), key=lambda event: event.at_s)
    known: set[str] = set()
    earlier: list[TraceEvent] = []
    for event in events:
        if event.change == "remove" and event.node not in known:
            earlier.append(TraceEvent(0.0, "add", event.node))
        known.add(event.node)
    return (*earlier, *events)


def _events(text: str) -> Iterator[TraceEvent]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match [field.strip() for field in line.split(",")]:
            case [time, ("add" | "remove") as change, node] if time.isascii() and time.isdigit() and node:
                yield TraceEvent(int(time) / 1000, change, node)
            case _:
                raise InvalidTrace(
                    f"line {number} is {line[:LONGEST_QUOTE]!r}: write milliseconds,add,node or "
                    "milliseconds,remove,node, such as 480000,add,node1"
                )


class Fleet:
    """The nodes of a log that are there now, and the machine that stands for each."""

    def __init__(self, machines: Iterable[str] = ()) -> None:
        """`machines` are there before the log begins: each stands for the next node that is added."""
        self._machines: dict[str, str] = {}  # node → machine; "" while the node can be had
        self._waiting = list(machines)

    @property
    def machines(self) -> Mapping[str, str]:
        """The machines by the node that they stand for."""
        return {node: machine for node, machine in self._machines.items() if machine}

    def apply(self, event: TraceEvent) -> str:
        """Carry out one event; the machine that is taken back by it, or ""."""
        if event.change == "remove":
            return self._machines.pop(event.node, "")
        if event.node not in self._machines:
            self._machines[event.node] = self._waiting.pop(0) if self._waiting else ""
        return ""

    def take(self, machine: str) -> bool:
        """Have a new machine stand for the node that can be had for longest; False when there is none."""
        if machine in self._machines.values():
            return True
        node = next((node for node, taken in self._machines.items() if not taken), None)
        if node is not None:
            self._machines[node] = machine
        return node is not None

    def release(self, machine: str) -> None:
        """The machine is gone: another may stand for its node, if the node is there still."""
        self._waiting = [each for each in self._waiting if each != machine]
        for node, taken in self._machines.items():
            if taken == machine:
                self._machines[node] = ""
