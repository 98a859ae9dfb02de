"""The local copy of a resource, typed and indexed, that reconciles read instead of asking the server."""

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar

from holdfast.api.meta import Key, Object

T = TypeVar("T", bound=Object)

Indexer: TypeAlias = Callable[[T], Iterable[str]]


class Store(Generic[T]):
    """Objects by key and by index. The objects are frozen: what was read stays what it was."""

    def __init__(self, indexes: Mapping[str, Indexer[T]] | None = None) -> None:
        self._objects: dict[Key, T] = {}
        self._indexers: dict[str, Indexer[T]] = {}
        self._indexes: dict[str, dict[str, dict[Key, T]]] = {}
        self._versions: dict[str, str] = {}
        for name, indexer in (indexes or {}).items():
            self.index(name, indexer)

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def list(self, namespace: str = "") -> builtins.list[T]:
        return [obj for key, obj in self._objects.items() if namespace in ("", key.namespace)]

    def by(self, index: str, value: str) -> builtins.list[T]:
        return list(self._indexes[index].get(value, {}).values())

    def keys(self, namespace: str = "") -> builtins.list[Key]:
        return [key for key in self._objects if namespace in ("", key.namespace)]

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def resource_version(self, namespace: str = "") -> str:
        """How far the copy of this namespace has come; "" when no watch covers it.

        Each watch has its own version: one that covers all namespaces is kept under "".
        """
        return self._versions.get("") or self._versions.get(namespace, "")

    def index(self, name: str, indexer: Indexer[T]) -> None:
        """Keep one more index; two users of a store may ask for the same one."""
        if self._indexers.setdefault(name, indexer) is not indexer:
            raise ValueError(f"the index {name!r} is there already with another meaning")
        self._indexes[name] = {}
        for key, obj in self._objects.items():
            self._enter(self._indexes[name], key, obj, indexer(obj))

    def put(self, obj: T) -> T | None:
        """Take in a new state; returns the one before."""
        key = obj.metadata.key
        # Every index is asked before anything changes, so that one that raises leaves the store whole.
        entries = [(self._indexes[name], tuple(indexer(obj))) for name, indexer in self._indexers.items()]
        old = self.remove(key)
        self._objects[key] = obj
        for index, values in entries:
            self._enter(index, key, obj, values)
        return old

    def remove(self, key: Key) -> T | None:
        old = self._objects.pop(key, None)
        if old is not None:
            for name, indexer in self._indexers.items():
                self._leave(self._indexes[name], key, indexer(old))
        return old

    def set_resource_version(self, resource_version: str, namespace: str = "") -> None:
        """The watch of `namespace` ("" for all) has come this far."""
        self._versions[namespace] = resource_version

    @staticmethod
    def _enter(index: dict[str, dict[Key, T]], key: Key, obj: T, values: Iterable[str]) -> None:
        for value in values:
            index.setdefault(value, {})[key] = obj

    @staticmethod
    def _leave(index: dict[str, dict[Key, T]], key: Key, values: Iterable[str]) -> None:
        for value in values:
            members = index.get(value, {})
            members.pop(key, None)
            if not members:
                index.pop(value, None)
