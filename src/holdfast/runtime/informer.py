"""One store per resource, shared by everyone who reads it."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Generic, TypeVar, cast

from holdfast.api.meta import Object
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.runtime.cache import Indexer, Store
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.reflector import Handler, Reflector

T = TypeVar("T", bound=Object)


class Informer(Generic[T]):
    """A store, the reflectors that fill it (one for all namespaces, or one for each), and who wants to know."""

    def __init__(
        self, cluster: Cluster, resource: Resource[T], namespaces: tuple[str, ...], *, metrics: Metrics, random: Random
    ) -> None:
        self.store: Store[T] = Store()
        self.handlers: list[Handler[T]] = []
        self._resource = resource
        self._labels: str | None = None
        scopes = namespaces if resource.namespaced and namespaces else ("",)
        self.reflectors = tuple(
            Reflector(
                cluster,
                resource,
                self.store,
                handlers=self.handlers,
                metrics=metrics,
                random=random,
                namespace=namespace,
            )
            for namespace in scopes
        )

    def select(self, labels: str) -> None:
        """Keep only objects with these labels; all users of the store have to agree on them."""
        if self._labels not in (None, labels):
            raise ValueError(f"the store of {self._resource} is used with labels {self._labels!r} and {labels!r}")
        self._labels = labels
        for reflector in self.reflectors:
            reflector.labels = labels


class Informers:
    """The informers of one operator. All are asked for before the first list."""

    def __init__(self, cluster: Cluster, namespaces: tuple[str, ...], *, metrics: Metrics, random: Random) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._metrics = metrics
        self._random = random
        self._informers: dict[Resource[Object], Informer[Object]] = {}
        self._sealed = False

    def of(self, resource: Resource[T]) -> Informer[T]:
        """The informer of `resource`, made when first asked for."""
        key = cast("Resource[Object]", resource)
        if key not in self._informers:
            if self._sealed:
                raise RuntimeError(f"{resource} is asked for after the start; declare its store before")
            made = Informer(self._cluster, resource, self._namespaces, metrics=self._metrics, random=self._random)
            self._informers[key] = cast("Informer[Object]", made)
        return cast("Informer[T]", self._informers[key])

    def store(
        self, resource: Resource[T], indexes: Mapping[str, Indexer[T]] | None = None, *, labels: str = ""
    ) -> Store[T]:
        """The shared store of `resource`, with these indexes among others; `labels` leaves out what does not match."""
        informer = self.of(resource)
        informer.select(labels)
        for name, indexer in (indexes or {}).items():
            informer.store.index(name, indexer)
        return informer.store

    def find(self, resource: Resource[T]) -> Store[T] | None:
        """The store of `resource` if somebody reads it."""
        informer = self._informers.get(cast("Resource[Object]", resource))
        return cast("Store[T]", informer.store) if informer else None

    async def sync(self) -> None:
        """List everything once; of several failures the one of the first resource is raised."""
        self._sealed = True
        failures = await asyncio.gather(*(reflector.sync() for reflector in self._reflectors()), return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors():
                group.create_task(reflector.run())

    def unready_reasons(self) -> list[str]:
        """A line for each reflector that is not in touch with the cluster."""
        return [reflector.unready_reason for reflector in self._reflectors() if reflector.unready_reason]

    def _reflectors(self) -> list[Reflector[Object]]:
        return [reflector for informer in self._informers.values() for reflector in informer.reflectors]
