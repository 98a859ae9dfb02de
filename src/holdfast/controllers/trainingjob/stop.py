"""Stops what must not run any longer: the workers of an earlier attempt, of a broken one, of a job that has ended."""

from collections.abc import Iterable
from contextlib import suppress

from holdfast.api.builtin import Job, Pod
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.cluster.protocol import Propagation
from holdfast.cluster.resources import JOBS, PODS
from holdfast.planning.trainingjob.leftovers import has_stopped_creating
from holdfast.planning.trainingjob.observed import SPEC_CHANGED, Observed
from holdfast.planning.trainingjob.timing import Timing
from holdfast.runtime.writes import TrackedClient
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.checkpoints import checkpoint_storage, is_volume


async def stop_old_attempts(session: TrackedClient, observed: Observed, timing: Timing) -> None:
    """Workers of a broken gang get a short grace; those that make way for another spec, or nobody, all they have."""
    patient = observed.restart_reason == SPEC_CHANGED or observed.job.spec.suspend
    kept = checkpoint_storage(observed.job)
    is_uploaded = kept is not None and not is_volume(kept)
    grace_s = None if patient else timing.restart_upload_grace_s if is_uploaded else timing.restart_grace_s
    await stop_jobs(session, observed.old_jobs)  # first, so that no pod is made in the place of one that goes
    await stop_pods(
        session, (pod for pod in observed.running_old_pods if _is_of_earlier_attempt(pod, observed)), grace_s
    )


async def stop_finished(session: TrackedClient, observed: Observed) -> None:
    """The workers of a job that has ended; its Job stays to be looked at, and makes no others in their place."""
    job = observed.current_job
    if job is not None and not has_stopped_creating(job) and not job.metadata.deletion_timestamp:
        if observed.queued:
            await stop_jobs(session, (job,))  # its suspend is Kueue's
        else:
            guard = {"resourceVersion": job.metadata.resource_version}
            with suppress(NotFound):
                await session.patch(JOBS, job.metadata.key, {"metadata": guard, "spec": {"suspend": True}})
    await stop_pods(session, observed.pods, None)


async def stop_jobs(session: TrackedClient, jobs: Iterable[Job]) -> None:
    """Foreground: the Job is gone only when its pods are, and until then it makes no new ones."""
    for job in jobs:
        if not job.metadata.deletion_timestamp:
            # It may be gone, perhaps with another in its place.
            with suppress(NotFound, Conflict):
                await session.delete(JOBS, job.metadata.key, uid=job.metadata.uid, propagation=Propagation.FOREGROUND)


async def stop_pods(session: TrackedClient, pods: Iterable[Pod], grace_s: int | None) -> None:
    for pod in pods:
        if not pod.is_finished and _can_shorten_grace(pod, grace_s):
            with suppress(NotFound, Conflict):
                await session.delete(PODS, pod.metadata.key, uid=pod.metadata.uid, grace_period_s=grace_s)


def _can_shorten_grace(pod: Pod, grace_s: int | None) -> bool:
    if not pod.is_terminating:
        return True
    given_s = pod.metadata.deletion_grace_period_seconds
    return grace_s is not None and given_s is not None and given_s > grace_s


def _is_of_earlier_attempt(pod: Pod, observed: Observed) -> bool:
    """Those of an earlier job of this name are not this job's to stop; they go with their own."""
    number = pod.metadata.labels.get(names.ATTEMPT_LABEL, "")
    return number.isdecimal() and int(number) < names.attempt(observed.job)
