"""What the API server does to a submitted object of our kinds: complete it, or refuse it and say why."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from holdfast.api.kinds import KINDS, kind_of
from holdfast.api.meta import ObjectMeta
from holdfast.api.schema.cel import rule_violations
from holdfast.api.schema.crd import Schema, object_schema, struct_schema
from holdfast.api.schema.violations import (
    BLOCKING,
    PRESERVE,
    Cause,
    ValidationFailed,
    schema_violations,
    unknown_fields,
    with_defaults,
)

__all__ = ["Cause", "ValidationFailed", "validate_object"]

_GENERATED_SUFFIX = "x" * 5
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_LABEL_NAME = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def validate_object(
    document: Mapping[str, Any], old: Mapping[str, Any] | None = None, *, status: bool = False, strict: bool = True
) -> dict[str, Any]:
    """The object as the server would store it, with defaults; raises `Refused` with every cause it finds.

    With `old` the document is an update, and the rules about changes are asked. Status is apart from the rest, as on
    the server: a create drops it, an update keeps the old one, and with `status` only it is updated. `strict` refuses
    unknown fields instead of dropping them.
    """
    schema = _served_schema(document)
    causes = list(unknown_fields(document, schema)) if strict else []
    new: dict[str, Any] = with_defaults(_spec_or_status_update(document, old, status=status), schema)
    before = None if old is None else with_defaults(old, schema)
    causes += _metadata_violations(new)
    causes += schema_violations(new, schema, old=before)
    if not any(cause.reason in BLOCKING for cause in causes):
        causes += rule_violations(_with_generated_name(new), schema, before)
    if causes:
        raise ValidationFailed(subject(document), causes)
    return new


def subject(document: Mapping[str, Any]) -> str:
    """Kind and name as people write them: TrainingJob/mnist."""
    metadata = document.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    name = named.get("name") or (f"{named['generateName']}*" if named.get("generateName") else "(no name)")
    return f"{document.get('kind') or '(no kind)'}/{name}"


def schema_of(document: Mapping[str, Any]) -> Schema | None:
    """The schema of the document's kind, metadata included; None when the kind is not ours."""
    api_version, kind = document.get("apiVersion"), document.get("kind")
    ours = isinstance(api_version, str) and isinstance(kind, str) and kind_of(api_version, kind)
    return _schemas()[str(kind)] if ours else None


def _served_schema(document: Mapping[str, Any]) -> Schema:
    schema = schema_of(document)
    if schema is not None:
        return schema
    api_version, kind = document.get("apiVersion"), document.get("kind")
    served = ", ".join(f"{known.kind} ({known.api_version})" for known in KINDS)
    raise ValidationFailed(
        subject(document), [Cause("kind", f"no kind of holdfast: {api_version} {kind}; there are {served}")]
    )


@cache
def _schemas() -> dict[str, Schema]:
    metadata = struct_schema(ObjectMeta)
    metadata["properties"]["managedFields"] = {"type": "array", "items": {"type": "object", PRESERVE: True}}
    metadata["properties"]["selfLink"] = {"type": "string"}
    schemas = {kind.kind: object_schema(kind) for kind in KINDS}
    return {
        kind: {**schema, "properties": {**schema["properties"], "metadata": metadata}}
        for kind, schema in schemas.items()
    }


def _spec_or_status_update(
    document: Mapping[str, Any], old: Mapping[str, Any] | None, *, status: bool
) -> dict[str, Any]:
    source, kept = (old or {}, document) if status else (document, old or {})
    body = {name: value for name, value in source.items() if name != "status"}
    return {**body, "status": kept["status"]} if kept.get("status") is not None else body


def _metadata_violations(document: Mapping[str, Any]) -> Iterator[Cause]:
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        return  # its type is refused by the schema
    name = metadata.get("name") or metadata.get("generateName")
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
    elif isinstance(name, str) and not (
        _NAME.fullmatch(_with_generated_name(document)["metadata"]["name"]) and len(name) <= 253
    ):
        message = "use lower case letters, digits, '-' and '.', starting and ending with a letter or digit"
        yield Cause("metadata.name", f'Invalid value: "{name}": {message}')
    labels = metadata.get("labels", {})
    for key, value in labels.items() if isinstance(labels, dict) else ():
        if not _LABEL_NAME.fullmatch(key) or not (isinstance(value, str) and _LABEL_VALUE.fullmatch(value)):
            yield Cause("metadata.labels", f'Invalid value: "{key}={value}": not a label that Kubernetes accepts')


def _with_generated_name(document: Mapping[str, Any]) -> dict[str, Any]:
    """With the name that the server would make of generateName, or one of its length."""
    metadata = document["metadata"]
    if metadata.get("name") or not metadata.get("generateName"):
        return dict(document)
    return {**document, "metadata": {**metadata, "name": f"{metadata['generateName'][:58]}{_GENERATED_SUFFIX}"}}
