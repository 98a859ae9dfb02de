"""What a cluster may answer instead of doing as asked."""

from holdfast.api.schema.violations import Cause  # a part of Invalid
from holdfast.errors import HoldfastError


class ClusterError(HoldfastError):
    """The cluster refused, or could not be asked; `code` is the HTTP status, 0 when there was no answer."""

    code = 0

    def __init__(self, message: str, *, code: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.retry_after_s = retry_after_s


class BadRequest(ClusterError):
    """The request itself makes no sense to the server."""

    code = 400


class Unauthorized(ClusterError):
    """The server does not know who asks: the credentials are missing, wrong or expired."""

    code = 401


class Forbidden(ClusterError):
    """The server knows who asks, and they may not."""

    code = 403


class NotFound(ClusterError):
    """The object, or its kind, is not there."""

    code = 404


class Conflict(ClusterError):
    """The object is not the one that was looked at: its version or uid has changed."""

    code = 409


class AlreadyExists(ClusterError):
    """An object of that name is there already."""

    code = 409


class Expired(ClusterError):
    """The version asked for is no longer kept; list again."""

    code = 410


class Invalid(ClusterError):
    """The object breaks its schema or rules."""

    code = 422

    def __init__(self, message: str, *, causes: tuple[Cause, ...] = (), code: int | None = None) -> None:
        super().__init__(message, code=code)
        self.causes = causes


class TooManyRequests(ClusterError):
    """The server asks to come back later, and the client's patience is used up."""

    code = 429


class ServerError(ClusterError):
    """The server failed."""

    code = 500


class Unreachable(ClusterError):
    """No answer: not connected, cut off, or timed out."""


class Undecodable(ClusterError):
    """The object that came back does not fit its model."""


class NotLeading(ClusterError):
    """A write was held back because this process may no longer be the leader."""


class Misconfigured(ClusterError):
    """How to reach the cluster is not said, or makes no sense."""
