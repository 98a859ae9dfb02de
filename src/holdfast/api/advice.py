"""A refusal in words that say what to write instead.

The API server names types and regular expressions. Its causes carry the field's path, so that the field's schema and
value give a sentence with an example. The same sentence is said of a cause from any server and from
`validate_object`.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

import yaml

from holdfast.api.scalars import AbsolutePath, DnsLabel, DnsSubdomain, Image, LabelValue, Quantity
from holdfast.api.schema.crd import Schema
from holdfast.api.schema.validation import schema_of
from holdfast.api.schema.violations import Cause, child_path, json_type

_FOUND = {
    "null": "empty",
    "boolean": "a boolean",
    "integer": "a number",
    "number": "a number",
    "infinity": "a number",
    "string": "text",
    "array": "a list",
    "object": "a map",
}
_EXAMPLES = {"integer": "a whole number, such as 2", "number": "a number, such as 0.001", "boolean": "true or false"}
_SHELL = re.compile(r"[|&;<>$`\n*]")
_REGEX = re.compile(r",? ?\(?regex used for validation is '.*'\)?")
_SECRET_FIELDS = ("value",)  # of an environment variable
_LONGEST_LIST = 12


def _pattern(scalar: Any) -> str:
    return str(get_args(scalar)[1].pattern)


_DNS_EXAMPLE = "lower-case letters, digits and '-', starting and ending with a letter or digit"
PATTERN_WORDS = {
    _pattern(get_args(Quantity)[1]): "an amount such as 500m, 2 or 1.5Gi",
    _pattern(DnsLabel): _DNS_EXAMPLE,
    _pattern(DnsSubdomain): f"{_DNS_EXAMPLE}; parts may be joined by '.'",
    _pattern(LabelValue): "letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
    _pattern(Image): "an image without spaces, such as pytorch/pytorch:2.6.0",
    _pattern(AbsolutePath): "a path that starts with /",
    "^/[^:]*$": "a path that starts with / and holds no ':'",
    "^[ -<>-~]+$": "a name without '=', such as LEARNING_RATE",
    "^[-._a-zA-Z0-9]+$": "letters, digits, '-', '_' and '.'",
    "^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$": "a bucket's name, such as my-checkpoints, without s3://",
    "^[a-z0-9][a-z0-9._-]+[a-z0-9]$": "a bucket's name, such as my-checkpoints, without gs://",
    "^[a-z0-9-]+$": "a region, such as eu-central-1",
    "^[a-z0-9][a-z0-9-]{2,62}$": "a container's name, such as checkpoints",
    "^[a-z0-9]{3,24}$": "an account's name of 3 to 24 lower-case letters and digits",
    r"^[^\s/]+$": "a host name or an address, such as nfs.example.com",
    "^[a-z]([-a-z0-9]*[a-z0-9])?$": "lower-case letters, digits and '-', starting with a letter",
    "^([a-z][-a-z0-9.]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$": "a project's id, such as my-project-1",
    "^[a-z]+-[a-z]+[0-9]+-[a-z]$": "a zone, such as us-central1-a",
    "^[a-z]+-[a-z]+[0-9]+$": "a region, such as us-central1",
    r"^(default|[^@\s]+@[^@\s]+)$": "default, or an account such as trainer@my-project.iam.gserviceaccount.com",
    r"^(projects/[^/\s]+/global/networks/)?[a-z]([-a-z0-9]*[a-z0-9])?$": "a network's name, such as training, or "
    "projects/my-host-project/global/networks/shared",
    r"^(projects/[^/\s]+/regions/[^/\s]+/subnetworks/)?[a-z]([-a-z0-9]*[a-z0-9])?$": "a subnetwork's name, such as "
    "gpus, or projects/my-host-project/regions/us-central1/subnetworks/gpus",
    "^[A-Za-z][A-Za-z0-9]*( [A-Za-z0-9]+)*$": "a CPU platform, such as Intel Cascade Lake",
    "^sha256:[0-9a-f]{64}$": "sha256: and 64 hexadecimal digits",
    r"^[^\s/]+:[0-9]{1,5}$": "host and port, such as 10.0.0.1:6443",
    "^[a-z_][a-z0-9_-]*$": "a user's name, such as ubuntu",
}


def advice(document: Mapping[str, Any], causes: Iterable[Cause]) -> list[str]:
    """A sentence for each cause, without repetitions; of a kind that is not ours, the server's own words."""
    schema = schema_of(document)
    return list(dict.fromkeys(_sentence(document, schema, cause) for cause in causes))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The known word that is nearest, whatever its case; empty when none is near."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), by_lower, n=1) or [each for each in by_lower if word.lower() in each]
    return by_lower[near[0]] if word and near else ""


def _sentence(document: Mapping[str, Any], schema: Schema | None, cause: Cause) -> str:
    place = _look(document, schema, cause.field) if schema is not None else None
    if place is None or schema is None:
        return _REGEX.sub("", str(cause))
    value, part = place
    detail = _detail(cause)
    match cause.reason:
        case "UnknownField":
            return _unknown_field(cause.field, schema, _fields_around(document, schema, cause.field))
        case "FieldValueTypeInvalid":
            around = _fields_around(document, schema, cause.field)
            return _duration(cause.field, value, around) or _wrong_type(cause.field, value, part)
        case "FieldValueRequired":
            return f"{cause.field} is missing" + (f": {detail}" if detail else "")
        case "FieldValueNotSupported" if "enum" in part:
            return _unsupported(cause.field, str(value), part["enum"])
        case "FieldValueForbidden":
            return f"{cause.field}: {detail}"
        case "FieldValueTooLong":
            return f"{cause.field} is too long: write at most {part.get('maxLength', 'as many')} characters"
        case "FieldValueTooMany" if isinstance(value, list | dict):
            most = part.get("maxItems", part.get("maxProperties"))
            return f"{cause.field} has {len(value)} entries: write at most {most}"
        case "FieldValueDuplicate":
            return f"{cause.field} is there twice: {detail}"
        case _:
            return _invalid(cause.field, value, part, detail)


def _detail(cause: Cause) -> str:
    """The message without the words that repeat its class, its value and its path."""
    _, _, rest = cause.message.partition(": ")
    _, inside, complaint = rest.partition(f"{cause.field} in body ")
    return _REGEX.sub("", complaint if inside else rest)


def _look(value: Any, schema: Schema | None, path: str) -> tuple[Any, Schema] | None:
    """The value at the path and its schema; a key may hold dots itself, as nvidia.com/gpu does."""
    if not path:
        return value, schema or {}
    part = schema or {}
    if index := re.match(r"\[(\d+)\]\.?", path):
        below = value[int(index[1])] if isinstance(value, list) and int(index[1]) < len(value) else None
        return _look(below, part.get("items"), path[index.end() :])
    known = value if isinstance(value, Mapping) else {}
    properties = part.get("properties", {})
    for name in sorted({*known, *properties}, key=len, reverse=True):
        rest = path.removeprefix(str(name))
        if path.startswith(str(name)) and (not rest or rest[0] in ".["):
            child = properties.get(name, part.get("additionalProperties"))
            return _look(known.get(name), child, rest.removeprefix("."))
    return None


def _wrong_type(field: str, value: Any, schema: Schema) -> str:
    name = re.split(r"[.\[]", field)[-1]
    found = _FOUND[json_type(value)]
    is_now = f"{field} is {found}"
    if schema.get("format") == "date-time":
        return f"{field} is no time: write one such as 2026-01-31T12:00:00Z"
    match "amount" if schema.get("x-kubernetes-int-or-string") else schema.get("type"), value:
        case _, None:
            return f"{is_now}: write something, or take it out"
        case "array", str() if schema["items"].get("type") == "string":
            return f"{is_now}: write {name}: {_flow(_words(name, value))}"
        case "array", _:
            return f"{is_now}: write a list, each entry with '- ' before it"
        case "object", _:
            return f"{is_now}: {_fields_words(name, schema)}"
        case "string", bool() | int() | float() if name in _SECRET_FIELDS:
            return f"{is_now}: put it in quotes"
        case "string", bool() | int() | float():
            return f'{is_now}: put it in quotes: {name}: "{str(value).lower()}"'
        case "string", _:
            return f"{is_now}: write text"
        case "amount", _:
            return f"{is_now}: write an amount such as 500m, 2 or 1.5Gi"
        case str(wanted), str() if _is_quoted(wanted, value):
            return f"{is_now}: write {name}: {value}, without quotes"
        case "integer", float():
            return f"{field} is {value}: write a whole number"
        case str(wanted), _:
            return f"{is_now}: write {_EXAMPLES.get(wanted, wanted)}"
    return f"{is_now}, which is not allowed there"


def _duration(field: str, value: Any, block: Schema) -> str:
    """A number where a duration is written: quotes alone would not help."""
    name = f".{field.rpartition('.')[2]}"
    rules = [rule for rule in block.get("x-kubernetes-validations", ()) if rule.get("fieldPath") == name]
    messages = [rule["message"] for rule in rules if rule["message"].startswith("write a duration")]
    return f"{field} is {_FOUND[json_type(value)]}: {messages[0]}" if messages else ""


def _is_quoted(wanted: str, text: str) -> bool:
    """Whether the text would be right without its quotes."""
    shapes = {"integer": r"-?\d+", "number": r"-?\d+(\.\d+)?([eE][-+]?\d+)?", "boolean": "true|false"}
    return re.fullmatch(shapes.get(wanted, r"\b\B"), text, re.ASCII) is not None


def _words(name: str, text: str) -> list[str]:
    """The list that somebody means who writes one text."""
    if name not in ("command", "args"):
        return [text]
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if words and not _SHELL.search(text):
        return words
    return ["sh", "-c", text] if name == "command" else [text]


def _flow(words: list[str]) -> str:
    written: str = yaml.safe_dump(words, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return written.strip()


def _fields_words(name: str, schema: Schema) -> str:
    fields = list(schema.get("properties", {}))
    if not fields:
        return "write NAME: VALUE lines below it"
    more = " …" if len(fields) > _LONGEST_LIST else ""
    return f"write its fields below it: {', '.join(fields[:_LONGEST_LIST])}{more}"


def _unsupported(field: str, value: str, supported: Sequence[str]) -> str:
    near = did_you_mean(value, supported)
    if near and len(supported) > 1:
        return f'{field} is "{value}": did you mean {near}? It may be {_either(supported)}'
    return f'{field} is "{value}": write {_either(supported)}'


def _either(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _fields_around(document: Mapping[str, Any], schema: Schema, field: str) -> Schema:
    """The schema of the block that a field stands in."""
    parent = field
    while parent:
        parent = parent[: max(parent.rfind("."), parent.rfind("["), 0)]
        place = _look(document, schema, parent)
        if place is not None and place[1].get("properties"):
            return place[1]
    return schema


def _unknown_field(field: str, whole: Schema, block: Schema) -> str:
    fields = list(block.get("properties", {}))
    name = field.rpartition(".")[2]
    elsewhere = [path for path in _paths(whole, name) if path != field and not path.startswith("status")]
    near = did_you_mean(name, fields)
    if near:
        hint = f": did you mean {near}?"
    elif elsewhere:
        hint = f": it belongs to {elsewhere[0].rpartition('.')[0]}"
    else:
        hint = f": there are {', '.join(fields)}" if len(fields) <= _LONGEST_LIST else ""
    return f"{field} is no field that holdfast knows{hint}"


def _paths(schema: Schema, name: str, path: str = "") -> Iterator[str]:
    """Where a field of that name stands, the shallow ones first."""
    properties: dict[str, Schema] = schema.get("properties", {})
    if name in properties:
        yield child_path(path, name)
    for step, child in properties.items():
        if child.get("type") == "object":
            yield from _paths(child, name, child_path(path, step))


def _invalid(field: str, value: Any, schema: Schema, detail: str) -> str:
    shown = _shown(field, value)
    bounds = re.match(r"should be (less|greater) than (or equal to )?(\S+)", detail)
    if "should match" in detail and (words := PATTERN_WORDS.get(schema.get("pattern", ""))):
        return f"{field} is {shown}: write {words}"
    if bounds:
        limit = {"less": "at most", "greater": "at least"}[bounds[1]] if bounds[2] else "more than"
        return f"{field} is {shown}: write {limit} {bounds[3]}"
    if detail.startswith("should be at least"):
        return f"{field} is empty: write something, or take it out" if value == "" else f"{field} is too short"
    if not shown:
        return f"{field}: {detail}"
    quoted = re.match(r'"(?:[^"\\]|\\.)*": |[-\d.]+: ', detail)
    return f"{field} is {shown}: {detail[quoted.end() :] if quoted else detail}"


def _shown(field: str, value: Any) -> str:
    if field.rpartition(".")[2] in _SECRET_FIELDS or isinstance(value, dict | list | None):
        return ""
    text = yaml.safe_dump(value, width=float("inf"), allow_unicode=True) if not isinstance(value, str) else f'"{value}"'
    return text.removesuffix("\n").removesuffix("...").strip()
