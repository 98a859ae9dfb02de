"""The filters of lists: AIP-160, or a regular expression for one field, and never both."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Predicate = Callable[[Mapping[str, Any]], bool]

_TOKEN = re.compile(r"""\s*(?:(\()|(\))|(!=|<=|>=|[=<>:])|"([^"]*)"|'([^']*)'|([^\s()=!<>:"']+))""")
_REGULAR = ("eq", "ne")


class BadFilter(ValueError):
    pass


def parse(text: str) -> Predicate:
    if not text.strip():
        return lambda item: True
    return _Parser(text).predicate()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._regular_fields: set[str] = set()
        self._has_plain = False

    def predicate(self) -> Predicate:
        found = self._any()
        if self._tokens:
            raise BadFilter(f"{self._text}: what is {self._tokens[0][1]!r} doing there?")
        if self._regular_fields and self._has_plain:
            raise BadFilter(f"{self._text}: eq and ne can't be mixed with other operators")
        if len(self._regular_fields) > 1:
            raise BadFilter(f"{self._text}: constraints on several fields can't be regular expressions")
        return found

    def _any(self) -> Predicate:
        parts = [self._all()]
        while self._next_is("OR"):
            self._tokens.pop(0)
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda item: any(part(item) for part in parts)

    def _all(self) -> Predicate:
        parts = [self._term()]
        while self._tokens and not self._next_is("OR") and self._tokens[0][0] != ")":
            if self._next_is("AND"):
                self._tokens.pop(0)
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else lambda item: all(part(item) for part in parts)

    def _term(self) -> Predicate:
        if self._tokens and self._tokens[0][0] == "(":
            self._tokens.pop(0)
            inner = self._any()
            if not self._tokens or self._tokens.pop(0)[0] != ")":
                raise BadFilter(f"{self._text}: a bracket is not closed")
            return inner
        if len(self._tokens) < 3:
            raise BadFilter(f"{self._text}: a comparison is a field, an operator and a value")
        (_, field), (_, operator), (_, value) = (self._tokens.pop(0) for _ in range(3))
        if operator in _REGULAR:
            self._regular_fields.add(field)
            pattern = re.compile(value)
            wanted = operator == "eq"
            return lambda item: (pattern.fullmatch(_value(item, field) or "") is not None) == wanted
        self._has_plain = True
        return _comparison(self._text, field, operator, value)

    def _next_is(self, word: str) -> bool:
        return bool(self._tokens) and self._tokens[0] == ("word", word)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadFilter(f"{text}: can't be read from {text[at:]!r} on")
        at = match.end()
        opening, closing, operator, double, single, word = match.groups()
        if opening or closing:
            yield opening or closing, ""
        elif operator:
            yield "operator", operator
        else:
            quoted = double if double is not None else single
            yield ("word", word) if quoted is None else ("text", quoted)


def _comparison(text: str, field: str, operator: str, value: str) -> Predicate:
    match operator:
        case "=":
            return lambda item: _value(item, field) == value
        case "!=":
            return lambda item: _value(item, field) != value
        case ":":
            if value == "*":
                return lambda item: _value(item, field) is not None
            return lambda item: value in (_value(item, field) or "")
    raise BadFilter(f"{text}: the double knows no {operator}")


def _value(item: Mapping[str, Any], field: str) -> str | None:
    """Nested fields are separated by dots."""
    found: Any = item
    for name in field.split("."):
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return str(found).lower() if isinstance(found, bool) else str(found)
