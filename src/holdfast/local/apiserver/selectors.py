"""Label and field selectors in kubectl's syntax."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import Change
from holdfast.local.apiserver.kinds import ServedKind
from holdfast.local.apiserver.objects import label_key_problems, label_value_problems
from holdfast.local.apiserver.storage import StoredObject, StoredWrite, stored, value_at

LabelPredicate: TypeAlias = Callable[[Mapping[str, str]], bool]
FieldPredicate: TypeAlias = Callable[[Callable[[str], str]], bool]

_TOKEN = re.compile(r"\s*(==|!=|[=!<>(),]|[^\s=!<>(),]+)")
_SYMBOLS = frozenset({"==", "!=", "=", "!", "<", ">", "(", ")", ",", ""})
_END = ""


def label_selector(text: str) -> LabelPredicate:
    """The predicate that `text` describes, over an object's labels; `BadRequest` when `text` can't be parsed."""
    tokens = _Tokens(text)
    requirements = [] if tokens.next == _END else [_requirement(tokens)]
    while tokens.next == ",":
        tokens.take()
        requirements.append(_requirement(tokens))
    if tokens.next != _END:
        raise tokens.unexpected("',' or the end")
    return lambda labels: all(holds(labels) for holds in requirements)


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [match[1] for match in _TOKEN.finditer(text)]
        self._at = 0

    @property
    def next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def take(self) -> str:
        token = self.next
        self._at += 1
        return token

    def word(self, what: str) -> str:
        if self.next in _SYMBOLS:
            raise self.unexpected(what)
        return self.take()

    def expect(self, symbol: str) -> None:
        if self.next != symbol:
            raise self.unexpected(f"{symbol!r}")
        self.take()

    def unexpected(self, expected: str) -> BadRequest:
        found = f"{self.next!r}" if self.next else "the end"
        return BadRequest(f"unable to parse requirement: found {found} in {self._text!r}, expected {expected}")


def _requirement(tokens: _Tokens) -> LabelPredicate:
    if tokens.next == "!":
        tokens.take()
        absent = _key(tokens)
        return lambda labels: absent not in labels
    key = _key(tokens)
    operator = tokens.next
    if operator in (_END, ","):
        return lambda labels: key in labels
    tokens.take()
    if operator in ("=", "=="):
        wanted = _value(key, tokens)
        return lambda labels: labels.get(key) == wanted
    if operator == "!=":
        unwanted = _value(key, tokens)
        return lambda labels: labels.get(key) != unwanted
    if operator in ("<", ">"):
        return _comparison(key, operator, tokens)
    if operator in ("in", "notin"):
        values = _values(key, tokens)
        return lambda labels: (labels.get(key) in values) == (operator == "in")
    raise BadRequest(f"unable to parse requirement: {operator!r} after {key!r} is no operator")


def _key(tokens: _Tokens) -> str:
    key = tokens.word("a label")
    for problem in label_key_problems(key):
        raise BadRequest(f"unable to parse requirement: {key!r}: {problem}")
    return key


def _value(key: str, tokens: _Tokens) -> str:
    if tokens.next in (_END, ","):
        return ""
    value = tokens.word("a value")
    for problem in label_value_problems(value):
        raise BadRequest(f"unable to parse requirement: values of {key!r}: {value!r}: {problem}")
    return value


def _values(key: str, tokens: _Tokens) -> frozenset[str]:
    tokens.expect("(")
    values = set()
    while True:
        values.add("" if tokens.next in (",", ")") else _value(key, tokens))
        if tokens.next != ",":
            break
        tokens.take()
    tokens.expect(")")
    return frozenset(values)


def _comparison(key: str, operator: str, tokens: _Tokens) -> LabelPredicate:
    text = tokens.word("an integer")
    bound = _integer(text)
    if bound is None:
        raise BadRequest(f"unable to parse requirement: {key!r} is compared to {text!r}, which is no integer")

    def holds(labels: Mapping[str, str]) -> bool:
        value = _integer(labels.get(key, ""))
        return value is not None and (value > bound if operator == ">" else value < bound)

    return holds


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else None


def field_selector(text: str, selectable: frozenset[str]) -> FieldPredicate:
    """The predicate over an object's fields, read by path; only `selectable` paths are allowed."""
    terms = [_term(part, selectable) for part in text.split(",") if part]
    return lambda value_at: all((value_at(path) == value) == equal for path, value, equal in terms)


def _term(part: str, selectable: frozenset[str]) -> tuple[str, str, bool]:
    match = re.fullmatch(r"([^=!]+)(==|!=|=)([^=!]*)", part)
    if match is None:
        raise BadRequest(f"invalid field selector: {part!r} is neither field=value nor field!=value")
    path, operator, value = match.groups()
    if path not in selectable:
        raise BadRequest(f'field label not supported: "{path}" (there are {", ".join(sorted(selectable))})')
    return path, value, operator != "!="


# The objects that a list or a watch selects.


class WatchFilter:
    def __init__(self, kind: ServedKind, namespace: str, labels: str, fields: str) -> None:
        self._namespace = namespace
        self._labels = label_selector(labels)
        self._fields = field_selector(fields, kind.special.fields) if fields else None

    def matches(self, each: StoredObject) -> bool:
        if self._namespace and each.meta.namespace != self._namespace:
            return False
        return self._labels(each.meta.labels) and self._fields_hold(each)

    def visible_event(self, write: StoredWrite) -> StoredWrite | None:
        """The write as a watch with this filter sees it; None when the write is outside the filter."""
        was = write.old is not None and self.matches(write.old)
        now = write.change is not Change.DELETED and self.matches(write.new)
        if write.change is Change.DELETED:
            return write if was else None
        if was and not now and write.old is not None:
            # The object as it last matched the filter, at the version at which it stopped matching.
            last = stored(write.old.resource, write.old.json(), write.version)
            return StoredWrite(change=Change.DELETED, old=write.old, new=last)
        if not now:
            return None
        return StoredWrite(change=Change.MODIFIED if was else Change.ADDED, old=write.old, new=write.new)

    def _fields_hold(self, each: StoredObject) -> bool:
        if self._fields is None:
            return True
        document = each.json()
        return self._fields(lambda path: value_at(document, path))
