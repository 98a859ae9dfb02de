"""The lines that `holdfast doctor` prints."""

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from holdfast.cluster.errors import Forbidden

T = TypeVar("T")
# As many names of nodes are in a line.
NAMED = 5


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, and something can't be used."""
    HIDDEN = "hidden"
    """The caller may not see it."""
    PROBLEM = "problem"


class Finding(Struct, frozen=True, kw_only=True):
    """`advice` says what to do, or who else may look."""

    level: Level
    text: str
    advice: str = ""


class Section(Struct, frozen=True, kw_only=True):
    title: str
    findings: tuple[Finding, ...]


def ok(text: str) -> Finding:
    return Finding(level=Level.OK, text=text)


def note(text: str, advice: str = "") -> Finding:
    return Finding(level=Level.NOTE, text=text, advice=advice)


def problem(text: str, advice: str) -> Finding:
    return Finding(level=Level.PROBLEM, text=text, advice=advice)


def hidden(what: str, right: str) -> Finding:
    return Finding(level=Level.HIDDEN, text=f"{what}: you may not look", advice=f"it takes the right to {right}")


async def unless_forbidden(request: Awaitable[T]) -> T | None:
    """The answer; None where the caller lacks the right."""
    try:
        return await request
    except Forbidden:
        return None


def by_finding(of_nodes: Iterable[tuple[str, Finding]], total: int) -> Iterator[Finding]:
    """One line for all nodes of which the same is to be said. `total`: how many nodes there are."""
    names: dict[Finding, list[str]] = {}
    for name, finding in of_nodes:
        names.setdefault(finding, []).append(name)
    for finding, nodes in names.items():
        yield Finding(level=finding.level, text=f"{named(nodes, total)}: {finding.text}", advice=finding.advice)


def named(nodes: Sequence[str], total: int) -> str:
    """The nodes for a line: a few by name, or all."""
    ordered = sorted(nodes)
    if len(ordered) == total > 1:
        return f"all {total} nodes"
    more = f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
    return ", ".join(ordered[:NAMED]) + more


def printed(sections: Sequence[Section]) -> Iterator[str]:
    """The lines, and how many problems there are."""
    width = max(len(level) for level in Level)
    for section in sections:
        yield section.title
        for finding in section.findings:
            yield f"  {finding.level:<{width}}  {finding.text}"
            if finding.advice:
                yield f"  {'':<{width}}  → {finding.advice}"
    problems, unseen = count(sections, Level.PROBLEM), count(sections, Level.HIDDEN)
    yield f"{problems or 'no'} problem{'' if problems == 1 else 's'} found" + (
        f"; what is hidden from you ({unseen}) was not examined" if unseen else ""
    )


def count(sections: Iterable[Section], level: Level) -> int:
    return sum(finding.level is level for section in sections for finding in section.findings)
