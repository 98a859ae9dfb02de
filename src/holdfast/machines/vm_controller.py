"""Keeps the account of the machines made from each SpotInstanceVM, and the template as long as there are any."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct, structs
from prometheus_client import CollectorRegistry

from holdfast.api.machine_ends import is_gone
from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancevm import VM_FINALIZER, SpotInstanceVM, SpotInstanceVMStatus
from holdfast.cluster.errors import NotFound
from holdfast.cluster.resources import SPOT_INSTANCE_VMS
from holdfast.decisions import Snapshot
from holdfast.machines.lifetimes import account
from holdfast.machines.observe import BY_TEMPLATE, MachineCaches
from holdfast.runtime.controller import Done, Result
from holdfast.runtime.events import Recorder
from holdfast.runtime.metrics import ReconcileDurations
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.reconciler import EventMessage, KindReconciler

# Machines change often while they start: their accounts are brought up to date together.
ACCOUNT_INTERVAL_S = 10.0


class TemplateSnapshot(Snapshot, frozen=True, kw_only=True):
    template: SpotInstanceVM
    instances: tuple[ProvisionedInstance, ...] = ()
    wait_s: float = 0.0
    """Until the account may be written again."""

    @property
    def finished(self) -> bool:
        return False


class SetFinalizer(Struct, frozen=True):
    """While machines made from it exist the template stays, and so does their account."""

    is_needed: bool


class WriteAccount(Struct, frozen=True):
    """Status alone."""


Action = SetFinalizer | WriteAccount


def decide(seen: TemplateSnapshot) -> tuple[Action, ...]:
    template = seen.template
    has_finalizer = VM_FINALIZER in template.metadata.finalizers
    is_used = any(not is_gone(each) for each in seen.instances)
    if template.metadata.deletion_timestamp:
        return (SetFinalizer(False),) if has_finalizer and not is_used else (WriteAccount(),)
    return (SetFinalizer(True), WriteAccount()) if is_used and not has_finalizer else (WriteAccount(),)


class SpotInstanceVMMetrics(ReconcileDurations):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "spotinstancevm")

    def status_written(self, template: SpotInstanceVM, status: SpotInstanceVMStatus) -> None:
        return


class SpotInstanceVMReconciler(KindReconciler[SpotInstanceVM, SpotInstanceVMStatus, TemplateSnapshot, Action]):
    def __init__(
        self,
        caches: MachineCaches,
        writer: WriteTracker,
        events: Recorder,
        metrics: SpotInstanceVMMetrics,
        *,
        now: Now,
        interval_s: float = ACCOUNT_INTERVAL_S,
    ) -> None:
        super().__init__(SPOT_INSTANCE_VMS, caches.templates, writer, events, metrics, now=now)
        self._caches = caches
        self._interval_s = interval_s
        self._written_at: dict[Key, datetime] = {}

    async def observe(self, obj: SpotInstanceVM, now: datetime) -> TemplateSnapshot:
        key = obj.metadata.key
        written_at = self._written_at.get(key)
        # Negative where the clock was put back since: it says nothing then.
        ago_s = (now - written_at).total_seconds() if written_at is not None else -1.0
        wait_s = self._interval_s - ago_s if ago_s >= 0 else 0.0
        instances = tuple(self._caches.instances.by(BY_TEMPLATE, str(key)))
        return TemplateSnapshot(template=obj, instances=instances, wait_s=max(0.0, wait_s))

    def decide(self, snapshot: TemplateSnapshot, now: datetime) -> tuple[Action, ...]:
        return decide(snapshot)

    async def apply(self, action: Action, snapshot: TemplateSnapshot, now: datetime) -> TemplateSnapshot | None:
        if not isinstance(action, SetFinalizer):
            return snapshot
        template = snapshot.template
        others = tuple(each for each in template.metadata.finalizers if each != VM_FINALIZER)
        finalizers = (*others, VM_FINALIZER) if action.is_needed else others
        body = {"resourceVersion": template.metadata.resource_version, "finalizers": list(finalizers)}
        try:
            written = await self.session(template.metadata.key).patch(
                SPOT_INSTANCE_VMS, template.metadata.key, {"metadata": body}
            )
        except NotFound:
            return None
        return structs.replace(snapshot, template=written) if action.is_needed else None

    def next_status(self, snapshot: TemplateSnapshot, action: Action, now: datetime) -> SpotInstanceVMStatus:
        old = snapshot.template.status
        if old is not None and snapshot.wait_s > 0:
            return old
        new = account(snapshot.template, snapshot.instances, now)
        if new != old:
            self._written_at[snapshot.template.metadata.key] = now
        return new

    async def end(self, key: Key, obj: SpotInstanceVM | None, now: datetime) -> Result:
        if obj is not None:
            return await self.reconcile_object(obj, now)
        self._written_at.pop(key, None)
        return Done()

    def object_of(self, snapshot: TemplateSnapshot) -> SpotInstanceVM:
        return snapshot.template

    def with_object(self, snapshot: TemplateSnapshot, obj: SpotInstanceVM) -> TemplateSnapshot:
        return structs.replace(snapshot, template=obj)

    def events_for(self, obj: SpotInstanceVM, status: SpotInstanceVMStatus) -> Iterable[EventMessage]:
        return ()

    def log_fields(self, status: SpotInstanceVMStatus) -> Mapping[str, object]:
        return {"machines": len(status.provisioned_instances), "taken_back": _taken_back(status)}

    def expiry(self, obj: SpotInstanceVM) -> datetime | None:
        return None

    def requeue_in_s(self, snapshot: TemplateSnapshot, action: Action, now: datetime) -> Iterator[float]:
        new = account(snapshot.template, snapshot.instances, now)
        if snapshot.wait_s > 0 and new != snapshot.template.status:
            yield snapshot.wait_s


def _taken_back(status: SpotInstanceVMStatus) -> int:
    return sum(each.preemptions for each in status.lifetimes)


def template_key(instance: ProvisionedInstance) -> Iterable[Key]:
    return (Key(instance.metadata.namespace, instance.spec.vm_ref.name),)
