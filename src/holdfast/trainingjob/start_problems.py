"""Finds out why workers do not start, when they take longer than usual; not more often than it can be of use."""

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
from holdfast.trainingjob.decide.snapshot import Observed, Timing
from holdfast.trainingjob.observe import BY_BOARD

# Asks the cluster's Events why workers do not start, where neither their pods nor their Job say it.

# The API server reads all Events of the namespace for each: workers of one gang rarely wait for different things.
MOST_LISTS = 3


class EventExplanations(Struct, frozen=True):
    """For `why_waiting`: what is said about pods, by their uid, and about the Job that makes them."""

    pods: Mapping[str, str] = {}
    job: str = ""


async def start_problems_from_events(cluster: Cluster, job: Job, pods: Iterable[Pod]) -> EventExplanations:
    """What Events say, and of pods that these do not explain either how far they are."""
    pods = tuple(pods)
    silent = [pod for pod in sorted(pods, key=_name) if is_starting(pod) and not problem_of(pod)]
    bound = [pod for pod in silent if pod.spec.node_name]
    lacking = not job.spec.suspend and missing_pods(pods, job.spec.parallelism)
    asked: list[Object] = [*([job] if lacking else []), *bound][:MOST_LISTS]
    answers = await asyncio.gather(*(newest_warning(cluster, each) for each in asked))
    said = {each.metadata.uid: text for each, text in zip(asked, answers, strict=True) if text}
    refused = creation_refused_text(said.pop(job.metadata.uid)) if job.metadata.uid in said else ""
    # A step that takes long is not the reason while a problem is known.
    steps = {pod.metadata.uid: startup_step(pod) for pod in silent} if not said and not refused else {}
    return EventExplanations(pods=said or steps, job=refused)


def _name(pod: Pod) -> str:
    return pod.metadata.name


EVERY_S = 10.0


class _Answer(Struct, frozen=True):
    job_uid: str
    at: datetime
    explained: EventExplanations


class Boards:
    """Warns when a job's TensorBoard does not start, once for each reason. The job itself goes on without it."""

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
    """What events said last about each job that waits. It may be lost: it is asked for again."""

    def __init__(self, cluster: Cluster, timing: Timing) -> None:
        self._cluster = cluster
        self._timing = timing
        self._answers: dict[Key, _Answer] = {}

    async def with_start_problems(self, observed: Observed, now: datetime) -> Observed:
        key, job = observed.job.metadata.key, observed.current_job
        due = explain_after(observed, self._timing)
        if job is None or due is None:
            self.forget(key)
            return observed
        answer = self._answers.get(key)
        if answer is None or answer.job_uid != job.metadata.uid or now >= answer.at + timedelta(seconds=EVERY_S):
            if now < due:
                return observed
            answer = _Answer(job.metadata.uid, now, await start_problems_from_events(self._cluster, job, observed.pods))
            self._answers[key] = answer
        return structs.replace(observed, pod_events=answer.explained.pods, job_event=answer.explained.job)

    def next_look(self, observed: Observed, now: datetime) -> datetime | None:
        due = explain_after(observed, self._timing)
        if due is None:
            return None
        answer = self._answers.get(observed.job.metadata.key)
        return max(due, answer.at + timedelta(seconds=EVERY_S) if answer is not None else due, now)

    def forget(self, key: Key) -> None:
        self._answers.pop(key, None)
