"""Partial answers: what `fields=items/*/instances(name,zone),nextPageToken` leaves of an answer."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.providers.compute_engine.description import Description, Schema

_TOKEN = re.compile(r"[(),/]|[^(),/\s]+")
ALL = "*"


class BadFields(ValueError):
    pass


class Selection(dict[str, "Selection"]):
    """By name of a field what is left of it; empty: all."""


def parse(text: str) -> Selection:
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise BadFields(text)
    selection = _list(tokens)
    if tokens:
        raise BadFields(f"{text}: what is {tokens[0]!r} doing there?")
    return selection


def _list(tokens: list[str]) -> Selection:
    found = Selection()
    while True:
        _item(tokens, found)
        if not tokens or tokens[0] != ",":
            return found
        tokens.pop(0)


def _item(tokens: list[str], into: Selection) -> None:
    while True:
        if tokens and tokens[0] == "(":
            into.update(_group(tokens))
            return
        if not tokens or tokens[0] in "),/":
            raise BadFields("a name is missing")
        into = into.setdefault(tokens.pop(0), Selection())
        if tokens and tokens[0] == "/":
            tokens.pop(0)
        elif not tokens or tokens[0] != "(":
            return


def _group(tokens: list[str]) -> Selection:
    tokens.pop(0)
    found = _list(tokens)
    if not tokens or tokens.pop(0) != ")":
        raise BadFields("a bracket is not closed")
    return found


def select(value: Any, selection: Mapping[str, Selection]) -> Any:
    if not selection or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    if ALL in selection:
        return {name: select(item, selection[ALL]) for name, item in value.items()}
    return {name: select(value[name], chosen) for name, chosen in selection.items() if name in value}


def selection_problems(
    description: Description, selection: Mapping[str, Selection], schema: Schema, place: str = "fields"
) -> Iterator[str]:
    """Names that the answer does not have."""
    while "$ref" in schema or schema.get("type") == "array":
        schema = description.schemas[schema["$ref"]] if "$ref" in schema else schema["items"]
    for name, chosen in selection.items():
        at = f"{place}/{name}"
        field = schema.get("additionalProperties") if name == ALL else schema.get("properties", {}).get(name)
        if field is None:
            yield f"{at}: there is no such field"
        else:
            yield from selection_problems(description, chosen, field, at)
