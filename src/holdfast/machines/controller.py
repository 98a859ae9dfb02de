"""Takes a ProvisionedInstance from its launch to its end: observe, decide, apply, status."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import ProvisionedInstance, ProvisionedInstanceStatus
from holdfast.cluster.resources import PROVISIONED_INSTANCES
from holdfast.machines.apply import MachineApplier
from holdfast.machines.background import Background
from holdfast.machines.clouds import Cloud, CloudSource, CloudUnavailable
from holdfast.machines.decision import Pass, decide, is_awaited
from holdfast.machines.metrics import MachineMetrics, events_for
from holdfast.machines.observe import MachineCaches
from holdfast.machines.poller import Poller
from holdfast.machines.snapshot import CloudProblem, MachineSnapshot, MachineTiming, with_instance
from holdfast.runtime.controller import Done, Result
from holdfast.runtime.events import Recorder
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.reconciler import EventMessage, KindReconciler
from holdfast.scheduling.machine_pools import MachinePools


class ProvisionedInstanceReconciler(
    KindReconciler[ProvisionedInstance, ProvisionedInstanceStatus, MachineSnapshot, Pass]
):
    """The reconciler of the kind. A deleted object goes through its phases to the end, as any other."""

    def __init__(
        self,
        caches: MachineCaches,
        clouds: CloudSource,
        background: Background,
        poller: Poller,
        applier: MachineApplier,
        pools: MachinePools,
        writer: WriteTracker,
        events: Recorder,
        metrics: MachineMetrics,
        *,
        now: Now,
        timing: MachineTiming,
    ) -> None:
        super().__init__(PROVISIONED_INSTANCES, caches.instances, writer, events, metrics, now=now)
        self._caches = caches
        self._clouds = clouds
        self._background = background
        self._poller = poller
        self._applier = applier
        self._pools = pools
        self._timing = timing
        self._uids: dict[Key, str] = {}
        self._differs_since: dict[str, datetime] = {}
        """Machines whose status is to be written once the change has lasted for a moment."""

    async def observe(self, obj: ProvisionedInstance, now: datetime) -> MachineSnapshot:
        uid = obj.metadata.uid
        self._remember(obj.metadata.key, uid)
        seen = structs.replace(self._caches.snapshot(obj), work=self._background.of(uid))
        if seen.finished or not seen.project or not (seen.is_begun or seen.template):
            self._poller.unfollow(uid)
            return seen
        try:
            cloud = await self._cloud(seen)
        except CloudUnavailable as error:
            problem = CloudProblem(error.reason, str(error))
            return structs.replace(seen, problem=problem, blocked_by=str(error), listed=self._poller.seen(uid))
        if seen.is_launched:
            self._poller.follow(uid, obj.metadata.key, cloud.account, seen.zone)
        return structs.replace(seen, listed=self._poller.seen(uid), silent_cloud=self._poller.silence(cloud.account))

    async def _cloud(self, seen: MachineSnapshot) -> Cloud:
        """Before anything is made, the Secret has to be there; later it is enough to have read it once."""
        meta, spec = seen.instance.metadata, seen.instance.spec
        is_new = not seen.is_begun and not seen.work and not seen.is_deleted
        return await self._clouds.open(meta.namespace, seen.project, spec.credentials_secret_ref, fresh=is_new)

    def decide(self, snapshot: MachineSnapshot, now: datetime) -> tuple[Pass, ...]:
        return decide(snapshot, now, self._timing)

    async def apply(self, action: Pass, snapshot: MachineSnapshot, now: datetime) -> MachineSnapshot | None:
        session = self.session(snapshot.instance.metadata.key)
        seen: MachineSnapshot | None = snapshot
        for effect in action.effects:
            if seen is not None:
                seen = await self._applier.apply(effect, seen, session, now)
        return seen

    def next_status(self, snapshot: MachineSnapshot, action: Pass, now: datetime) -> ProvisionedInstanceStatus:
        """What may be over in a moment is not written: most machines go through most steps within seconds."""
        old, new = snapshot.status, action.status
        if snapshot.instance.status is not None and new != old and not is_awaited(old, new):
            since = self._differs_since.setdefault(snapshot.uid, now)
            if since <= now < since + timedelta(seconds=self._timing.settle_s):
                return old
        self._differs_since.pop(snapshot.uid, None)
        return new

    async def end(self, key: Key, obj: ProvisionedInstance | None, now: datetime) -> Result:
        if obj is not None:
            return await self.reconcile_object(obj, now)
        self._remember(key, "")
        return Done()

    def _remember(self, key: Key, uid: str) -> None:
        """What is known in memory about an object that is gone is forgotten, also where another has its name."""
        before = self._uids.pop(key, "")
        if uid:
            self._uids[key] = uid
        if before and before != uid:
            self._background.forget(before)
            self._poller.unfollow(before)
            self._differs_since.pop(before, None)
            self._pools.released(str(key))

    def object_of(self, snapshot: MachineSnapshot) -> ProvisionedInstance:
        return snapshot.instance

    def with_object(self, snapshot: MachineSnapshot, obj: ProvisionedInstance) -> MachineSnapshot:
        return with_instance(snapshot, obj)

    def events_for(self, obj: ProvisionedInstance, status: ProvisionedInstanceStatus) -> Iterable[EventMessage]:
        return events_for(obj, status)

    def log_fields(self, status: ProvisionedInstanceStatus) -> Mapping[str, object]:
        launched = next((each for each in status.conditions if each.type == "Launched"), None)
        return {
            "phase": status.phase,
            "step": status.step,
            "state": status.state,
            "machine": status.instance_name,
            "zone": status.zone,
            "why": launched.reason if launched is not None and launched.status == "False" else "",
            "preempted": any((each.type, each.status) == ("Preempted", "True") for each in status.conditions),
        }

    def expiry(self, obj: ProvisionedInstance) -> datetime | None:
        return None

    def requeue_in_s(self, snapshot: MachineSnapshot, action: Pass, now: datetime) -> Iterator[float]:
        yield from ((at - now).total_seconds() for at in action.recheck_at)
        since = self._differs_since.get(snapshot.uid)
        if since is not None:
            yield (since - now).total_seconds() + self._timing.settle_s
