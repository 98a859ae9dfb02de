"""What a controller is made of: whom it reconciles, and whose changes make it look."""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.protocol import Resource
from holdfast.runtime.informer import Informers
from holdfast.runtime.result import Result, TerminalError
from holdfast.runtime.writes import WriteTracker

T = TypeVar("T", bound=Object)
U = TypeVar("U", bound=Object)

Mapper: TypeAlias = Callable[[T], Iterable[Key]]


class Reconciler(Protocol):
    """Makes the world look as one object says. It is called for a key, whatever it was that changed."""

    async def reconcile(self, key: Key) -> Result:
        """Observe, decide, apply, write status; the object may be gone. Raises `TerminalError` for what stays wrong."""
        ...

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """Tell the object's owner, in status and an event, what no retry can mend."""
        ...


class EventSource(Protocol):
    """Where news comes from."""

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        """Have `add` called with every key that some news concerns."""
        ...


class Watch(Struct, Generic[T], frozen=True):
    """The changes of a resource, and the keys that each object concerns: before the change and after it."""

    resource: Resource[T]
    map: Mapper[T]

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def changed(old: T | None, new: T | None) -> None:
            for obj in (old, new):
                for key in self.map(obj) if obj is not None else ():
                    add(key)

        informers.of(self.resource).handlers.append(changed)


class Controller(Struct, Generic[T], frozen=True):
    """One kind and its reconciler. `writer` is the one that the reconciler writes through."""

    name: str
    resource: Resource[T]
    reconciler: Reconciler
    writer: WriteTracker
    watches: tuple[EventSource, ...] = ()


def owned_by(owner: Resource[U]) -> Mapper[Object]:
    """The owner that controls an object, when it is of this kind; its version may differ, its group may not."""

    def owners(obj: Object) -> Iterable[Key]:
        reference = obj.metadata.controller
        if reference and reference.kind == owner.kind and _group(reference.api_version) == owner.group:
            # Owners live in the namespace of what they own, or in none.
            yield Key(obj.metadata.namespace if owner.namespaced else "", reference.name)

    return owners


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
