"""Takes a TrainingJob to its workers and follows them to the end: observe, decide, apply, status."""

import msgspec
import structlog
from msgspec import structs

from holdfast.api.builtin import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob, TrainingJobStatus
from holdfast.cluster.patches import merge_patch
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, PODS, SERVICES, TRAINING_JOBS
from holdfast.controllers.trainingjob.apply import Applier
from holdfast.controllers.trainingjob.news import news
from holdfast.controllers.trainingjob.observe import Caches
from holdfast.planning.trainingjob.status import next_status
from holdfast.runtime.clocks import Now
from holdfast.runtime.controller import Controller, Watch, owned_by
from holdfast.runtime.events import Recorder
from holdfast.runtime.operator import Operator
from holdfast.runtime.result import Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.writes import Writer
from holdfast.workloads.trainingjob.names import JOB_LABEL

# What stands in the way (a name, a quota, a right) is not ours to watch; it is looked at again this often.
OBSTACLE_RECHECK_S = 30.0

OWNER = owned_by(TRAINING_JOBS)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class TrainingJobs:
    """The reconciler of the kind."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        writer: Writer,
        events: Recorder,
        *,
        default_image: str,
        now: Now,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._writer = writer
        self._events = events
        self._default_image = default_image
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        observed = self._caches.observe(key)
        if observed is None or observed.finished:
            return Done()
        applier = Applier(observed.job, self._caches, self._cluster, self._writer.on(key))
        observed = await applier.apply(observed, self._default_image)
        await self._write_status(observed.job, next_status(observed, self._now()))
        return RequeueAfter(OBSTACLE_RECHECK_S) if observed.obstacle else Done()

    async def report(self, key: Key, error: TerminalError) -> None:
        observed = self._caches.observe(key)
        if observed is not None and not observed.finished:
            refused = structs.replace(observed, refusal=str(error))
            await self._write_status(observed.job, next_status(refused, self._now()))

    async def _write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Nothing when nothing changed; guarded by the version that was looked at."""
        old = msgspec.to_builtins(job.status) if job.status is not None else {}
        patch = merge_patch(old, msgspec.to_builtins(status))
        if not patch:
            return
        guard = {"resourceVersion": job.metadata.resource_version}
        session = self._writer.on(job.metadata.key)
        await session.patch_status(TRAINING_JOBS, job.metadata.key, {"metadata": guard, "status": patch})
        log.info("status", key=str(job.metadata.key), state=status.state, message=status.message)
        for item in news(job, status):
            tell = self._events.warning if item.warning else self._events.normal
            tell(TRAINING_JOBS, job, item.reason, item.message)


def training_jobs(operator: Operator, cluster: Cluster, *, default_image: str, now: Now) -> Controller[TrainingJob]:
    """The controller, on the operator's stores."""
    writer = operator.writer()
    reconciler = TrainingJobs(
        cluster, Caches.of(operator), writer, operator.recorder, default_image=default_image, now=now
    )
    return Controller(
        name="trainingjob",
        resource=TRAINING_JOBS,
        reconciler=reconciler,
        writer=writer,
        watches=(Watch(CONFIG_MAPS, OWNER), Watch(SERVICES, OWNER), Watch(JOBS, OWNER), Watch(PODS, job_of_worker)),
    )


def job_of_worker(pod: Pod) -> tuple[Key, ...]:
    """A worker belongs to a Job; the TrainingJob behind that is in its label."""
    name = pod.metadata.labels.get(JOB_LABEL)
    return (Key(pod.metadata.namespace, name),) if name else ()
