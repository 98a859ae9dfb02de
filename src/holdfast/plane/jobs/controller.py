"""The Job controller: observe, plan, apply, status."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec
import structlog
from msgspec import structs

from holdfast.api.builtin import JobStatus
from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.patches import merge_patch
from holdfast.plane.jobs.plan import Plan, plan
from holdfast.plane.jobs.replicas import NewPod
from holdfast.plane.jobs.template import pod_body
from holdfast.plane.objects import JOBS, PODS, TRACKING, Job, Pod, resource_version_precondition
from holdfast.plane.together import gather_all
from holdfast.runtime.cache import Store
from holdfast.runtime.clocks import Now
from holdfast.runtime.controller import Controller, Watch, owned_by
from holdfast.runtime.operator import Operator
from holdfast.runtime.result import Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.writes import TrackedClient, WriteTracker

MANAGED_HERE = ("", "kubernetes.io/job-controller")
JOB_NAME = "batch.kubernetes.io/job-name"
BY_JOB = "job"

_owner = owned_by(JOBS)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def job_of(pod: Pod) -> Iterable[Key]:
    """The Job that a pod belongs to; or did, when it has lost its owner and is still held for being counted."""
    if pod.metadata.controller is None and pod.is_tracked and JOB_NAME in pod.metadata.labels:
        return (Key(pod.metadata.namespace, pod.metadata.labels[JOB_NAME]),)
    return _owner(pod)


def _index(pod: Pod) -> Iterable[str]:
    return map(str, job_of(pod))


class JobReconciler:
    """The reconciler of the kind."""

    def __init__(self, jobs: Store[Job], pods: Store[Pod], writer: WriteTracker, now: Now) -> None:
        self._jobs = jobs
        self._pods = pods
        self._writer = writer
        self._now = now
        # Pods let go that the cache may still show as held: counting one twice would be the worst that can happen.
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
        """Nothing here is final."""

    async def _apply(self, job: Job, steps: Plan, session: TrackedClient) -> None:
        """A pod that can't be made must not keep the rest of the news from the status."""
        key = job.metadata.key
        made, trouble = await self._create(job, steps.create, session)
        status = structs.replace(steps.status, active=steps.status.active - len(steps.create) + made)
        await self._write_status(job, status, session)
        await self._remove_finalizers(key, session, (*steps.release, *steps.surplus))
        await gather_all(self._stop(pod, session) for pod in (*steps.stop, *steps.surplus))
        if trouble is not None:
            raise trouble

    async def _create(
        self, job: Job, replicas: Sequence[NewPod], session: TrackedClient
    ) -> tuple[int, ClusterError | None]:
        """In batches that grow: what is refused for one pod is not tried for hundreds."""
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

    async def _write_status(self, job: Job, status: JobStatus, session: TrackedClient) -> None:
        patch = merge_patch(msgspec.to_builtins(job.status), msgspec.to_builtins(status))
        if patch:
            await session.patch_status(
                JOBS, job.metadata.key, {"metadata": resource_version_precondition(job), "status": patch}
            )
            log.debug("job", key=str(job.metadata.key), status=patch)

    async def _stop(self, pod: Pod, session: TrackedClient) -> None:
        with suppress(NotFound):
            await session.delete(PODS, pod.metadata.key, uid=pod.metadata.uid)

    async def _remove_finalizers(self, key: Key, session: TrackedClient, pods: Sequence[Pod]) -> None:
        done = self._released.get(key, ())
        await gather_all(
            self._remove_finalizer(key, pod, session) for pod in pods if pod.is_tracked and pod.metadata.uid not in done
        )

    async def _remove_finalizer(self, key: Key, pod: Pod, session: TrackedClient) -> None:
        left = [each for each in pod.metadata.finalizers if each != TRACKING]
        with suppress(NotFound):
            await session.patch(
                PODS, pod.metadata.key, {"metadata": {**resource_version_precondition(pod), "finalizers": left}}
            )
        self._released.setdefault(key, set()).add(pod.metadata.uid)

    def _forget(self, key: Key, pods: Sequence[Pod]) -> None:
        """Once the cache shows that a pod is let go, it need not be remembered."""
        held = {pod.metadata.uid for pod in pods if pod.is_tracked}
        left = self._released.get(key, set()) & held
        self._released.pop(key, None)
        if left:
            self._released[key] = left


def _belongs(pod: Pod, job: Job) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def jobs(operator: Operator, *, now: Now) -> Controller[Job]:
    """The controller, on the operator's stores."""
    writer = operator.writer()
    reconciler = JobReconciler(operator.store(JOBS), operator.store(PODS, {BY_JOB: _index}), writer, now)
    return Controller(name="job", resource=JOBS, reconciler=reconciler, writer=writer, watches=(Watch(PODS, job_of),))
