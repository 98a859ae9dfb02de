"""From the server's JSON to models, one object at a time: one that does not fit is left out, not all."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import Undecodable
from holdfast.cluster.protocol import Resource
from holdfast.cluster.whole import decoder_for

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=Object)
S = TypeVar("S", bound=Struct)

OnUndecodable: TypeAlias = Callable[[str], None]


class ListMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Struct, frozen=True, kw_only=True):
    """One answer to a list. Its items stay raw, so that never all of them are plain dicts at once."""

    metadata: ListMeta
    items: list[Raw] | None = None


class WatchLine(Struct, frozen=True, kw_only=True):
    """One line of a watch."""

    type: str
    object: Raw


class HeadMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    namespace: str = ""
    name: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class ObjectHeader(Struct, frozen=True, kw_only=True):
    """What even a bookmark, or an object that does not fit its model, has."""

    metadata: HeadMeta = HeadMeta()


def decode(model: type[S], data: bytes | Raw, tried: str) -> S:
    try:
        return decoder_for(model)(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Undecodable(f"{tried}: the answer does not fit {model.__name__}: {error}") from None


class LenientDecoder:
    """Decodes what a list or watch brings; what does not fit is logged and counted and is None."""

    def __init__(self, on_undecodable: OnUndecodable | None = None) -> None:
        self._on_undecodable = on_undecodable

    def object(self, resource: Resource[T], raw: Raw, tried: str) -> T | None:
        try:
            return decode(resource.model, raw, tried)
        except Undecodable as error:
            log.error("object left out", resource=str(resource), object=_key(raw), error=str(error))
            if self._on_undecodable:
                self._on_undecodable(str(resource))
            return None


def _key(raw: Raw) -> str:
    try:
        metadata = decode(ObjectHeader, raw, "").metadata
    except Undecodable:
        return "unknown"
    return str(Key(metadata.namespace, metadata.name))
