"""The reference model: what any cluster must answer, in a page of pure functions."""

from collections.abc import Sequence
from functools import singledispatch

from msgspec import Struct
from msgspec.structs import replace

from .operations import (
    Create,
    Delete,
    Gadget,
    Guard,
    Operation,
    Outcome,
    Patch,
    PatchStatus,
    Recording,
    Replace,
    Select,
    Step,
)

LARGEST = 100


class World(Struct, frozen=True):
    gadgets: dict[str, Gadget] = {}
    born: dict[str, int] = {}
    history: tuple[Step, ...] = ()


class Refused(Exception):
    """Its text is the class of the error that a cluster raises."""


def predict(operations: Sequence[Operation]) -> Recording:
    world = World()
    outcomes: list[Outcome] = []
    marks: list[int] = []
    for operation in operations:
        if isinstance(operation, Select):
            marks.append(len(world.history))
        try:
            world, outcome = done(operation, world)
        except Refused as refused:
            outcome = Outcome(error=str(refused))
        outcomes.append(outcome)
    return Recording(tuple(outcomes), world.history, tuple(world.history[mark:] for mark in marks))


@singledispatch
def done(operation: Operation, world: World) -> tuple[World, Outcome]:
    """The world after the operation, and the answer; raises `Refused`."""
    raise TypeError(operation)


@done.register
def _(operation: Create, world: World) -> tuple[World, Outcome]:
    checked(operation.size)
    if operation.name in world.gadgets:
        raise Refused("AlreadyExists")
    incarnation = world.born.get(operation.name, 0) + 1
    made = Gadget(incarnation, operation.size, operation.labels, operation.finalizers)
    world = replace(world, born={**world.born, operation.name: incarnation})
    return noted(world, "ADDED", operation.name, made), Outcome(gadget=made)


@done.register
def _(operation: Patch, world: World) -> tuple[World, Outcome]:
    old = looked_up(operation.name, operation.guard, world, wrong_uid="Invalid")
    merged = {**old.labels, **operation.labels}
    asked = replace(
        old,
        size=old.size if operation.size is None else operation.size,
        labels={label: value for label, value in merged.items() if value is not None},
        finalizers=old.finalizers if operation.finalizers is None else operation.finalizers,
    )
    return updated(operation.name, old, asked, world)


@done.register
def _(operation: Replace, world: World) -> tuple[World, Outcome]:
    old = looked_up(operation.name, operation.guard, world, wrong_uid="Conflict")
    if operation.guard in (Guard.NONE, Guard.UID):
        raise Refused("Invalid")  # a custom resource is replaced only with its version
    asked = replace(old, size=operation.size, labels=operation.labels, finalizers=operation.finalizers)
    return updated(operation.name, old, asked, world)


@done.register
def _(operation: PatchStatus, world: World) -> tuple[World, Outcome]:
    guard = operation.guard if operation.guard in (Guard.CURRENT, Guard.STALE) else Guard.NONE
    old = looked_up(operation.name, guard, world, wrong_uid="Conflict")
    return stored(operation.name, old, replace(old, phase=operation.phase), world)


@done.register
def _(operation: Delete, world: World) -> tuple[World, Outcome]:
    old = looked_up(operation.name, operation.guard, world, wrong_uid="Conflict")
    if not old.finalizers:
        return noted(world, "DELETED", operation.name, old), Outcome()
    marked = old if old.deleting else replace(old, deleting=True, generation=old.generation + 1)
    return stored(operation.name, old, marked, world)[0], Outcome()


@done.register
def _(operation: Select, world: World) -> tuple[World, Outcome]:
    names = (name for name, gadget in world.gadgets.items() if operation.label in gadget.labels)
    return world, Outcome(names=tuple(sorted(names)))


def looked_up(name: str, guard: Guard, world: World, *, wrong_uid: str) -> Gadget:
    if name not in world.gadgets:
        raise Refused("NotFound")
    if guard is Guard.STALE:
        raise Refused("Conflict")
    if guard is Guard.FOREIGN:
        raise Refused(wrong_uid)
    return world.gadgets[name]


def checked(size: int) -> None:
    if size > LARGEST:
        raise Refused("Invalid")


def updated(name: str, old: Gadget, asked: Gadget, world: World) -> tuple[World, Outcome]:
    """An update of all but the status."""
    checked(asked.size)
    if old.deleting and not set(asked.finalizers) <= set(old.finalizers):
        raise Refused("Invalid")
    new = replace(asked, generation=old.generation + (asked.size != old.size))
    if new.deleting and not new.finalizers:
        # The last state that was stored is what a watch shows: the emptying update itself never is.
        return noted(world, "DELETED", name, old), Outcome(gadget=new)
    return stored(name, old, new, world)


def stored(name: str, old: Gadget, new: Gadget, world: World) -> tuple[World, Outcome]:
    return (world if new == old else noted(world, "MODIFIED", name, new)), Outcome(gadget=new)


def noted(world: World, change: str, name: str, gadget: Gadget) -> World:
    gadgets = {**world.gadgets, name: gadget}
    if change == "DELETED":
        del gadgets[name]
    return replace(world, gadgets=gadgets, history=(*world.history, Step(change, name, gadget)))
