"""What can be done to gadgets, as data; and what came of it, without the names and numbers that differ every time.

A list of operations makes one `Recording` by the model, and one by each engine: equal or there is a fault.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import TypeAlias

from msgspec import Struct


class Guard(StrEnum):
    """What a write says about the object that it is meant for."""

    NONE = "none"
    CURRENT = "current version"
    STALE = "stale version"
    UID = "its uid"
    FOREIGN = "another uid"


class Create(Struct, frozen=True, tag=True):
    name: str
    size: int
    labels: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()


class Patch(Struct, frozen=True, tag=True):
    """Merged: None in labels takes a label off, None for the rest leaves it alone."""

    name: str
    guard: Guard = Guard.NONE
    size: int | None = None
    labels: dict[str, str | None] = {}
    finalizers: tuple[str, ...] | None = None


class PatchStatus(Struct, frozen=True, tag=True):
    """Tries to change the size on the way, which must be of no effect."""

    name: str
    phase: str
    guard: Guard = Guard.NONE
    size: int = 9


class Replace(Struct, frozen=True, tag=True):
    name: str
    size: int
    guard: Guard = Guard.CURRENT
    labels: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()


class Delete(Struct, frozen=True, tag=True):
    name: str
    guard: Guard = Guard.NONE


class Select(Struct, frozen=True, tag=True):
    """List what has the label; a watch is resumed from this moment at the end."""

    label: str


Operation: TypeAlias = Create | Patch | PatchStatus | Replace | Delete | Select


class Gadget(Struct, frozen=True):
    """A gadget as far as the model knows it; its incarnation counts the objects that had its name."""

    incarnation: int
    size: int
    labels: dict[str, str]
    finalizers: tuple[str, ...]
    phase: str = ""
    generation: int = 1
    deleting: bool = False


class Step(Struct, frozen=True):
    """One event of a watch."""

    change: str
    name: str
    gadget: Gadget


class Outcome(Struct, frozen=True):
    """An answer: the error's class or what was returned."""

    error: str = ""
    gadget: Gadget | None = None
    names: tuple[str, ...] = ()


class Recording(Struct, frozen=True):
    """`resumed` has, for every Select, what a watch from that moment showed."""

    outcomes: tuple[Outcome, ...]
    history: tuple[Step, ...]
    resumed: tuple[tuple[Step, ...], ...]


def difference(operations: Sequence[Operation], one: Recording, other: Recording) -> str:
    """Where two recordings of the same operations part, for people; nothing if they don't."""
    for number, (first, second) in enumerate(zip(one.outcomes, other.outcomes, strict=True)):
        if first != second:
            told = "\n  ".join(str(operation) for operation in operations[: number + 1])
            return f"after\n  {told}\nthe answer is\n  {first}\nand not\n  {second}"
    histories = zip((one.history, *one.resumed), (other.history, *other.resumed), strict=True)
    for seen, expected in histories:
        for first_step, second_step in zip_longest(seen, expected):
            if first_step != second_step:
                told = "\n  ".join(str(operation) for operation in operations)
                return f"after\n  {told}\nthe watch shows\n  {first_step}\nand not\n  {second_step}"
    return ""
