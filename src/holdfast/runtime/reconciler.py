"""The reconcile of every kind: observe, decide, apply, status."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct, structs

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound, NotLeading
from holdfast.cluster.protocol import DeleteOptions, Resource
from holdfast.cluster.resources import merge_patch
from holdfast.decisions import Snapshot
from holdfast.runtime.controller import Done, Reconciler, RequeueAfter, Result, TerminalError
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Store
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker

# An obstacle (a name, a quota, a missing right) can't be watched, so it is checked this often.
OBSTACLE_RECHECK_S = 30.0

T = TypeVar("T", bound=Object)
S = TypeVar("S", bound=Struct)
ObjectT_contra = TypeVar("ObjectT_contra", bound=Object, contravariant=True)
StatusT_contra = TypeVar("StatusT_contra", bound=Struct, contravariant=True)
SnapshotT = TypeVar("SnapshotT", bound=Snapshot)
ActionT = TypeVar("ActionT")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EventMessage(Struct, frozen=True):
    reason: str
    message: str
    warning: bool = False


class KindMetrics(Protocol[ObjectT_contra, StatusT_contra]):
    """The metrics of one kind."""

    def status_written(self, obj: ObjectT_contra, status: StatusT_contra, /) -> None:
        """`status` replaced the status in `obj`. Each transition is written, and so counted, once."""
        ...

    def reconciled(self, key: Key, result: str, seconds: float, error: BaseException | None = None) -> None:
        """`result` is done, requeue, conflict, terminal, error or not_leading; only an error has its exception."""
        ...


class KindReconciler(ABC, Generic[T, S, SnapshotT, ActionT]):
    """The steps that all kinds share. A kind says what it observes, decides and applies, and the status that follows.

    T is the kind, S its status, SnapshotT what it observes, and ActionT what it decides.
    """

    def __init__(
        self,
        resource: Resource[T],
        store: Store[T],
        writer: WriteTracker,
        events: Recorder,
        metrics: KindMetrics[T, S],
        *,
        now: Now,
    ) -> None:
        self._resource = resource
        self._store = store
        self._writer = writer
        self._events = events
        self._metrics = metrics
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        now, obj = self._now(), self._store.get(key)
        if obj is None or obj.metadata.deletion_timestamp:
            return await self.end(key, obj, now)
        return await self.reconcile_object(obj, now)

    async def reconcile_object(self, obj: T, now: datetime) -> Result:
        """Observe, decide, apply, status. Kinds whose end takes as long as their life call it from `end`, too."""
        snapshot = await self.observe(obj, now)
        for action in self.decide(snapshot, now):
            applied = await self._applied(action, snapshot, obj, now)
            if applied is None:
                return Done()
            status = self.next_status(applied, action, now)
            if self.write_can_wait(obj, status, now):
                obj = structs.replace(self.object_of(applied), status=_status_of(obj))
            else:
                obj = await self._write_status(self.object_of(applied), obj, status)
            snapshot = self.with_object(applied, obj)
            self.recorded(snapshot)
        return await self._next_reconcile(snapshot, action, now)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        now, obj = self._now(), self._store.get(key)
        if obj is None or obj.metadata.deletion_timestamp:
            return
        snapshot = structs.replace(await self.observe(obj, now), rejected_reason=str(error))
        if not snapshot.finished:
            action = self.decide(snapshot, now)[0]
            obj = await self._write_status(self.object_of(snapshot), obj, self.next_status(snapshot, action, now))
            self.recorded(self.with_object(snapshot, obj))

    # What a kind supplies.

    @abstractmethod
    async def observe(self, obj: T, now: datetime) -> SnapshotT:
        """Everything that the decision needs."""

    @abstractmethod
    def decide(self, snapshot: SnapshotT, now: datetime) -> tuple[ActionT, ...]:
        """All that is to be done, in order; at least one action. Pure.

        The status of each action is written before the next action: what status must have before something is done, so
        that a crash in between changes nothing, is an action of its own.
        """

    @abstractmethod
    async def apply(self, action: ActionT, snapshot: SnapshotT, now: datetime) -> SnapshotT | None:
        """Carry the action out, and return what is observed then. It may be repeated after a crash.

        None when the decision does not hold, since the caches are behind: the next event decides anew.
        """

    @abstractmethod
    def next_status(self, snapshot: SnapshotT, action: ActionT, now: datetime) -> S:
        """The status after the action; equal to the present one when nothing has changed. Pure."""

    @abstractmethod
    def object_of(self, snapshot: SnapshotT) -> T:
        """The object in the snapshot, with what the status shows after the observation."""

    @abstractmethod
    def with_object(self, snapshot: SnapshotT, obj: T) -> SnapshotT:
        """The snapshot with the object as it was written."""

    @abstractmethod
    def events_for(self, obj: T, status: S) -> Iterable[EventMessage]:
        """The Events for the transition from the object's status to `status`."""

    @abstractmethod
    def log_fields(self, status: S) -> Mapping[str, object]:
        """What a log line says about the status: a change of these fields is worth a line.

        Without the message, which may end with the last lines of a program: these belong to the user.
        """

    @abstractmethod
    def expiry(self, obj: T) -> datetime | None:
        """When the object is to be deleted, once it is finished."""

    @abstractmethod
    def requeue_in_s(self, snapshot: SnapshotT, action: ActionT, now: datetime) -> Iterator[float]:
        """In how many seconds the decision may differ although no event comes."""

    def write_can_wait(self, obj: T, status: S, now: datetime) -> bool:
        """Whether the object need not show this status yet, since more of the same is to come. It is asked once for
        each status; `requeue_in_s` has to say when it has waited for long enough.
        """
        return False

    def recorded(self, snapshot: SnapshotT) -> None:  # most kinds need nothing here
        """Status is as it should be, whether it had to be written or not."""

    async def end(self, key: Key, obj: T | None, now: datetime) -> Result:
        """The object is gone (`obj` is None) or being deleted."""
        return Done()

    # What all kinds share.

    def session(self, key: Key) -> TrackedClient:
        return self._writer.for_key(key)

    async def _applied(self, action: ActionT, snapshot: SnapshotT, stored: T, now: datetime) -> SnapshotT | None:
        """What was observed is written even if the action can't be carried out."""
        try:
            return await self.apply(action, snapshot, now)
        except NotLeading:
            raise
        except ClusterError:
            seen = self.object_of(snapshot)
            if _status_of(seen) != _status_of(stored):
                await self._write_status(seen, stored, _status_of(seen))
                self.recorded(snapshot)
            raise

    async def _write_status(self, obj: T, stored: T, status: S) -> T:
        """The object with its new status. Nothing is written when nothing differs from what is stored.

        The write is guarded by the version that was read.
        """
        old = _status_of(stored)
        patch = merge_patch(msgspec.to_builtins(old) if old is not None else {}, msgspec.to_builtins(status))
        before = structs.replace(obj, status=old)
        if not patch:
            return before
        body = {"metadata": {"resourceVersion": obj.metadata.resource_version}, "status": patch}
        written = await self.session(obj.metadata.key).patch_status(self._resource, obj.metadata.key, body)
        self._log_transition(obj.metadata.key, old, status)
        self._metrics.status_written(before, status)
        for event in self.events_for(before, status):
            record = self._events.warning if event.warning else self._events.normal
            record(self._resource, before, event.reason, event.message)
        return written

    def _log_transition(self, key: Key, old: S | None, status: S) -> None:
        fields = self.log_fields(status)
        is_same = old is not None and self.log_fields(old) == fields
        (log.debug if is_same else log.info)("status", key=str(key), **fields)

    async def _next_reconcile(self, snapshot: SnapshotT, action: ActionT, now: datetime) -> Result:
        obj = self.object_of(snapshot)
        due = self.expiry(obj) if snapshot.finished else None
        if due is not None and now >= due:
            await self._delete_expired(obj)
            return Done()
        times_s = [max(0.0, seconds) for seconds in self.requeue_in_s(snapshot, action, now)]
        if due is not None:
            times_s.append((due - now).total_seconds())
        if snapshot.blocked_by:
            times_s.append(OBSTACLE_RECHECK_S)
        return RequeueAfter(min(times_s)) if times_s else Done()

    async def _delete_expired(self, obj: T) -> None:
        """Never a later object of the same name."""
        log.info("time to live is over", key=str(obj.metadata.key))
        try:
            await self.session(obj.metadata.key).delete(
                self._resource, obj.metadata.key, DeleteOptions(uid=obj.metadata.uid)
            )
        except (NotFound, Conflict):
            return  # the object is gone already


def _status_of(obj: Object) -> Any:
    """Every kind with a reconciler has a status, which is None before the first write."""
    return getattr(obj, "status")  # noqa: B009  # the base of all objects has none


class InstrumentedReconciler(Generic[T, S]):
    """Counts the reconciles of a reconciler by how they end, and measures them."""

    def __init__(self, reconciler: Reconciler, metrics: KindMetrics[T, S]) -> None:
        self._reconciler = reconciler
        self._metrics = metrics

    async def reconcile(self, key: Key) -> Result:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            result = await self._reconciler.reconcile(key)
        except (Exception, asyncio.CancelledError) as error:  # cancelled: the reconcile exceeded its timeout
            outcome = _outcome(error)
            self._metrics.reconciled(key, outcome, loop.time() - began, error if outcome == "error" else None)
            raise
        self._metrics.reconciled(key, "requeue" if isinstance(result, RequeueAfter) else "done", loop.time() - began)
        return result

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        await self._reconciler.report_terminal_error(key, error)


def _outcome(error: BaseException) -> str:
    match error:
        case NotLeading():
            return "not_leading"
        case Conflict() | AlreadyExists():
            return "conflict"
        case TerminalError():
            return "terminal"
    return "error"
