"""Finds out why workers do not start when the start takes longer than usual, no more often than is useful."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.core.objects import Job, Pod
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.pods.start_problems import creation_refused_text, is_starting, missing_pods, problem_of, startup_step
from holdfast.runtime.children import newest_warning
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Store
from holdfast.trainingjob.decide.decision import explain_after
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot, TrainingJobTiming
from holdfast.trainingjob.observe import BY_BOARD

# Reads the reason from the cluster's Events, where neither the pods nor their Job show it.

# The API server reads all Events of the namespace for each list. Workers of one gang rarely wait for different things.
MOST_LISTS = 3


class EventExplanations(Struct, frozen=True):
    """What Events say about why workers wait: messages about pods, by uid, and about the Job that creates the pods."""

    pods: Mapping[str, str] = {}
    job: str = ""


async def start_problems_from_events(cluster: Cluster, job: Job, pods: Iterable[Pod]) -> EventExplanations:
    """The warnings in Events; without any, the startup step of each pod that shows no problem."""
    pods = tuple(pods)
    unexplained = [pod for pod in sorted(pods, key=_name) if is_starting(pod) and not problem_of(pod)]
    bound = [pod for pod in unexplained if pod.spec.node_name]
    lacking = not job.spec.suspend and missing_pods(pods, job.spec.parallelism)
    subjects: list[Object] = [*([job] if lacking else []), *bound][:MOST_LISTS]
    warnings = await asyncio.gather(*(newest_warning(cluster, subject) for subject in subjects))
    messages = {subject.metadata.uid: text for subject, text in zip(subjects, warnings, strict=True) if text}
    refused = creation_refused_text(messages.pop(job.metadata.uid)) if job.metadata.uid in messages else ""
    # A slow startup step is not the reason while a problem is known.
    steps = {pod.metadata.uid: startup_step(pod) for pod in unexplained} if not messages and not refused else {}
    return EventExplanations(pods=messages or steps, job=refused)


def _name(pod: Pod) -> str:
    return pod.metadata.name


EVERY_S = 10.0


class _CachedExplanation(Struct, frozen=True):
    job_uid: str
    at: datetime
    explanations: EventExplanations


class TensorBoardProblems:
    """Warns when a job's TensorBoard does not start, once for each reason. The job goes on without TensorBoard."""

    def __init__(self, pods: Store[Pod], events: Recorder) -> None:
        self._pods = pods
        self._events = events
        self._problems: dict[Key, str] = {}

    def warn(self, job: TrainingJob) -> None:
        key = job.metadata.key
        problem = next(filter(None, map(problem_of, self._pods.by(BY_BOARD, str(key)))), "")
        if problem and problem != self._problems.get(key):
            self._events.warning(TRAINING_JOBS, job, "TensorBoardNotStarted", f"TensorBoard does not start: {problem}")
            self._problems[key] = problem

    def forget(self, key: Key) -> None:
        self._problems.pop(key, None)


class StartProblems:
    """The last explanation from Events for each waiting job. A lost explanation is read again."""

    def __init__(self, cluster: Cluster, timing: TrainingJobTiming) -> None:
        self._cluster = cluster
        self._timing = timing
        self._cache: dict[Key, _CachedExplanation] = {}

    async def with_start_problems(self, observed: TrainingJobSnapshot, now: datetime) -> TrainingJobSnapshot:
        key, job = observed.job.metadata.key, observed.current_job
        due = explain_after(observed, self._timing)
        if job is None or due is None:
            self.forget(key)
            return observed
        cached = self._cache.get(key)
        if cached is None or cached.job_uid != job.metadata.uid or now >= cached.at + timedelta(seconds=EVERY_S):
            if now < due:
                return observed
            cached = _CachedExplanation(
                job.metadata.uid, now, await start_problems_from_events(self._cluster, job, observed.pods)
            )
            self._cache[key] = cached
        return structs.replace(observed, pod_events=cached.explanations.pods, job_event=cached.explanations.job)

    def next_check(self, observed: TrainingJobSnapshot, now: datetime) -> datetime | None:
        due = explain_after(observed, self._timing)
        if due is None:
            return None
        cached = self._cache.get(observed.job.metadata.key)
        return max(due, cached.at + timedelta(seconds=EVERY_S) if cached is not None else due, now)

    def forget(self, key: Key) -> None:
        self._cache.pop(key, None)
