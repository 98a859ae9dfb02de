"""A controller: the kind it reconciles, the events that trigger a reconcile, and the workers that run it."""

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Generic, Protocol, TypeAlias, TypeVar

import structlog
from msgspec import Struct

from holdfast.api.core.objects import Node
from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import AlreadyExists, ClusterError, Conflict, NotLeading
from holdfast.cluster.protocol import Resource
from holdfast.cluster.resources import NODES
from holdfast.errors import HoldfastError
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.queue import Queue
from holdfast.runtime.read_your_writes import WriteTracker

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# The result of a reconcile: when to reconcile the object again.


class Done(Struct, frozen=True):
    """Nothing to do until something changes."""


class RequeueAfter(Struct, frozen=True):
    """Reconcile again after this time even if nothing changes."""

    seconds: float


Result: TypeAlias = Done | RequeueAfter


class TerminalError(HoldfastError):
    """An error that no retry can fix: it is reported in status and an Event, and waits for the object to change."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


T = TypeVar("T", bound=Object)
U = TypeVar("U", bound=Object)

Mapper: TypeAlias = Callable[[T], Iterable[Key]]


class Reconciler(Protocol):
    """Brings the cluster to the state that one object specifies. It is called for a key, whatever has changed."""

    async def reconcile(self, key: Key) -> Result:
        """Observe, decide, apply, write status; the object may be gone. Raises `TerminalError` if no retry helps."""
        ...

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """Report to the object's owner, in status and an Event, what no retry can fix."""
        ...


class EventSource(Protocol):
    """A source of events that trigger reconciles."""

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        """Have `add` called with every key that an event concerns."""
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


class NodeReadinessWatch(Struct, frozen=True):
    """An event source: the keys that a node concerns, when the node is lost or comes back."""

    keys_on_node: Callable[[str], Iterable[Key]]

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def changed(old: Node | None, new: Node | None) -> None:
            node = new or old
            if node is not None and (old is not None and old.is_ready) != (new is not None and new.is_ready):
                for key in self.keys_on_node(node.metadata.name):
                    add(key)

        informers.of(NODES).handlers.append(changed)


class Controller(Struct, Generic[T], frozen=True):
    """One kind and its reconciler. The reconciler writes through `writer`."""

    name: str
    resource: Resource[T]
    reconciler: Reconciler
    writer: WriteTracker
    watches: tuple[EventSource, ...] = ()


def owned_by(owner: Resource[U]) -> Mapper[Object]:
    """The controlling owner of an object, when the owner is of this kind; its version may differ, its group may not."""

    def owners(obj: Object) -> Iterable[Key]:
        reference = obj.metadata.controller
        if reference and reference.kind == owner.kind and _group(reference.api_version) == owner.group:
            # An owner is in the namespace of the owned object, or cluster-scoped.
            yield Key(obj.metadata.namespace if owner.namespaced else "", reference.name)

    return owners


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


# Workers take keys from a controller's queue to its reconciler. Only they interpret the result.

# The change that a key waits for usually requeues the key; this is for stores whose changes concern no key.
STALE_RECHECK_S = 1.0
# Far beyond the client's own timeouts: a hanging reconcile must not block its key and worker for ever.
RECONCILE_TIMEOUT_S = 300.0


class ControllerWorkers:
    """The workers of one controller, and the queue between its events and the workers."""

    def __init__(self, controller: Controller[T], informers: Informers, *, metrics: Metrics, random: Random) -> None:
        self.name = controller.name
        self._reconciler = controller.reconciler
        self._writer = controller.writer
        self._metrics = metrics
        self._random = random
        self.queue: Queue[Key] = Queue(random)
        self._keys = informers.of(controller.resource).store.keys
        own_kind = Watch(controller.resource, lambda obj: (obj.metadata.key,))
        for source in (own_kind, *controller.watches):
            source.attach(informers, self.queue.add)
        metrics.track_queue(controller.name, lambda: self.queue.depth)

    async def run(self, count: int) -> None:
        """Work until the queue is shut down and the running reconciles have ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._work())

    async def resync(self, interval_s: float) -> None:
        """Reconcile every object once per interval, each at a random moment, in case an event was lost."""
        while True:
            await asyncio.sleep(interval_s)
            for key in self._keys():
                self.queue.add_after(key, self._random.uniform(0, interval_s))

    async def _work(self) -> None:
        while (key := await self.queue.get()) is not None:
            try:
                if self._writer.is_cache_stale(key):
                    self.queue.add_after(key, STALE_RECHECK_S)
                else:
                    await self._reconcile(key)
            finally:
                self.queue.done(key)

    async def _reconcile(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await self._attempt(key)
        self._metrics.reconciled(self.name, result, loop.time() - began)

    async def _attempt(self, key: Key) -> str:
        try:
            async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                return await self._run(key)
        except NotLeading:
            raise  # another process may lead: this process has to end
        except (Conflict, AlreadyExists) as error:
            self._retry(key)
            log.debug("the cache was behind, trying again", controller=self.name, key=str(key), reason=str(error))
            return "conflict"
        except ClusterError as error:
            # The answer of the cluster is enough; in an outage tracebacks would only bury the answer.
            log.warning("reconcile failed", reason=str(error), **self._retry_fields(key))
            return "error"
        except Exception:
            log.exception("reconcile failed", **self._retry_fields(key))
            return "error"

    async def _run(self, key: Key) -> str:
        try:
            result = await self._reconciler.reconcile(key)
        except TerminalError as error:
            await self._reconciler.report_terminal_error(key, error)
            self.queue.forget(key)
            log.info("no retry until the object changes", controller=self.name, key=str(key), reason=error.reason)
            return "terminal"
        self.queue.forget(key)
        if isinstance(result, RequeueAfter):
            self.queue.add_after(key, result.seconds)
            return "requeue"
        return "done"

    def _retry_fields(self, key: Key) -> dict[str, object]:
        """Retry the key later; returns the fields for the log."""
        delay_s = self._retry(key)
        failures = self.queue.failures(key)
        return {"controller": self.name, "key": str(key), "failures": failures, "retry_in_s": round(delay_s, 1)}

    def _retry(self, key: Key) -> float:
        self._metrics.retried(self.name)
        return self.queue.retry(key)
