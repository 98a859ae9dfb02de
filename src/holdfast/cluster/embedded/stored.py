"""An object as the engine keeps it: its JSON text, and the few facts that are looked up often."""

from typing import Any

import msgspec
from msgspec import Struct

from holdfast.api.meta import Key, ObjectMeta
from holdfast.cluster.protocol import JSON, Change

# Sorted keys: two objects are the same exactly when their texts are.
_encode = msgspec.json.Encoder(order="sorted").encode


class StoredObject(Struct, frozen=True, kw_only=True, gc=False):
    """`body` is the truth; it is decoded anew for every reader, so that none can change what another sees."""

    resource: str
    version: int
    api_version: str
    meta: ObjectMeta
    body: bytes

    @property
    def key(self) -> Key:
        return self.meta.key

    def json(self) -> JSON:
        decoded: JSON = msgspec.json.decode(self.body)
        return decoded


class StoredWrite(Struct, frozen=True, kw_only=True, gc=False):
    """One step of the history: the object before it, and after it or, for a removal, as it last was."""

    change: Change
    old: StoredObject | None
    new: StoredObject

    @property
    def version(self) -> int:
        return self.new.version


class _Header(Struct, rename="camel"):
    api_version: str
    metadata: ObjectMeta


def stored(resource: str, draft: JSON, version: int) -> StoredObject:
    """`draft` filed at `version`, which is written into it."""
    return loaded(resource, _encode({**draft, "metadata": {**draft["metadata"], "resourceVersion": str(version)}}))


def loaded(resource: str, body: bytes) -> StoredObject:
    """The object whose text this is."""
    header = msgspec.json.decode(body, type=_Header)
    return StoredObject(
        resource=resource,
        version=int(header.metadata.resource_version),
        api_version=header.api_version,
        meta=header.metadata,
        body=body,
    )


def same(one: JSON, other: JSON) -> bool:
    return _encode(one) == _encode(other)


def value_at(document: JSON, path: str) -> str:
    """The text of the field at a dotted path; empty when there is none, as in a field selector."""
    value: Any = document
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
