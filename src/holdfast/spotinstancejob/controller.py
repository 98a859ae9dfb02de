"""Keeps the replicas of a SpotInstanceJob running on machines that come and go: observe, decide, apply, status."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

import msgspec
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.checkpoints.images.errors import ImageError
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, JOBS, PODS, PROVISIONED_INSTANCES, SPOT_INSTANCE_JOBS
from holdfast.decisions import CleanUp, Finish, reason_of
from holdfast.errors import HoldfastError
from holdfast.pods.failure import sanitize
from holdfast.pods.start_problems import refused_because
from holdfast.pods.template import Defaults
from holdfast.runtime.children import Blocked, newest_warning
from holdfast.runtime.controller import Controller, Done, Result, Watch
from holdfast.runtime.events import Recorder
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.reconciler import EventMessage, InstrumentedReconciler, KindReconciler
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.apply import SpotInstanceJobApplier
from holdfast.spotinstancejob.decide.actions import Action, Follow, Record
from holdfast.spotinstancejob.decide.decision import ahead, decide, plan
from holdfast.spotinstancejob.decide.end import expiry
from holdfast.spotinstancejob.forbidden import mode_refusal, refusal
from holdfast.spotinstancejob.images import job_repository
from holdfast.spotinstancejob.lookups import Repository, RepositoryLookups
from holdfast.spotinstancejob.metrics import SpotInstanceJobGauges, SpotInstanceJobMetrics, events_for
from holdfast.spotinstancejob.observe import (
    OWNER,
    NodeWatch,
    SpotInstanceJobCaches,
    TemplateWatch,
    key_of,
    ordering_job,
)
from holdfast.spotinstancejob.placement import ReplicaPlacement
from holdfast.spotinstancejob.pull_secret import NoPullSecrets, PullSecrets
from holdfast.spotinstancejob.snapshot import (
    TIMING,
    SpotInstanceJobSnapshot,
    SpotInstanceJobTiming,
    after,
    with_job,
)
from holdfast.spotinstancejob.status import next_status
from holdfast.spotinstancejob.supply import Supply


class SpotInstanceJobReconciler(
    KindReconciler[SpotInstanceJob, SpotInstanceJobStatus, SpotInstanceJobSnapshot, Action]
):
    """The reconciler of the kind. What a deleted job leaves goes with it: its machines have finalizers of their own."""

    def __init__(
        self,
        cluster: Cluster,
        caches: SpotInstanceJobCaches,
        supply: Supply,
        placement: ReplicaPlacement,
        lookups: RepositoryLookups,
        applier: SpotInstanceJobApplier,
        writer: WriteTracker,
        events: Recorder,
        metrics: SpotInstanceJobMetrics,
        *,
        defaults: Defaults,
        timing: SpotInstanceJobTiming,
        now: Now,
    ) -> None:
        super().__init__(SPOT_INSTANCE_JOBS, caches.spot_jobs, writer, events, metrics, now=now)
        self._cluster = cluster
        self._caches = caches
        self._supply = supply
        self._placement = placement
        self._lookups = lookups
        self._applier = applier
        self._defaults = defaults
        self._timing = timing
        self._obstacles: dict[Key, str] = {}
        """What kept the last reconcile from making something: status says so until another one succeeds."""
        self._uids: dict[Key, str] = {}

    async def observe(self, obj: SpotInstanceJob, now: datetime) -> SpotInstanceJobSnapshot:
        key = obj.metadata.key
        self._uids[key] = obj.metadata.uid
        observed = structs.replace(self._caches.snapshot(obj), blocked_by=self._obstacles.get(key, ""))
        if observed.finished:
            return observed
        if observed.status.phase is None and (refusal := self._refusal(obj)):
            return structs.replace(observed, rejected_reason=refusal)
        observed = await self._with_pod_problems(self._supply.describe(observed), now)
        planned = plan(observed, now, self._timing)
        return structs.replace(self._supply.search(observed, planned, now), planned=planned)

    def decide(self, snapshot: SpotInstanceJobSnapshot, now: datetime) -> tuple[Action, ...]:
        return decide(snapshot, now, self._timing)

    async def apply(self, action: Action, snapshot: SpotInstanceJobSnapshot, now: datetime) -> SpotInstanceJobSnapshot:
        key = snapshot.job.metadata.key
        match action:
            case Finish() | CleanUp():
                return snapshot
            case Record():
                self._obstacles.pop(key, None)  # what is done next tells anew
                return snapshot
            case Follow():
                return structs.replace(snapshot, blocked_by=self._obstacles.get(key, ""))
        try:
            await self._applier.apply(action, snapshot, self.session(key))
        except (Blocked, ImageError) as error:
            self._obstacles.setdefault(key, str(error))
        return snapshot

    def next_status(self, snapshot: SpotInstanceJobSnapshot, action: Action, now: datetime) -> SpotInstanceJobStatus:
        return next_status(snapshot, action, now)

    async def end(self, key: Key, obj: SpotInstanceJob | None, now: datetime) -> Result:
        self._obstacles.pop(key, None)
        uid = self._uids.pop(key, None)
        if uid is not None:
            self._lookups.forget(uid)
        return Done()

    def object_of(self, snapshot: SpotInstanceJobSnapshot) -> SpotInstanceJob:
        return snapshot.job

    def with_object(self, snapshot: SpotInstanceJobSnapshot, obj: SpotInstanceJob) -> SpotInstanceJobSnapshot:
        return with_job(snapshot, obj)

    def recorded(self, snapshot: SpotInstanceJobSnapshot) -> None:
        self._lookups.delete_old_images(snapshot.job)

    def events_for(self, obj: SpotInstanceJob, status: SpotInstanceJobStatus) -> Iterable[EventMessage]:
        return events_for(obj, status)

    def log_fields(self, status: SpotInstanceJobStatus) -> Mapping[str, object]:
        return {
            "phase": status.phase,
            "why": reason_of(status),
            "replicas": [f"{each.name}:{each.phase}:{each.node_name or each.machine}" for each in status.job_statuses],
        }

    def expiry(self, obj: SpotInstanceJob) -> datetime | None:
        return expiry(obj)

    def requeue_in_s(self, snapshot: SpotInstanceJobSnapshot, action: Action, now: datetime) -> Iterator[float]:
        if snapshot.finished:
            return
        yield from ((at - now).total_seconds() for at in ahead(snapshot, now, self._timing))
        asked = self._lookups.next_try(snapshot.job) if snapshot.repository is not None else None
        if asked is not None and asked > now:
            yield (asked - now).total_seconds()

    def _refusal(self, job: SpotInstanceJob) -> str:
        """Why no replica of the job can ever be made."""
        try:
            job_repository(job)
            self._placement.shape(job)
            mode = mode_refusal(job, runs_containers=self._defaults.runs_containers)
            return mode or refusal(job, self._defaults.forbidden)
        except HoldfastError as error:
            return str(error)
        except (msgspec.ValidationError, TypeError, AttributeError, ValueError, KeyError) as error:
            return f"spec.jobTemplate is no template of a Job: {error}"

    async def _with_pod_problems(self, observed: SpotInstanceJobSnapshot, now: datetime) -> SpotInstanceJobSnapshot:
        """Why Jobs have no pod, which only their Events tell."""
        problems: dict[str, str] = {}
        for replica in observed.status.job_statuses:
            job = observed.jobs.get(replica.name)
            if replica.phase != "Starting" or job is None or not job.status.start_time:
                continue
            is_late = now >= after(job.status.start_time, self._timing.explain_s)
            if is_late and observed.pod_of(replica.name) is None:
                warning = await newest_warning(self._cluster, job)
                problems |= {replica.name: sanitize(refused_because(warning))} if warning else {}
        return structs.replace(observed, pod_problems=problems)


def spot_instance_job_controller(
    operator: Operator,
    cluster: Cluster,
    *,
    defaults: Defaults,
    now: Now,
    pools: MachinePools,
    repository: Repository,
    ledger: SharedLedger | None = None,
    pull_secrets: PullSecrets | None = None,
    reports: Callable[[], str | None] = lambda: None,
    timing: SpotInstanceJobTiming = TIMING,
) -> Controller[SpotInstanceJob]:
    """The controller, on the operator's stores. All controllers of an operator share one ledger, and one set of pools.

    `reports`: where sidecars report to, as `holdfast.api.reports` encodes it.
    """
    writer = operator.writer()
    caches = SpotInstanceJobCaches.of(operator)
    placement = ReplicaPlacement(ledger or SharedLedger(operator), defaults)
    lookups = RepositoryLookups(repository, now=now, retry_s=timing.registry_retry_s)
    metrics = SpotInstanceJobMetrics(operator.registry)
    SpotInstanceJobGauges(operator.registry, operator.shown(caches.spot_jobs.list), now=now)
    reconciler = SpotInstanceJobReconciler(
        cluster,
        caches,
        Supply(caches, placement, pools, lookups),
        placement,
        lookups,
        SpotInstanceJobApplier(cluster, pull_secrets or NoPullSecrets(), defaults=defaults, reports=reports),
        writer,
        operator.recorder,
        metrics,
        defaults=defaults,
        timing=timing,
        now=now,
    )
    operator.add_leader_task(lookups.run)
    return Controller(
        name="spotinstancejob",
        resource=SPOT_INSTANCE_JOBS,
        reconciler=InstrumentedReconciler(reconciler, metrics),
        writer=writer,
        watches=(
            Watch(JOBS, OWNER),
            Watch(PODS, key_of),
            Watch(CHECKPOINT_BACKUPS, OWNER),
            Watch(PROVISIONED_INSTANCES, ordering_job),
            NodeWatch(caches.keys_on_node),
            TemplateWatch(caches.spot_jobs),
            placement,
            lookups,
        ),
    )
