"""A field's type and bounds as a reference page words them."""

from typing import get_args

from holdfast.api.scalars import DnsLabel, DnsSubdomain, LabelValue
from holdfast.api.schema import Schema

# Patterns that have a name; any other is shown as it is.
_NAMED_PATTERNS = {
    get_args(DnsLabel)[1].pattern: "a DNS label",
    get_args(DnsSubdomain)[1].pattern: "a DNS name",
    get_args(LabelValue)[1].pattern: "a label's value",
}


def describe_type(schema: Schema, part: str = "object") -> str:
    """The type with its bounds; `part` is what to call an object that has fields of its own."""
    match schema:
        case {"x-kubernetes-int-or-string": True}:
            return "quantity"
        case {"enum": values}:
            return " or ".join(code(value) for value in values)
        case {"type": "array"}:
            return _list(schema, part)
        case {"type": "object", "additionalProperties": values}:
            return _joined(f"map of {_each(values, part)}", _at_most(schema.get("maxProperties"), "keys"))
        case {"type": "object"}:
            return part
        case {"type": "string"}:
            return _text(schema)
        case {"type": kind}:
            return _joined(kind, _range(schema))
    raise TypeError(f"no words for a field of the schema {schema}")


def code(text: str) -> str:
    """Literal text inside a table, where a bar would end the cell."""
    return f"`{text.replace('|', chr(92) + '|')}`"


def _list(schema: Schema, part: str) -> str:
    keys = schema.get("x-kubernetes-list-map-keys")
    apart = f"told apart by {' and '.join(code(key) for key in keys)}" if keys else ""
    return _joined(f"list of {_each(schema['items'], part)}", apart, _at_most(schema.get("maxItems"), "elements"))


def _each(schema: Schema, part: str) -> str:
    """The type of an element, its own bounds set apart from those of the whole."""
    kind, _, bounds = describe_type(schema, part).partition(", ")
    return f"{kind} ({bounds})" if bounds else kind


def _text(schema: Schema) -> str:
    if schema.get("format") == "date-time":
        return "time"
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    length = f"{least} to {most} characters" if least and most else _at_most(most, "characters")
    pattern = schema.get("pattern")
    return _joined("string", length, _NAMED_PATTERNS.get(pattern, f"as {code(pattern)}") if pattern else "")


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None:
        return "" if most is None else f"at most {most}"
    if most is not None:
        return f"{least} to {most}"
    return f"above {least}" if schema.get("exclusiveMinimum") else f"at least {least}"


def _at_most(most: int | None, what: str) -> str:
    return f"at most {most} {what}" if most else ""


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)
