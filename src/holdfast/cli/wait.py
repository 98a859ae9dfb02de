"""`holdfast wait`: waits until a condition is met, a field has a value, or an object is deleted."""

import asyncio
from contextlib import aclosing

import typer

from holdfast.api.meta import Key
from holdfast.cli.delete import until_gone
from holdfast.cli.resource_args import parse_named_resources
from holdfast.cli.session import Session, by_name, follow
from holdfast.cli.wait_conditions import (
    WaitCondition,
    parse_condition,
    parse_seconds,
    status_summary,
    unreachable_reason,
)
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, Change, Listing
from holdfast.cluster.resources import KnownKind
from holdfast.errors import HoldfastError


class WaitFailed(HoldfastError):
    """The condition was not met in time, or can't be met any more."""


async def wait_for_objects(session: Session, what: list[str], goal: str, timeout: str) -> int:
    wanted, condition, time_s = parse_named_resources(what), parse_condition(goal), parse_seconds(timeout)
    deadline_s = asyncio.get_running_loop().time() + time_s
    for known, name in [(each.known, name) for each in wanted for name in each.names]:
        try:
            await _wait(session, known, session.key(known, name), condition, deadline_s)
        except TimeoutError as error:
            description = condition.description if condition else "its deletion"
            raise WaitFailed(
                f"{known.title}/{name}: timed out after {timeout} waiting for {description}{error}"
            ) from None
        typer.echo(f"{known.title}/{name} condition met")
    return 0


async def _wait(session: Session, known: KnownKind, key: Key, goal: WaitCondition | None, deadline_s: float) -> None:
    # Check once before the timeout starts, so that --timeout=0 checks once.
    try:
        last = (await session.get(known, key)).document
    except NotFound:
        if goal is None:
            return
        raise
    if goal is not None and _is_reached(known, last, goal):
        return
    seen = _Seen(last)
    try:
        async with asyncio.timeout_at(deadline_s):
            if goal is None:
                await until_gone(session, known, key, last["metadata"]["uid"])
            else:
                await _until_reached(session, known, key, goal, seen)
    except TimeoutError:
        raise TimeoutError(f"; it is {now}" if (now := status_summary(seen.document)) else "") from None


async def _until_reached(session: Session, known: KnownKind, key: Key, goal: WaitCondition, seen: "_Seen") -> None:
    steps = follow(session.cluster, known.resource, namespace=key.namespace, fields=by_name(key.name))
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, Listing):
                found, gone = next(iter(step.items), None), not step.items
            else:
                found, gone = step.object, step.change is Change.DELETED
            if gone:
                raise WaitFailed(f"{known.title}/{key.name} was deleted while it was waited for")
            if found is not None:
                seen.document = found.document
                if _is_reached(known, found.document, goal):
                    return


class _Seen:
    """The last received version of the object, for the message of a timeout."""

    def __init__(self, document: JSON) -> None:
        self.document = document


def _is_reached(known: KnownKind, document: JSON, goal: WaitCondition) -> bool:
    if goal.is_met(document):
        return True
    if reason := unreachable_reason(known.resource.kind, document, goal):
        name = document["metadata"]["name"]
        raise WaitFailed(f"{known.title}/{name} will not reach {goal.description}: {reason}")
    return False
