"""Request bodies in the protobuf encoding of Kubernetes, in which `kubectl create` sends built-in kinds.

client-go does not retry in JSON: a server that rejects protobuf can't be used with `kubectl create namespace`.
The field numbers are those of generated.proto in k8s.io/api and k8s.io/apimachinery. Fields that are not listed are
skipped, as the API server skips unknown fields.
"""

import base64
import enum
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.http.responses import Unsupported
from holdfast.times import format_time

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
INSTEAD = (
    "send application/json; with kubectl add --dry-run=client -o yaml to the create command, "
    "and pipe it into kubectl apply -f -"
)
_MAGIC = b"k8s\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class Scalar(enum.Enum):
    """How the value of a field is converted to JSON."""

    TEXT = enum.auto()
    BASE64 = enum.auto()
    NUMBER = enum.auto()
    FLAG = enum.auto()
    TIME = enum.auto()


class Field(NamedTuple):
    name: str
    type: "Scalar | Fields" = Scalar.TEXT
    is_list: bool = False
    is_map: bool = False
    """Keys are text, and values of `type`."""


Fields: TypeAlias = Mapping[int, Field]

_OWNER: Fields = {
    1: Field("kind"),
    3: Field("name"),
    4: Field("uid"),
    5: Field("apiVersion"),
    6: Field("controller", Scalar.FLAG),
    7: Field("blockOwnerDeletion", Scalar.FLAG),
}
_METADATA = Field(
    "metadata",
    {
        1: Field("name"),
        2: Field("generateName"),
        3: Field("namespace"),
        5: Field("uid"),
        6: Field("resourceVersion"),
        7: Field("generation", Scalar.NUMBER),
        8: Field("creationTimestamp", Scalar.TIME),
        9: Field("deletionTimestamp", Scalar.TIME),
        10: Field("deletionGracePeriodSeconds", Scalar.NUMBER),
        11: Field("labels", is_map=True),
        12: Field("annotations", is_map=True),
        13: Field("ownerReferences", _OWNER, is_list=True),
        14: Field("finalizers", is_list=True),
    },
)
_REFERENCE: Fields = {
    1: Field("kind"),
    2: Field("namespace"),
    3: Field("name"),
    4: Field("uid"),
    5: Field("apiVersion"),
    6: Field("resourceVersion"),
    7: Field("fieldPath"),
}
KINDS: Mapping[tuple[str, str], Fields] = {
    ("v1", "Namespace"): {
        1: _METADATA,
        2: Field("spec", {1: Field("finalizers", is_list=True)}),
        3: Field("status", {1: Field("phase")}),
    },
    ("v1", "ConfigMap"): {
        1: _METADATA,
        2: Field("data", is_map=True),
        3: Field("binaryData", Scalar.BASE64, is_map=True),
        4: Field("immutable", Scalar.FLAG),
    },
    ("v1", "Secret"): {
        1: _METADATA,
        2: Field("data", Scalar.BASE64, is_map=True),
        3: Field("type"),
        4: Field("stringData", is_map=True),
        5: Field("immutable", Scalar.FLAG),
    },
    ("v1", "ServiceAccount"): {
        1: _METADATA,
        2: Field("secrets", _REFERENCE, is_list=True),
        3: Field("imagePullSecrets", {1: Field("name")}, is_list=True),
        4: Field("automountServiceAccountToken", Scalar.FLAG),
    },
}
# Field numbers of runtime.Unknown, the envelope of every object.
_TYPE_META, _RAW, _CONTENT_ENCODING = 1, 2, 3


def decode(body: bytes) -> JSON:
    """An object of one of `KINDS` as JSON; `BadRequest` for malformed bodies, `Unsupported` for other kinds."""
    if not body.startswith(_MAGIC):
        raise _malformed("it does not begin with k8s")
    envelope = dict(_values(body[len(_MAGIC) :]))
    named = _message(_bytes(envelope.get(_TYPE_META, b"")), {1: Field("apiVersion"), 2: Field("kind")})
    api_version, kind = named.get("apiVersion", ""), named.get("kind", "")
    fields = KINDS.get((api_version, kind))
    if fields is None or envelope.get(_CONTENT_ENCODING):
        raise Unsupported(f"{api_version} {kind} is not read as protobuf here: {INSTEAD}")
    return {"apiVersion": api_version, "kind": kind, **_message(_bytes(envelope.get(_RAW, b"")), fields)}


def _message(body: bytes, fields: Fields) -> JSON:
    """The fields that have a value; Go writes empty strings and zeros, which JSON leaves out."""
    found: JSON = {}
    for number, value in _values(body):
        field = fields.get(number)
        if field is None:
            continue
        if field.is_map:
            entry = _message(_bytes(value), {1: Field("key"), 2: Field("value", field.type)})
            found.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", "")
        elif field.is_list:
            found.setdefault(field.name, []).append(_converted(value, field.type))
        else:
            found[field.name] = _converted(value, field.type)
    return {name: value for name, value in found.items() if value not in ("", 0) or value is False}


def _converted(value: int | bytes, kind: "Scalar | Fields") -> Any:
    match kind:
        case Scalar.TEXT:
            try:
                return _bytes(value).decode()
            except UnicodeDecodeError:
                raise _malformed("a text is not UTF-8") from None
        case Scalar.BASE64:
            return base64.b64encode(_bytes(value)).decode()
        case Scalar.NUMBER:
            return _int64(value)
        case Scalar.FLAG:
            return _int64(value) != 0
        case Scalar.TIME:
            return _time(_message(_bytes(value), {1: Field("seconds", Scalar.NUMBER)}))
        case _:
            return _message(_bytes(value), kind)


def _time(fields: JSON) -> str:
    """The time in JSON format; an unset time has no fields."""
    if not fields:
        return ""
    try:
        return format_time(_EPOCH + timedelta(seconds=fields["seconds"]))
    except OverflowError:
        raise _malformed("a time is out of range") from None


def _values(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number of each field and its value: a number, or the bytes of a longer value."""
    at = 0
    while at < len(body):
        tag, at = _number_at(body, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _number_at(body, at)
            yield number, value
            continue
        if wire == _LENGTH_DELIMITED:
            length, at = _number_at(body, at)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise _malformed(f"field {number} has the wire type {wire}")
        if length > len(body) - at:
            raise _malformed("it is cut short")
        yield number, body[at : at + length]
        at += length


def _number_at(body: bytes, at: int) -> tuple[int, int]:
    """The varint at offset `at`, and the offset of its end."""
    number = 0
    for count in range(_LONGEST_VARINT):
        if at + count >= len(body):
            raise _malformed("it is cut short")
        byte = body[at + count]
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, at + count + 1
    raise _malformed("a number is too long")


def _int64(value: int | bytes) -> int:
    """An int64: the upper half of the range is negative."""
    if isinstance(value, bytes):
        raise _malformed("a number is expected where bytes are")
    number = value & (2**64 - 1)
    return number - 2**64 if number >= 2**63 else number


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise _malformed("bytes are expected where a number is")
    return value


def _malformed(why: str) -> BadRequest:
    return BadRequest(f"the body of the request is not Kubernetes' protobuf: {why}")
