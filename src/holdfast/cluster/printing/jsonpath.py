"""The part of JSONPath that printer columns and `wait` use: fields, indexes, [*] and filters by equality."""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from holdfast.errors import HoldfastError

Step: TypeAlias = Callable[[Any], Iterator[Any]]

_TOKEN = re.compile(
    r"""\.(?P<field>(?:[A-Za-z0-9_-]|\\.)+)
    | \[(?P<index>-?\d{1,9})\]
    | \[(?P<all>\*)\]
    | \[(?P<quote>['"])(?P<quoted>[^'"\]]+)(?P=quote)\]
    | \[\?\(@(?P<where>(?:\.[A-Za-z0-9_-]+)+)\s*==\s*(?P<mark>['"])(?P<is>[^'"]*)(?P=mark)\)\]""",
    re.VERBOSE,
)


class InvalidJsonPath(HoldfastError):
    """The text is not a supported JSONPath."""


def compile_path(text: str) -> Callable[[Any], list[Any]]:
    """A function that returns all values of a path, with or without braces, in a document."""
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    path = inner if inner.startswith((".", "[")) else f".{inner}"
    steps: list[Step] = []
    position = 0
    while position < len(path):
        token = _TOKEN.match(path, position)
        if token is None:
            raise InvalidJsonPath(f"{text} is no path: write it as {{.status.state}} or {{.items[0].name}}")
        steps.append(_step(token))
        position = token.end()
    return lambda document: _found(document, steps)


def _found(document: Any, steps: list[Step]) -> list[Any]:
    found = [document]
    for step in steps:
        found = [inner for outer in found for inner in step(outer)]
    return found


def _step(token: re.Match[str]) -> Step:
    if token["index"]:
        return _at(int(token["index"]))
    if token["all"]:
        return _each
    if token["where"]:
        return _where(compile_path(token["where"]), token["is"])
    return _field(token["quoted"] or re.sub(r"\\(.)", r"\1", token["field"]))


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and value.get(name) is not None:
            yield value[name]

    return step


def _at(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _each(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _where(inner: Callable[[Any], list[Any]], wanted: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        for element in value if isinstance(value, list) else ():
            if wanted in inner(element):
                yield element

    return step
