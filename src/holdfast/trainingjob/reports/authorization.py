"""What a worker's pod is, and what it is told: its attempt goes on or is over, stop, save now."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.reports import ReportReply, node_leaves_text
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.pods.failure import has_preemption_notice, index_of
from holdfast.runtime.informer import Store
from holdfast.runtime.report_server import NotInCacheYet, ReportingPod
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES, SPEC_CHANGED, restart_reason
from holdfast.trainingjob.objects import names

BY_ATTEMPT = "attempt"

# Whether the job with this key and uid is gone.
IsGone: TypeAlias = Callable[[Key, str], Awaitable[bool]]


def worker_pod(pod: Pod) -> ReportingPod | None:
    """None for a pod that is no worker of a TrainingJob."""
    labels = pod.metadata.labels
    job, index = names.worker_of(pod), labels.get(names.INDEX_LABEL, "")
    if job is None or not _is_number(index):
        return None
    return ReportingPod(pod.metadata.key, pod.metadata.uid, job, int(labels[names.ATTEMPT_LABEL]), int(index))


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
