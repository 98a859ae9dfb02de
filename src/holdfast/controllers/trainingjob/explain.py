"""Finds out why workers do not start, when they take longer than usual; not more often than it can be of use."""

from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.builtin import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.controllers.trainingjob.observe import BY_BOARD
from holdfast.controllers.trainingjob.reasons import EventExplanations, start_problems_from_events
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.timing import Timing
from holdfast.planning.trainingjob.waiting import problem_of
from holdfast.planning.trainingjob.wake import explain_after
from holdfast.runtime.cache import Store
from holdfast.runtime.events import Recorder

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
