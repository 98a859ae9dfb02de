"""A process that dies at one of its steps: writes to the cluster, and calls that change something in a cloud."""

from typing import Any, TypeVar

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import NotLeading
from holdfast.cluster.protocol import DELETE, Body, Cluster, DeleteOptions, Resource
from holdfast.local.apiserver.server import EmbeddedCluster

T = TypeVar("T", bound=Object)
S = TypeVar("S")


class Process:
    """Step number `at` is the last one: it is not done any more, or it is and nobody hears of it (`after`).

    Without `at` it lives on. `steps` names those that were done.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self._at = at
        self._after = after
        self.steps: list[str] = []
        self.has_died = False

    def before(self, step: str) -> None:
        if self.has_died or (len(self.steps) + 1 == self._at and not self._after):
            self.has_died = True
            raise NotLeading(f"died before {step}")

    def after(self, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) == self._at:
            self.has_died = True
            raise NotLeading(f"died after {step}")


class DyingCluster:
    """The cluster as that process sees it."""

    def __init__(self, cluster: EmbeddedCluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        step = self._begin("create", resource)
        return self._end(step, await self._cluster.create(resource, body, namespace=namespace))

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        step = self._begin("replace", resource)
        return self._end(step, await self._cluster.replace(resource, key, body))

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        step = self._begin("patch", resource)
        return self._end(step, await self._cluster.patch(resource, key, patch))

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        step = self._begin("patch_status", resource)
        return self._end(step, await self._cluster.patch_status(resource, key, patch))

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        step = self._begin("delete", resource)
        await self._cluster.delete(resource, key, options)
        self._end(step, None)

    def _begin(self, verb: str, resource: Resource[Any]) -> str:
        step = f"{verb} {resource.plural}"
        self._process.before(step)
        return step

    def _end(self, step: str, answer: S) -> S:
        self._process.after(step)
        return answer


def seen_by(process: Process, cluster: EmbeddedCluster) -> Cluster:
    dying: Any = DyingCluster(cluster, process)
    found: Cluster = dying
    return found
