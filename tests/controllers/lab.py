"""One namespace with objects of one kind, written and seen as a user writes and sees them."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from holdfast.api.core.objects import Job, Pod
from holdfast.api.meta import Key, Object
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.cluster.resources import EVENTS, JOBS, PODS
from tests.contract.waiting import gone, until
from tests.control_plane.waiting import eventually

T = TypeVar("T", bound=Object)


def seen_as(model: type[T], resource: Resource[Any]) -> Resource[T]:
    """A kind, read as a model that is handier for a test."""
    return Resource(
        group=resource.group, version=resource.version, kind=resource.kind, plural=resource.plural, model=model
    )


class ControllerLab(Generic[T]):
    """Where a test names no object, its first one is meant."""

    def __init__(self, cluster: Cluster, namespace: str, kind: Resource[T], first: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.kind = kind
        self.first = first

    def key(self, name: str = "") -> Key:
        return Key(self.namespace, name or self.first)

    async def create(self, spec: JSON, name: str = "", *, labels: Mapping[str, str] | None = None) -> T:
        body = {"metadata": {"name": name or self.first, "labels": dict(labels or {})}, "spec": spec}
        return await self.cluster.create(self.kind, body, namespace=self.namespace)

    async def get(self, name: str = "") -> T:
        return await self.cluster.get(self.kind, self.key(name))

    async def until(self, holds: Callable[[T], object], what: str, name: str = "") -> T:
        """The object, once it is there and the condition holds for it."""
        return await until(self.cluster, self.kind, self.key(name), holds, what)

    async def patch(self, name: str = "", **spec: Any) -> T:
        return await self.cluster.patch(self.kind, self.key(name), {"spec": spec})

    async def delete(self, name: str = "") -> None:
        await self.cluster.delete(self.kind, self.key(name))

    async def gone(self, name: str = "") -> None:
        await gone(self.cluster, self.kind, self.key(name))

    async def job(self, name: str) -> Job:
        """The Job of that name, once it is there."""
        return await until(self.cluster, JOBS, self.key(name), bool, "is there")

    async def jobs(self) -> dict[str, Job]:
        return {job.metadata.name: job for job in (await self.cluster.list(JOBS, namespace=self.namespace)).items}

    async def pods(self) -> tuple[Pod, ...]:
        return (await self.cluster.list(PODS, namespace=self.namespace)).items

    async def event(self, reason: str, name: str = "", *, containing: str = "") -> str:
        """The message of the event of that reason about the object, once there is one."""
        about = f"involvedObject.name={name or self.first},reason={reason}"

        async def look() -> list[str]:
            events = await self.cluster.list(EVENTS, namespace=self.namespace, fields=about)
            return [event.message for event in events.items if containing in event.message]

        return (await eventually(look, bool, what=f"event {reason} of {name or self.first}"))[0]

    async def event_reasons(self, name: str = "", *, last: str = "") -> list[str]:
        """Of all events about the object, by name, once there is one of the last reason (any, if not given)."""
        about = f"involvedObject.name={name or self.first}"

        async def look() -> list[str]:
            found = await self.cluster.list(EVENTS, namespace=self.namespace, fields=about)
            return sorted(event.reason for event in found.items)

        def enough(reasons: list[str]) -> bool:
            return last in reasons if last else bool(reasons)

        return await eventually(look, enough, what=f"event {last} of {name or self.first}")
