"""The interface of a cluster for the rest of holdfast.

Two engines implement it: `kubernetes` over HTTP, and an embedded engine in this process. Where the engines differ, the
real API server is right. No code above this module knows which engine it uses.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from holdfast.api.meta import Key, Object

T = TypeVar("T", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)

# The body of a write: a model, or plain JSON. apiVersion and kind are added from the resource.
Body: TypeAlias = Struct | Mapping[str, Any]
JSON: TypeAlias = dict[str, Any]


class Resource(Struct, Generic[T], frozen=True, kw_only=True):
    """A kind as the API serves it, and the model for its objects.

    Decoding drops all other fields: a model has only the fields that the cache needs.
    """

    group: str
    version: str
    kind: str
    plural: str
    model: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Listing(Struct, Generic[T], frozen=True):
    """All objects at one moment, and the resourceVersion from which to watch."""

    items: tuple[T, ...]
    resource_version: str


class Change(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Event(Struct, Generic[T], frozen=True):
    """One event of a watch. A bookmark carries no object, only the resourceVersion that the watch has reached."""

    change: Change
    resource_version: str
    object: T | None


class Propagation(StrEnum):
    """What happens to the dependents of the deleted object."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class DeleteOptions(Struct, frozen=True, kw_only=True):
    """Which object is meant, and how it goes: an object with another uid or version is a `Conflict`."""

    uid: str = ""
    resource_version: str = ""
    propagation: Propagation = Propagation.BACKGROUND
    grace_period_s: int | None = None
    """None for the object's own grace period."""


DELETE = DeleteOptions()


class Identity(Struct, frozen=True, kw_only=True):
    """The owner of a token. Unknown fields are "": only a token that is bound to a pod has a pod name."""

    username: str
    namespace: str = ""
    service_account: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    node_name: str = ""
    """The node of that pod (KEP-4193)."""
    expires_at: datetime | None = None


class Cluster(Protocol):
    """Every method raises a `ClusterError`; namespace is "" for cluster-scoped kinds and for all namespaces."""

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """All objects, consistently; `labels` and `fields` are selectors in kubectl's syntax."""
        ...

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> AbstractAsyncContextManager[AsyncIterator[Event[T]]]:
        """Every change after `resource_version`, in order, until the server ends the stream.

        Raises `Expired` when the server has compacted the version. After a normal end of the stream, the caller
        continues from the last received version.
        """
        ...

    async def get(self, resource: Resource[T], key: Key) -> T: ...

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        """Create the object; with metadata.generateName the server completes the name. Unknown fields are rejected."""
        ...

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        """Replace the object by `body`; metadata.resourceVersion in `body` guards against a lost update."""
        ...

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        """Merge (RFC 7386) into all but status. A resourceVersion in the patch is a precondition (`Conflict`)."""
        ...

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        """Like `patch`, only for status; a uid in the patch is no precondition here."""
        ...

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        """Delete the object, if it is the one that `options` name."""
        ...

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes: ...

    def follow_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The log and everything that is appended, in chunks of any size, until the container has ended."""
        ...

    async def review_token(self, token: str, audience: str) -> Identity | None:
        """The identity behind a token; None unless the token is valid now and was issued for that audience."""
        ...

    async def close(self) -> None: ...
