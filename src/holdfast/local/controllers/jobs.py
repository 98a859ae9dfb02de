"""The Job controller: observe, plan, apply, status."""

from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
import structlog
from msgspec import Struct, structs

from holdfast.api.core.objects import JOB_TRACKING, JobCondition, JobStatus, Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import JSON, DeleteOptions
from holdfast.cluster.resources import PODS, merge_patch
from holdfast.local.controllers import job_pods
from holdfast.local.controllers.job_pods import FAILURES, IGNORED_FAILURES, INDEX, JobPods, is_ready
from holdfast.local.controllers.job_policies import (
    FINAL,
    JobOutcome,
    NewPod,
    PodCounts,
    PodPlan,
    count_finished_pods,
    deadline,
    job_outcome,
    plan_scale,
)
from holdfast.local.controllers.objects import JOBS, TemplatedJob, gather_all, resource_version_precondition
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError, Watch, owned_by
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker
from holdfast.times import format_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# The plan: the next changes to a Job's pods and status, computed from the observed state of both.


class Plan(Struct, frozen=True, kw_only=True):
    """Applied in this order: create pods, write the status, release pods, stop the Job's pods, stop surplus pods.

    Surplus pods lose their finalizer before they are stopped, so that they are not counted.
    """

    create: tuple[NewPod, ...]
    status: JobStatus
    release: tuple[Pod, ...]
    stop: tuple[Pod, ...]
    surplus: tuple[Pod, ...]
    again_s: float | None


def plan(job: TemplatedJob, pods: tuple[Pod, ...], now: datetime, released: Set[str] = frozenset()) -> Plan:
    """`released` are pods whose finalizer this process has removed, though the cache may not show it yet."""
    census = JobPods(_started(job, now), pods, released)
    over = job_outcome(census, now)
    staff = PodPlan() if over else plan_scale(census, now)
    counts = count_finished_pods(census, over)
    stop = census.active if over else ()
    going = {pod.metadata.uid for pod in (*stop, *staff.surplus)}
    staying = [pod for pod in census.active if pod.metadata.uid not in going]
    status = structs.replace(
        census.job.status,
        active=len(staying) + len(staff.create),
        ready=sum(map(is_ready, staying)),
        terminating=len(census.terminating) + len(going),
        succeeded=counts.succeeded,
        failed=counts.failed,
        uncounted_terminated_pods=counts.uncounted,
        completed_indexes=job_pods.format_indexes(census.completed_indexes) if census.job.is_indexed else "",
        failed_indexes=job_pods.format_indexes(census.failed_indexes),
        conditions=_with_suspended_condition(census, now),
    )
    return Plan(
        create=staff.create,
        status=_with_terminal_conditions(census, status, over, counts, now) if over else status,
        stop=stop,
        surplus=staff.surplus,
        release=counts.release,
        again_s=None if over else _again_s(census, staff, now),
    )


def _started(job: TemplatedJob, now: datetime) -> TemplatedJob:
    """A suspended Job has no start time; a resumed Job gets a new one."""
    start = "" if job.spec.suspend else job.status.start_time or format_time(now)
    return structs.replace(job, status=structs.replace(job.status, start_time=start))


def _with_suspended_condition(census: JobPods, now: datetime) -> tuple[JobCondition, ...]:
    conditions, suspend = census.job.status.conditions, census.job.spec.suspend
    was = any(condition.type == "Suspended" and condition.status == "True" for condition in conditions)
    if was == suspend:
        return conditions
    reason, message = ("JobSuspended", "Job suspended") if suspend else ("JobResumed", "Job resumed")
    new = _condition("Suspended", reason, message, now, status="True" if suspend else "False")
    return (*(condition for condition in conditions if condition.type != "Suspended"), new)


def _with_terminal_conditions(
    census: JobPods, status: JobStatus, over: JobOutcome, counts: PodCounts, now: datetime
) -> JobStatus:
    """The final condition comes only when all pods have stopped and are counted: readers rely on the counts."""
    settled = not (status.active or status.terminating or census.tracked or _has_uncounted(counts))
    kinds = (over.type, FINAL[over.type]) if settled else (over.type,)
    existing = {condition.type for condition in status.conditions if condition.status == "True"}
    new = tuple(_condition(kind, over.reason, over.message, now) for kind in kinds if kind not in existing)
    completed = format_time(now) if settled and over.is_success else status.completion_time
    return structs.replace(status, conditions=(*status.conditions, *new), completion_time=completed)


def _has_uncounted(counts: PodCounts) -> bool:
    return bool(counts.uncounted.succeeded or counts.uncounted.failed)


def _condition(kind: str, reason: str, message: str, now: datetime, *, status: str = "True") -> JobCondition:
    return JobCondition(type=kind, status=status, reason=reason, message=message, last_transition_time=format_time(now))


def _again_s(census: JobPods, staff: PodPlan, now: datetime) -> float | None:
    due = deadline(census.job)
    times = [staff.again_s, (due - now).total_seconds() if due else None]
    return min((time for time in times if time is not None), default=None)


# The pod of a Job: the Job's template plus the fields of the pod's index.

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
# A pod name has at most 63 characters, and the last five are random.
LONGEST_PREFIX = 58


def pod_body(job: TemplatedJob, replica: NewPod) -> JSON:
    template = job.spec.template
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    index_metadata: dict[str, str] = {}
    annotations: dict[str, str] = {}
    prefix = f"{job.metadata.name}-"
    if replica.index is not None:
        index_metadata[INDEX] = str(replica.index)
        hostname = f"{job.metadata.name}-{replica.index}"
        prefix = f"{hostname}-"
        spec = _with_index_env(spec) | {"hostname": hostname}
    if replica.failures is not None:
        annotations[FAILURES] = str(replica.failures)
        annotations |= {IGNORED_FAILURES: str(replica.ignored_failures)} if replica.ignored_failures else {}
    return {
        "metadata": {
            "generateName": _prefix(prefix),
            "labels": {**metadata.get("labels", {}), **index_metadata},
            "annotations": {**metadata.get("annotations", {}), **index_metadata, **annotations},
            "finalizers": [*metadata.get("finalizers", []), JOB_TRACKING],
            "ownerReferences": [_owner_reference(job)],
        },
        "spec": spec,
    }


def _prefix(text: str) -> str:
    return text if len(text) <= LONGEST_PREFIX else f"{text[: LONGEST_PREFIX - 1]}-"


def _owner_reference(job: TemplatedJob) -> JSON:
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _with_index_env(spec: JSON) -> JSON:
    fields = ("initContainers", "containers")
    return {
        **spec,
        **{field: [_container_with_index_env(each) for each in spec[field]] for field in fields if field in spec},
    }


def _container_with_index_env(container: dict[str, Any]) -> JSON:
    """The container with its index in the environment, unless the container sets that variable itself."""
    env = container.get("env", [])
    if any(variable["name"] == INDEX_VARIABLE for variable in env):
        return container
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    return {**container, "env": [*env, {"name": INDEX_VARIABLE, "valueFrom": source}]}


MANAGED_HERE = ("", "kubernetes.io/job-controller")
JOB_NAME = "batch.kubernetes.io/job-name"
BY_JOB = "job-key"

_owner = owned_by(JOBS)


def job_of(pod: Pod) -> Iterable[Key]:
    """The Job of a pod. A pod that lost its owner but is still held for counting is found by its label."""
    if pod.metadata.controller is None and pod.is_tracked and JOB_NAME in pod.metadata.labels:
        return (Key(pod.metadata.namespace, pod.metadata.labels[JOB_NAME]),)
    return _owner(pod)


def _index(pod: Pod) -> Iterable[str]:
    return map(str, job_of(pod))


class JobReconciler:
    """Reconciles Jobs."""

    def __init__(self, jobs: Store[TemplatedJob], pods: Store[Pod], writer: WriteTracker, now: Now) -> None:
        self._jobs = jobs
        self._pods = pods
        self._writer = writer
        self._now = now
        # Released pods that the cache may still show with their finalizer: no pod may be counted twice
        # (kubernetes#105200).
        self._released: dict[Key, set[str]] = {}

    async def reconcile(self, key: Key) -> Result:
        job, session = self._jobs.get(key), self._writer.for_key(key)
        pods = self._pods.by(BY_JOB, str(key))
        self._forget(key, pods)
        ours = [pod for pod in pods if job and not job.metadata.deletion_timestamp and _belongs(pod, job)]
        owned = {pod.metadata.uid for pod in ours}
        await self._remove_finalizers(key, session, [pod for pod in pods if pod.metadata.uid not in owned])
        if job is None or job.metadata.deletion_timestamp or job.finished_at or job.spec.managed_by not in MANAGED_HERE:
            return Done()
        steps = plan(job, tuple(ours), self._now(), self._released.get(key, frozenset()))
        await self._apply(job, steps, session)
        return Done() if steps.again_s is None else RequeueAfter(steps.again_s)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """No error is terminal here."""

    async def _apply(self, job: TemplatedJob, steps: Plan, session: TrackedClient) -> None:
        """A pod that can't be created must not block the other changes of the status."""
        key = job.metadata.key
        made, error = await self._create(job, steps.create, session)
        status = structs.replace(steps.status, active=steps.status.active - len(steps.create) + made)
        await self._write_status(job, status, session)
        await self._remove_finalizers(key, session, (*steps.release, *steps.surplus))
        await gather_all(self._stop(pod, session) for pod in (*steps.stop, *steps.surplus))
        if error is not None:
            raise error

    async def _create(
        self, job: TemplatedJob, replicas: Sequence[NewPod], session: TrackedClient
    ) -> tuple[int, ClusterError | None]:
        """Create pods in growing batches, so that an error that hits every pod costs one request, not hundreds."""
        made, size = 0, 1
        while made < len(replicas):
            batch = replicas[made : made + size]
            bodies = [pod_body(job, replica) for replica in batch]
            try:
                await gather_all(session.create(PODS, body, namespace=job.metadata.namespace) for body in bodies)
            except ClusterError as error:
                return made, error
            made, size = made + len(batch), size * 2
        return made, None

    async def _write_status(self, job: TemplatedJob, status: JobStatus, session: TrackedClient) -> None:
        patch = merge_patch(msgspec.to_builtins(job.status), msgspec.to_builtins(status))
        if patch:
            await session.patch_status(
                JOBS, job.metadata.key, {"metadata": resource_version_precondition(job), "status": patch}
            )
            log.debug("job", key=str(job.metadata.key), status=patch)

    async def _stop(self, pod: Pod, session: TrackedClient) -> None:
        with suppress(NotFound):
            await session.delete(PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))

    async def _remove_finalizers(self, key: Key, session: TrackedClient, pods: Sequence[Pod]) -> None:
        done = self._released.get(key, ())
        await gather_all(
            self._remove_finalizer(key, pod, session) for pod in pods if pod.is_tracked and pod.metadata.uid not in done
        )

    async def _remove_finalizer(self, key: Key, pod: Pod, session: TrackedClient) -> None:
        remaining = [each for each in pod.metadata.finalizers if each != JOB_TRACKING]
        with suppress(NotFound):
            await session.patch(
                PODS, pod.metadata.key, {"metadata": {**resource_version_precondition(pod), "finalizers": remaining}}
            )
        self._released.setdefault(key, set()).add(pod.metadata.uid)

    def _forget(self, key: Key, pods: Sequence[Pod]) -> None:
        """Drop released pods once the cache shows that their finalizer is gone."""
        held = {pod.metadata.uid for pod in pods if pod.is_tracked}
        still_held = self._released.get(key, set()) & held
        self._released.pop(key, None)
        if still_held:
            self._released[key] = still_held


def _belongs(pod: Pod, job: TemplatedJob) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def jobs(operator: Operator, *, now: Now) -> Controller[TemplatedJob]:
    """The Job controller, on the operator's stores."""
    writer = operator.writer()
    reconciler = JobReconciler(operator.store(JOBS), operator.store(PODS, {BY_JOB: _index}), writer, now)
    return Controller(name="job", resource=JOBS, reconciler=reconciler, writer=writer, watches=(Watch(PODS, job_of),))
