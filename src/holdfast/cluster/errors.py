"""Errors of requests to a cluster."""

from holdfast.api.schema.violations import Cause  # a part of Invalid
from holdfast.errors import HoldfastError


class ClusterError(HoldfastError):
    """The cluster rejected a request or was unreachable; `code` is the HTTP status, 0 without a response."""

    code = 0

    def __init__(self, message: str, *, code: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.retry_after_s = retry_after_s


class BadRequest(ClusterError):
    """The server does not understand the request."""

    code = 400


class Unauthorized(ClusterError):
    """The server can't authenticate the client: the credentials are missing, wrong or expired."""

    code = 401


class Forbidden(ClusterError):
    """The client is authenticated, but lacks permission."""

    code = 403


class NotFound(ClusterError):
    """The object or its kind does not exist."""

    code = 404


class Conflict(ClusterError):
    """The object differs from what the caller has read: its version or uid has changed."""

    code = 409


class AlreadyExists(ClusterError):
    """An object of that name exists already."""

    code = 409


class Expired(ClusterError):
    """The server has compacted the requested version; list again."""

    code = 410


class Invalid(ClusterError):
    """The object breaks its schema or rules."""

    code = 422

    def __init__(self, message: str, *, causes: tuple[Cause, ...] = (), code: int | None = None) -> None:
        super().__init__(message, code=code)
        self.causes = causes


class TooManyRequests(ClusterError):
    """The server throttles the client, and the retry limit is reached."""

    code = 429


class ServerError(ClusterError):
    """The server failed."""

    code = 500


class Unreachable(ClusterError):
    """No response: connection failed, broken, or timed out."""


class Undecodable(ClusterError):
    """The received object does not fit its model."""


class NotLeading(ClusterError):
    """A write was not sent because this process may no longer be the leader."""


class Misconfigured(ClusterError):
    """The configuration of the cluster connection is missing or invalid."""
