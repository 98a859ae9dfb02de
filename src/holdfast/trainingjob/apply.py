"""Takes a TrainingJob's children one step towards what they should be, without ever touching what is not its own."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

import structlog
from msgspec import structs

from holdfast.api.core.objects import Job, Pod, Service
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import CLAIMS, JOBS, PODS, SERVICE_MONITORS, TRAINING_JOBS
from holdfast.decisions import CleanUp, Finish
from holdfast.pods.template import Defaults
from holdfast.runtime.children import Blocked, ensure_own_child, stop_jobs
from holdfast.runtime.controller import TerminalError
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.trainingjob.children import (
    Child,
    WorkerTemplates,
    belongs_to,
    is_of_another_form,
    patch_for,
    supporting_children,
    unwanted_children,
    workers_child,
)
from holdfast.trainingjob.decide.decision import Action, DeleteQueuedJob, EnsureJob, RecreateJob
from holdfast.trainingjob.decide.old_pods import has_stopped_creating
from holdfast.trainingjob.decide.snapshot import SPEC_CHANGED, TrainingJobSnapshot, TrainingJobTiming
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume
from holdfast.trainingjob.observe import TrainingJobCaches

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Applier:
    """What one reconcile does for one job."""

    def __init__(
        self,
        observed: TrainingJobSnapshot,
        caches: TrainingJobCaches,
        cluster: Cluster,
        session: TrackedClient,
        *,
        defaults: Defaults,
        timing: TrainingJobTiming,
        templates: WorkerTemplates,
        reports: str | None = None,
    ) -> None:
        self._job: TrainingJob = observed.job
        self._observed = observed
        self._caches = caches
        self._cluster = cluster
        self._session = session
        self._defaults = defaults
        self._timing = timing
        self._reports = reports
        self._templates = templates

    async def apply(self, action: Action) -> TrainingJobSnapshot:
        """Return what is observed after the action."""
        observed = self._observed
        if isinstance(action, Finish):
            return observed  # status first: the next reconcile stops what still runs
        await stop_old_attempts(self._session, observed, self._timing)
        match action:
            case CleanUp():
                await stop_finished(self._session, observed)
            case RecreateJob() | DeleteQueuedJob() if observed.current_job is not None:
                await stop_jobs(self._session, (observed.current_job,))
                return structs.replace(observed, current_job=None)
            case EnsureJob():
                return await self._ensure_job(action)
        return observed

    async def _ensure_job(self, action: EnsureJob) -> TrainingJobSnapshot:
        seen = self._observed.current_job
        try:
            await self._ensure_all(supporting_children(self._job, self._defaults, self._reports, seen))
            if seen is None:
                await self._remove_unwanted()
            template = self._templates.of(self._job) if seen is None else None
            child = workers_child(self._job, template, suspended=action.suspended)
            # The observed Job, not the cached one: a Job that was deleted meanwhile is a failure and is not made again.
            workers = await self._create_or_patch(child, seen, suspended=action.suspended)
        except (Blocked, Forbidden) as error:
            return structs.replace(self._observed, blocked_by=str(error))
        except Invalid as error:
            raise TerminalError("Refused", str(error)) from error
        return structs.replace(self._observed, current_job=cast("Job", workers))

    async def _make_claim(self, child: Child) -> None:
        """The claim outlives its job, so it has no owner. Its labels name the job that it was made for."""
        key = Key(self._job.metadata.namespace, child.name)
        try:
            await self._session.create(child.resource, child.body, namespace=key.namespace)
        except AlreadyExists:
            seen = await self._cluster.get(CLAIMS, key)
            labels = child.body["metadata"]["labels"]
            if any(seen.metadata.labels.get(name) != value for name, value in labels.items()):
                raise Blocked(
                    f"PersistentVolumeClaim {key.name} is there already and was not made for a job of this name: write "
                    "checkpoint.storage.pvcName to use it, delete it, or give this job another name"
                ) from None
            if seen.metadata.deletion_timestamp:
                raise Blocked(f"waiting for PersistentVolumeClaim {key.name} to be deleted") from None

    async def _make_monitor(self, child: Child) -> None:
        """No training waits for a ServiceMonitor."""
        try:
            await self._session.create(child.resource, child.body, namespace=self._job.metadata.namespace)
        except AlreadyExists:
            return
        except (NotFound, Forbidden, Invalid) as error:
            log.warning(
                "no ServiceMonitor; are the Prometheus Operator's definitions installed?",
                key=str(self._job.metadata.key),
                reason=str(error),
            )

    async def _remove_unwanted(self) -> None:
        for resource, name in unwanted_children(self._job):
            key = Key(self._job.metadata.namespace, name)
            seen = self._caches.child(resource.kind, key)
            if seen is not None and belongs_to(seen, self._job):
                await self._session.delete(resource, key, DeleteOptions(uid=seen.metadata.uid))

    async def _ensure_all(self, children: Iterable[Child]) -> None:
        """Concurrently: a busy API server takes a second for a Service. Of several errors the first is raised."""
        ends = await asyncio.gather(*map(self._ensure, children), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _ensure(self, child: Child) -> None:
        if child.resource is CLAIMS:
            await self._make_claim(child)
        elif child.resource is SERVICE_MONITORS:
            await self._make_monitor(child)
        else:
            key = Key(self._job.metadata.namespace, child.name)
            try:
                await self._create_or_patch(child, self._caches.child(child.resource.kind, key))
            except Invalid as error:
                if child.is_shared:  # no fault of this job
                    raise Blocked(str(error)) from error
                raise

    async def _create_or_patch(self, child: Child, seen: Object | None, *, suspended: bool = False) -> Object:
        """Create the child, or patch the one that was observed."""
        key = Key(self._job.metadata.namespace, child.name)
        if seen is None:
            try:
                return await self._session.create(child.resource, child.body, namespace=key.namespace)
            except AlreadyExists:
                # Of another owner, or ours without the label that the caches select by.
                seen = await self._cluster.get(child.resource, key)
        if child.is_shared:
            _ensure_shared_child(seen)
        else:
            ensure_own_child(seen, child.resource.kind, self._job, TRAINING_JOBS, noun="job")
        if self._observed.current_job is None and not child.is_shared and is_of_another_form(child, seen):
            # Only for a new attempt: one that has its Job keeps the Services that it began with. What is shared is
            # mended in place: workers of other jobs may find each other through it.
            await self._session.delete(child.resource, key, DeleteOptions(uid=seen.metadata.uid))
            return await self._session.create(child.resource, child.body, namespace=key.namespace)
        patch = patch_for(self._job, child, seen, suspended=suspended)
        return await self._session.patch(child.resource, key, patch) if patch else seen


def _ensure_shared_child(seen: Object) -> None:
    """Raises `Blocked` when the Service of the namespace is not holdfast's, or is being deleted."""
    if not (isinstance(seen, Service) and names.is_namespace_service(seen)):
        raise Blocked(
            f"Service {seen.metadata.name} is there already and was not made by holdfast: delete it, or run the "
            "operator with --discovery=job"
        )
    if seen.metadata.deletion_timestamp:
        raise Blocked(f"waiting for Service {seen.metadata.name} to be deleted before it is made again")


async def stop_old_attempts(session: TrackedClient, observed: TrainingJobSnapshot, timing: TrainingJobTiming) -> None:
    """Workers of a failed attempt get a short grace period, those of a changed or suspended job their whole one."""
    is_orderly = observed.restart_reason == SPEC_CHANGED or observed.job.spec.suspend
    storage = checkpoint_storage(observed.job)
    is_uploaded = storage is not None and not is_volume(storage)
    grace_s = None if is_orderly else timing.restart_upload_grace_s if is_uploaded else timing.restart_grace_s
    await stop_jobs(session, observed.old_jobs)  # first, so that no Job replaces a pod that is deleted
    await stop_pods(
        session, (pod for pod in observed.running_old_pods if _is_of_earlier_attempt(pod, observed)), grace_s
    )


async def stop_finished(session: TrackedClient, observed: TrainingJobSnapshot) -> None:
    """Stop the workers of a finished job. Its Job stays, suspended so that it makes no new pods."""
    job = observed.current_job
    if job is not None and not has_stopped_creating(job) and not job.metadata.deletion_timestamp:
        if observed.queued:
            await stop_jobs(session, (job,))  # Kueue owns spec.suspend of this Job
        else:
            guard = {"resourceVersion": job.metadata.resource_version}
            with suppress(NotFound):
                await session.patch(JOBS, job.metadata.key, {"metadata": guard, "spec": {"suspend": True}})
    await stop_pods(session, observed.pods, None)


async def stop_pods(session: TrackedClient, pods: Iterable[Pod], grace_s: int | None) -> None:
    for pod in pods:
        if not pod.is_finished and _can_shorten_grace(pod, grace_s):
            with suppress(NotFound, Conflict):
                await session.delete(
                    PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid, grace_period_s=grace_s)
                )


def _can_shorten_grace(pod: Pod, grace_s: int | None) -> bool:
    if not pod.is_terminating:
        return True
    given_s = pod.metadata.deletion_grace_period_seconds
    return grace_s is not None and given_s is not None and given_s > grace_s


def _is_of_earlier_attempt(pod: Pod, observed: TrainingJobSnapshot) -> bool:
    """Pods of an earlier TrainingJob of this name are deleted with their own Job."""
    number = pod.metadata.labels.get(names.ATTEMPT_LABEL, "")
    return number.isdecimal() and int(number) < names.attempt(observed.job)
