"""Whether a request is as Google's description has it: each method, parameter, field, type and enum."""

import re
from collections.abc import Iterator, Mapping

from tests.providers.compute_engine.description import Description, Found, Schema

OUTPUT_ONLY = "[Output Only]"
INT32 = (-(2**31), 2**31 - 1)
UNSIGNED = re.compile(r"[0-9]+")
SIGNED = re.compile(r"-?[0-9]+")


def request_problems(
    description: Description, found: Found, query: Mapping[str, str], body: object | None
) -> Iterator[str]:
    """What is wrong with a request, each with the place."""
    method = found.method
    for name, value in found.arguments.items():
        yield from _text_problems(f"{{{name}}}", value, method.parameters[name])
    known = {
        **{name: schema for name, schema in method.parameters.items() if schema["location"] == "query"},
        **description.global_parameters,
    }
    for name, value in query.items():
        if name not in known:
            yield f"?{name}: {method.id} has no such parameter"
        else:
            yield from _parameter_problems(f"?{name}", value, known[name])
    for name, schema in known.items():
        if schema.get("required") and name not in query:
            yield f"?{name}: is missing"
    if method.request and body is None:
        yield f"{method.id} needs a body"
    elif not method.request and body is not None:
        yield f"{method.id} takes no body"
    elif method.request:
        checker = _Checker(description, f"compute.{method.id}", is_request=True)
        yield from checker.problems("", body, {"$ref": method.request})


def answer_problems(description: Description, found: Found, body: object) -> Iterator[str]:
    """What is wrong with an answer: the double is held to the description as well."""
    checker = _Checker(description, f"compute.{found.method.id}", is_request=False)
    yield from checker.problems("", body, {"$ref": found.method.answer})


class _Checker:
    def __init__(self, description: Description, method: str, *, is_request: bool) -> None:
        self._schemas = description.schemas
        self._method = method
        self._is_request = is_request

    def problems(self, place: str, value: object, schema: Schema) -> Iterator[str]:
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        kind = schema.get("type", "any")
        if kind == "object":
            yield from self._object_problems(place, value, schema)
        elif kind == "array":
            if not isinstance(value, list):
                yield f"{place}: {_shown(value)} is no list"
                return
            for at, item in enumerate(value):
                yield from self.problems(f"{place}[{at}]", item, schema["items"])
        elif kind == "string":
            if not isinstance(value, str):
                wanted = "a number in a string" if schema.get("format") in ("int64", "uint64") else "a string"
                yield f"{place}: {_shown(value)} is not {wanted}"
            else:
                yield from _text_problems(place, value, schema)
        elif kind == "boolean" and not isinstance(value, bool):
            yield f"{place}: {_shown(value)} is neither true nor false"
        elif kind == "integer":
            low, high = INT32 if schema.get("format") == "int32" else (0, 2**32 - 1)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                yield f"{place}: {_shown(value)} is no {schema.get('format', 'integer')}"
        elif kind == "number" and (not isinstance(value, int | float) or isinstance(value, bool)):
            yield f"{place}: {_shown(value)} is no number"

    def _object_problems(self, place: str, value: object, schema: Schema) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{place}: {_shown(value)} is no object"
            return
        properties: Mapping[str, Schema] = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name, item in value.items():
            at = f"{place}.{name}".lstrip(".")
            field = properties.get(name, others)
            if field is None:
                yield f"{at}: there is no such field"
            elif self._is_request and _is_output_only(field):
                yield f"{at}: is output only"
            else:
                yield from self.problems(at, item, field)
        for name, field in properties.items():
            needed = self._is_request and self._method in field.get("annotations", {}).get("required", ())
            if needed and name not in value:
                yield f"{f'{place}.{name}'.lstrip('.')}: is missing"


def _is_output_only(schema: Schema) -> bool:
    return bool(schema.get("readOnly")) or schema.get("description", "").startswith(OUTPUT_ONLY)


def _parameter_problems(place: str, text: str, schema: Schema) -> Iterator[str]:
    if schema["type"] == "boolean":
        if text not in ("true", "false"):
            yield f"{place}: {text!r} is neither true nor false"
    elif schema["type"] == "integer":
        low, high = int(schema.get("minimum", 0)), int(schema.get("maximum", 2**32 - 1))
        if not SIGNED.fullmatch(text) or not low <= int(text) <= high:
            yield f"{place}: {text!r} is no number from {low} to {high}"
    else:
        yield from _text_problems(place, text, schema)


def _text_problems(place: str, text: str, schema: Schema) -> Iterator[str]:
    form = schema.get("format")
    if "enum" in schema and text not in schema["enum"]:
        yield f"{place}: {text!r} is none of {', '.join(schema['enum'])}"
    elif (form == "int64" and not SIGNED.fullmatch(text)) or (form == "uint64" and not UNSIGNED.fullmatch(text)):
        yield f"{place}: {text!r} is no {form}"
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], text):
        yield f"{place}: {text!r} does not match {schema['pattern']}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
