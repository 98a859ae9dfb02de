"""Decodes responses of the API server: error responses as exceptions with hints, objects as models."""

from collections.abc import Callable
from http import HTTPStatus
from typing import TypeAlias, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from holdfast.api.meta import Key, Object
from holdfast.api.schema.violations import Cause
from holdfast.cluster import errors
from holdfast.cluster.errors import ClusterError, Invalid, Undecodable
from holdfast.cluster.protocol import Resource
from holdfast.cluster.resources import decoder_for


class StatusCause(Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct, frozen=True, kw_only=True):
    causes: tuple[StatusCause, ...] = ()


class Status(Struct, frozen=True, kw_only=True):
    """The fields of metav1.Status that are used here."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_decoder = msgspec.json.Decoder(Status)

_LONGEST = 1200  # of a server message, in characters

_BY_REASON: dict[str, type[ClusterError]] = {
    "AlreadyExists": errors.AlreadyExists,
    "Expired": errors.Expired,
    "Gone": errors.Expired,
}
_BY_CODE: dict[int, type[ClusterError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Expired,
    429: errors.TooManyRequests,
}


def parse_status(body: bytes) -> Status | None:
    """The Status of an error response; None for other bodies, as from a proxy or for an unknown path."""
    try:
        status = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return status if status.kind == "Status" else None


def error_from_status(
    tried: str, *, code: int, body: bytes, source: str, retry_after_s: float | None = None
) -> ClusterError:
    """The error for a response of 300 and above, or for the ERROR event of a watch."""
    status = parse_status(body)
    message = f"{tried}: {_message_with_hint(code, status, source)}"
    if code == 422:
        return Invalid(message, causes=_causes(status))
    kind = _BY_REASON.get(status.reason if status else "") or _BY_CODE.get(code)
    if kind is None:
        kind = errors.BadRequest if 400 <= code < 500 else errors.ServerError
    return kind(message, code=code, retry_after_s=retry_after_s)


def _causes(status: Status | None) -> tuple[Cause, ...]:
    causes = status.details.causes if status and status.details else ()
    return tuple(Cause(cause.field, cause.message, cause.reason) for cause in causes)


def _message_with_hint(code: int, status: Status | None, source: str) -> str:
    message = _shortened(status.message) if status else ""
    match code:
        case 401:
            return (
                "the server does not accept who we are: the token or certificate is wrong or has expired: sign in "
                f"again, or renew it in {source}"
            )
        case 403:
            # A quota, a policy or a terminating namespace returns 403 too, and no role helps there.
            lacks_right = "is forbidden: " not in message or " cannot " in message
            hint = ": allow it with a Role or ClusterRole" if lacks_right else ""
            return f"not permitted: {message or 'no reason given'}{hint}"
        case 404 if status is None:
            return "the server does not serve this kind"
        case _ if 300 <= code < 400:
            return f"answered {_named(code)} instead of doing so: is the server in {source} an API server?"
    return message or f"the server answered {_named(code)}"


def _shortened(message: str) -> str:
    """One line. The message about a rejected patch quotes the whole object first, and ends with the problem."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 4]} … {line[-_LONGEST * 3 // 4 :]}"


def _named(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


# JSON to models, one object at a time: an undecodable object is skipped without losing the others.

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=Object)
S = TypeVar("S", bound=Struct)

OnUndecodable: TypeAlias = Callable[[str], None]


class ListMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Struct, frozen=True, kw_only=True):
    """One page of a list. The items stay raw, so that never all items are plain dicts at once."""

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
    """The metadata that even a bookmark or an undecodable object has."""

    metadata: HeadMeta = HeadMeta()


def decode(model: type[S], data: bytes | Raw, tried: str) -> S:
    try:
        return decoder_for(model)(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Undecodable(f"{tried}: the answer does not fit {model.__name__}: {error}") from None


class LenientDecoder:
    """Decodes the objects of a list or watch; an undecodable object is logged and counted, and becomes None."""

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
