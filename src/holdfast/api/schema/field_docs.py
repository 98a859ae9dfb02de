"""The field reference in Markdown: a page for each kind and one for what they share, made from the models.

`python -m holdfast.api.schema.field_docs FOLDER` writes the pages.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, inspect

from holdfast.api.kind import Kind
from holdfast.api.kinds import KINDS
from holdfast.api.meta import Condition
from holdfast.api.scalars import DnsLabel, DnsSubdomain, LabelValue
from holdfast.api.schema.crd import Schema, struct_schema
from holdfast.api.schema.rules import Rule

# A field's type and bounds as a reference page words them.

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


SHARED_PAGE = "kubernetes.md"
SHARED_PACKAGE = "holdfast.api.core."


class PageSection(Struct, frozen=True):
    """One table: an object with fields, under the path or the name that leads to it."""

    title: str
    model: type[Struct]

    @property
    def schema(self) -> Schema:
        return struct_schema(self.model)

    @property
    def rules(self) -> tuple[Rule, ...]:
        rules: tuple[Rule, ...] = getattr(self.model, "RULES", ())
        return rules


def pages() -> dict[str, str]:
    """Every page, by the name of its file."""
    return {
        "README.md": _index(),
        **{page_name(kind): kind_page(kind) for kind in KINDS},
        SHARED_PAGE: shared_page(KINDS),
    }


def page_name(kind: Kind[Any]) -> str:
    return f"{kind.singular}.md"


def kind_page(kind: Kind[Any]) -> str:
    """Everything that can be written into an object of the kind, and everything that it reports."""
    root = PageSection("", kind.model)
    changes = _changes(root.rules)
    asked = f"kubectl explain {kind.singular}"
    return _lines(
        [
            f"# {kind.kind}",
            "",
            " ".join(cleandoc(kind.model.__doc__ or "").split()),
            "",
            f"`apiVersion: {kind.api_version}`, short name `{kind.short_name}`. `{asked}` knows it too.",
            "",
            *_rule_lines(root.rules),
            *(line for section in sections(kind.model) for line in _table(section, changes)),
            *_change_lines(changes),
        ]
    )


def shared_page(kinds: Iterable[Kind[Any]]) -> str:
    """The types that are Kubernetes' own, each once, by name."""
    models = {model for kind in kinds for model in _shared_models(kind.model)}
    lines = [
        "# Types that Kubernetes shares with the kinds",
        "",
        "They mean what they mean in a pod. A field may be changed when the field that leads to it may.",
        "",
    ]
    for model in sorted(models, key=_shared_name):
        lines += _table(PageSection(_shared_name(model), model), {})
    return _lines(lines)


def sections(model: type[Struct], path: str = "") -> Iterator[PageSection]:
    """The objects with fields of their own, in the order of the model, outer before inner."""
    for field, inner in _parts(model):
        if not _is_shared(inner):
            title = f"{path}{field}"
            yield PageSection(title, inner)
            yield from sections(inner, f"{title}.")


def _index() -> str:
    lines = [f"- [{kind.kind}]({page_name(kind)})" for kind in KINDS]
    return _lines(["# Fields", "", *lines, f"- [types of Kubernetes]({SHARED_PAGE})"])


def _table(section: PageSection, changes: dict[str, list[str]]) -> Iterator[str]:
    schema = section.schema
    links = {field.removesuffix("[]"): _link(section, field, inner) for field, inner in _parts(section.model)}
    reported = section.title.split(".")[0] == "status"
    header = ["field", "type"] if reported else ["field", "type", "default", *(["change"] if changes else [])]
    yield from (f"## {section.title}", "")
    yield from (_row([*header, "description"]), _row(["---"] * (len(header) + 1)))
    for name, field in schema["properties"].items():
        required = name in schema.get("required", ())
        cells = {
            "field": code(name),
            "type": describe_type(field, links.get(name, "object")),
            "default": "required" if required else _default(field),
            "change": ", ".join(_marks(f".{section.title}.{name}", changes)),
        }
        yield _row([*(cells[column] for column in header), _prose(field.get("description", ""))])
    yield ""
    yield from _rule_lines(section.rules)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _default(field: Schema) -> str:
    default = field.get("default", "")
    return code(str(default).lower() if isinstance(default, bool) else str(default)) if default else ""


def _rule_lines(rules: Iterable[Rule]) -> Iterator[str]:
    """What is refused, one line for each message, with the fields that it is about."""
    about: dict[str, list[str]] = {}
    for rule in rules:
        if not _is_about_changes(rule):
            about.setdefault(rule.message, []).append(rule.field.removeprefix("."))
    for message, fields in about.items():
        named = ", ".join(code(field) for field in fields if field)
        yield f"- {named}: {_prose(message)}" if named else f"- {_prose(message)}"
    if about:
        yield ""


def _changes(rules: Iterable[Rule]) -> dict[str, list[str]]:
    """The fields that can't be changed at will, by what the refusal says."""
    changes: dict[str, list[str]] = {}
    for rule in rules:
        if _is_about_changes(rule):
            changes.setdefault(rule.message, []).append(rule.field)
    return changes


def _is_about_changes(rule: Rule) -> bool:
    return re.search(r"\boldSelf\b", rule.rule) is not None


def _marks(path: str, changes: dict[str, list[str]]) -> Iterator[str]:
    for number, fields in enumerate(changes.values(), start=1):
        if any(f"{path}.".startswith(f"{field}.") for field in fields):
            yield f"[{number}](#change)"


def _change_lines(changes: dict[str, list[str]]) -> Iterator[str]:
    if changes:
        yield from ("## change", "", "A field without a number may be changed at any time. The others:", "")
        yield from (f"{number}. {_prose(message)}" for number, message in enumerate(changes, start=1))


def _parts(model: type[Struct]) -> Iterator[tuple[str, type[Struct]]]:
    """The fields of a struct that hold another; one that holds a list of them ends with []."""
    info = inspect.type_info(model)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if field.name != "metadata" and (found := _inner(field.type)) is not None:
            mark, inner = found
            yield f"{field.encode_name}{mark}", inner


def _inner(info: inspect.Type) -> tuple[str, type[Struct]] | None:
    match info:
        case inspect.StructType():
            return "", info.cls
        case inspect.Metadata():
            return _inner(info.type)
        case inspect.UnionType():
            return next((found for member in info.types if (found := _inner(member))), None)
        case inspect.VarTupleType():
            found = _inner(info.item_type)
            return ("[]", found[1]) if found else None
    return None


def _shared_models(model: type[Struct]) -> Iterator[type[Struct]]:
    for _, inner in _parts(model):
        if _is_shared(inner):
            yield inner
        yield from _shared_models(inner)


def _is_shared(model: type[Struct]) -> bool:
    return model is Condition or model.__module__.startswith(SHARED_PACKAGE)


def _link(section: PageSection, field: str, inner: type[Struct]) -> str:
    if not _is_shared(inner):
        return f"[object](#{_anchor(f'{section.title}.{field}')})"
    page = "" if _is_shared(section.model) else SHARED_PAGE
    return f"[{_shared_name(inner)}]({page}#{_anchor(_shared_name(inner))})"


def _shared_name(model: type[Struct]) -> str:
    """The name in Kubernetes: ours has a suffix where the read model of objects has the same type."""
    return model.__name__.removesuffix("Field")


def _anchor(title: str) -> str:
    """The fragment that Markdown pages give a heading: small letters and digits only."""
    return re.sub(r"[^a-z0-9-]", "", title.lower())


def _prose(text: str) -> str:
    """A sentence whose signs are meant as they are."""
    return re.sub(r"([*<|])", r"\\\1", text)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    for _name, _page in pages().items():
        (Path(sys.argv[1]) / _name).write_text(_page, encoding="utf-8")
