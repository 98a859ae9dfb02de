"""The small surface that the rest of holdfast knows of a cluster.

Two engines serve it: `kubernetes` over HTTP, and an embedded one in this process. Where they differ, the real API
server is right. Nothing above this module knows which of them it talks to.
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

# What may be written: a model, or plain JSON. apiVersion and kind are added from the resource.
Body: TypeAlias = Struct | Mapping[str, Any]
JSON: TypeAlias = dict[str, Any]


class Resource(Struct, Generic[T], frozen=True, kw_only=True):
    """A kind as the API serves it, and the model that its objects are decoded into.

    Decoding keeps only the model's fields: a model names what the cache needs and nothing more.
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
    """All objects at one moment, and the version to watch on from."""

    items: tuple[T, ...]
    resource_version: str


class Change(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Event(Struct, Generic[T], frozen=True):
    """One step of a watch. A bookmark carries no object, only how far the watch has come."""

    change: Change
    resource_version: str
    object: T | None


class Propagation(StrEnum):
    """What happens to what the deleted object owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Identity(Struct, frozen=True, kw_only=True):
    """Whom a token belongs to. What it does not say is "": only a token that is bound to a pod names one."""

    username: str
    namespace: str = ""
    service_account: str = ""
    pod_name: str = ""
    pod_uid: str = ""
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

        Raises `Expired` when the version is no longer kept. A stream that merely ends is watched on from the last
        version seen.
        """
        ...

    async def get(self, resource: Resource[T], key: Key) -> T: ...

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        """Make the object; with metadata.generateName the server completes the name. Unknown fields are refused."""
        ...

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        """Put `body` in the object's place; metadata.resourceVersion in it guards against a lost update."""
        ...

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        """Merge (RFC 7386) into all but status. metadata.resourceVersion in the patch guards it (`Conflict`)."""
        ...

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        """The same for status and nothing else; a uid in the patch guards nothing here."""
        ...

    async def delete(
        self,
        resource: Resource[T],
        key: Key,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
        grace_period_s: int | None = None,
    ) -> None:
        """Delete exactly the object that was looked at: another uid or version there is a `Conflict`."""
        ...

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes: ...

    def follow_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """What the log holds and what is added to it, in pieces of any size, until the container has ended."""
        ...

    async def review_token(self, token: str, audience: str) -> Identity | None:
        """Who shows this token, if it is valid now and was given out for that audience; otherwise None."""
        ...

    async def close(self) -> None: ...
