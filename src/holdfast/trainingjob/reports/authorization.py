"""Authorizes reports: a pod may report about its own worker of its own job, while its attempt is the current one."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.reports import ReportReply, WorkerReport, node_leaves_text
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cluster.errors import NotFound, Undecodable
from holdfast.cluster.protocol import Cluster, Identity
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.errors import HoldfastError
from holdfast.pods.failure import has_preemption_notice, index_of
from holdfast.runtime.informer import Store
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES, SPEC_CHANGED, restart_reason
from holdfast.trainingjob.objects import names

BY_ATTEMPT = "attempt"

# Whether the job with this key and uid is gone.
IsGone: TypeAlias = Callable[[Key, str], Awaitable[bool]]


class ReportNotAllowed(HoldfastError):
    """The caller is authenticated, but may not send this report."""


class NotInCacheYet(HoldfastError):
    """The caches do not have the caller's pod or job yet; the caller may retry."""


class ReportingPod(Struct, frozen=True):
    """A worker's pod, as the cluster knows it."""

    pod: Key
    uid: str
    job: Key
    attempt: int
    index: int


def identify_pod(identity: Identity, pods: Store[Pod]) -> ReportingPod:
    if not identity.pod_name or not identity.pod_uid:
        raise ReportNotAllowed("the token is not bound to a pod: use the projected one of the worker's own pod")
    key = Key(identity.namespace, identity.pod_name)
    pod = pods.get(key)
    if pod is None:
        raise NotInCacheYet(f"pod {key} is not known here: try again in a moment")
    labels = pod.metadata.labels
    job, index = names.worker_of(pod), labels.get(names.INDEX_LABEL, "")
    if pod.metadata.uid != identity.pod_uid or job is None or not _is_number(index):
        raise ReportNotAllowed(f"pod {key} is not a worker of a TrainingJob")
    return ReportingPod(key, pod.metadata.uid, job, int(labels[names.ATTEMPT_LABEL]), int(index))


def ensure_own_report(caller: ReportingPod, batch: WorkerReport) -> None:
    """The report must be about the caller itself."""
    reported = (Key(batch.namespace, batch.job), batch.attempt, batch.index)
    if reported != (caller.job, caller.attempt, caller.index):
        raise ReportNotAllowed(
            f"pod {caller.pod} is worker {caller.index} of attempt {caller.attempt} of {caller.job}, "
            "and may report nothing else"
        )


async def find_reply(caller: ReportingPod, uid: str, jobs: Store[TrainingJob], is_gone: IsGone) -> ReportReply:
    """The state of the caller's attempt; `uid` is that of the job that the caller was created for.

    A caller that learns that its attempt is over stops its training: a missing cache entry is no reason for that.
    """
    job = jobs.get(caller.job)
    if job is None or job.metadata.uid != uid:
        if not await is_gone(caller.job, uid):
            raise NotInCacheYet(f"{caller.job} is not known here: try again in a moment")
        # The job was deleted, and perhaps recreated under the same name. Its workers save before they stop; workers of
        # the new job start once the old ones are gone, so checkpoints that are saved until then count.
        has_begun = job is not None and job.status is not None and bool(job.status.start_time)
        attempt = names.attempt(job) if job is not None else caller.attempt
        return ReportReply(attempt=attempt, attempt_over=True, is_graceful=not has_begun)
    return reply_for_attempt(caller, job)


def reply_for_attempt(caller: ReportingPod, job: TrainingJob) -> ReportReply:
    current = names.attempt(job)
    if caller.attempt > current:
        raise NotInCacheYet(f"attempt {caller.attempt} of {caller.job} is not known here: try again in a moment")
    status = job.status or TrainingJobStatus()
    if caller.attempt < current or status.state in FINISHED_STATES:
        is_next = caller.attempt == current - 1 and status.state not in FINISHED_STATES
        return ReportReply(
            attempt=current, attempt_over=True, is_graceful=is_next and restart_reason(status) == SPEC_CHANGED
        )
    epochs = status.epochs
    if epochs is None or epochs.attempt != current:
        return ReportReply(attempt=current, attempt_over=False)
    return ReportReply(attempt=current, attempt_over=False, stop=epochs.goal or "", recorded_epoch=epochs.done)


def trainer_succeeded(caller: ReportingPod, pods: Store[Pod]) -> bool:
    """Whether the training in the caller's pod ended with exit code 0; the sidecar itself can't know."""
    pod = pods.get(caller.pod)
    ends = [status.state.terminated for status in pod.status.container_statuses] if pod is not None else []
    return bool(ends) and all(end is not None and not end.exit_code and not end.signal for end in ends)


def save_notice(caller: ReportingPod, pods: Store[Pod], nodes: Store[Node]) -> str:
    """Why the caller's training should save now: another worker, or the node of a worker, is about to go."""
    gang = pods.by(BY_ATTEMPT, _attempt_key(caller.job, caller.attempt))
    if any(pod.metadata.uid == caller.uid and pod.is_terminating for pod in gang):
        return ""  # the termination of its own pod already requests the save
    node_names = {pod.spec.node_name for pod in gang}
    leaving = sorted(
        name for name in node_names if (node := nodes.get(Key("", name))) is not None and has_preemption_notice(node)
    )
    if leaving:
        return node_leaves_text(leaving)
    stopping = min((index_of(pod) for pod in gang if pod.is_terminating and not pod.is_finished), default=None)
    return f"worker {stopping} is about to be stopped" if stopping is not None else ""


def attempt_of(pod: Pod) -> Iterable[str]:
    """An index of worker pods by attempt."""
    if (job := names.worker_of(pod)) is not None:
        yield _attempt_key(job, int(pod.metadata.labels[names.ATTEMPT_LABEL]))


def _attempt_key(job: Key, attempt: int) -> str:
    return f"{job}#{attempt}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


# Jobs that are certainly deleted: a cache that lags, or is not synced yet, may lack a job that exists.


class DeletedJobs:
    """Queries the cluster, and caches at most `memory` deleted jobs: a uid never comes back."""

    def __init__(self, cluster: Cluster, *, memory: int = 10_000) -> None:
        self._cluster = cluster
        self._memory = memory
        self._gone: OrderedDict[tuple[Key, str], None] = OrderedDict()

    async def is_gone(self, job: Key, uid: str) -> bool:
        """Raises a `ClusterError` when the query fails."""
        if (job, uid) in self._gone:
            return True
        try:
            found = await self._cluster.get(TRAINING_JOBS, job)
            if found.metadata.uid == uid:
                return False
        except Undecodable:
            return False  # no cache can hold the object, but it exists
        except NotFound:
            pass
        self._gone[job, uid] = None
        if len(self._gone) > self._memory:
            self._gone.popitem(last=False)
        return True
