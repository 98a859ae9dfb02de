"""What the engine knows of a kind: how it is served, what its objects look like, and what is special about it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Protocol

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.api.schema import Schema
from holdfast.cluster.embedded.names import dns_subdomain_problems
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON

METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})


class ObjectReader(Protocol):
    """What a new object may depend on."""

    rng: Random

    def document(self, resource: str, key: Key) -> JSON | None:
        """Another object."""
        ...

    def documents(self, resource: str) -> Iterator[JSON]:
        """All objects of a kind."""
        ...


def _nothing_to_do(_draft: JSON) -> None:
    pass


def _nothing_to_make(_draft: JSON, _around: ObjectReader) -> None:
    pass


def _nothing_to_carry(_draft: JSON, _old: JSON) -> None:
    pass


def _nothing_wrong(_draft: JSON, _old: JSON | None) -> Iterable[Cause]:
    return ()


class KindHooks(Struct, frozen=True, kw_only=True):
    """Where a kind differs from the others. The functions change the draft that they are given."""

    name_problems: Callable[[str], list[str]] = dns_subdomain_problems
    fields: frozenset[str] = METADATA_FIELDS
    counts_generations: bool = False
    keeps_status_of_creation: bool = False
    replaced_without_version: bool = True
    # Defaults that a schema can't express, at every write.
    set_defaults: Callable[[JSON], None] = _nothing_to_do
    # What only a new object gets.
    prepare_create: Callable[[JSON, ObjectReader], None] = _nothing_to_make
    # What an update or a status update can't change.
    prepare_update: Callable[[JSON, JSON], None] = _nothing_to_carry
    prepare_status_update: Callable[[JSON, JSON], None] = _nothing_to_carry
    validate: Callable[[JSON, JSON | None], Iterable[Cause]] = _nothing_wrong
    # How long a deleted object is left to end by itself, given the seconds asked for.
    grace_s: Callable[[JSON, int | None], int] | None = None


class ServedKind(Struct, frozen=True, kw_only=True):
    group: str
    kind: str
    plural: str
    namespaced: bool
    schemas: Mapping[str, Schema]
    stored_version: str
    has_status: bool
    custom: bool = False
    special: KindHooks = KindHooks()

    @property
    def resource(self) -> str:
        """The name that objects are filed under and errors speak of: jobs.batch."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version
