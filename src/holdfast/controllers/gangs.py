"""Reads from the caches who stands in line for room, and who has it."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec
import structlog
from msgspec import structs

from holdfast.api.builtin import Job, Pod, PriorityClass
from holdfast.api.meta import Key
from holdfast.api.placing import PodSpec
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.resources import JOBS, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.planning.admission import ADMITTED, AdmissionDecision, Gang, PodRequirements, shape_of
from holdfast.planning.times import parse_time
from holdfast.planning.trainingjob.observed import FINISHED_STATES
from holdfast.planning.trainingjob.waiting import store_in_use
from holdfast.runtime.cache import Store
from holdfast.runtime.operator import Operator
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.stores import shared_place

BY_JOB = "job"
BY_PLACE = "place"

# The pod template of a job's workers, as it is written into their Job.
Template: TypeAlias = Callable[[TrainingJob], Mapping[str, Any]]
# Nodes that a job's workers must not be put on.
Avoided: TypeAlias = Callable[[TrainingJob], tuple[str, ...]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class AttemptKey(NamedTuple):
    """What a verdict is about: one attempt of one job, as its spec is written."""

    key: Key
    uid: str
    attempt: str
    generation: int


def attempt_key(job: TrainingJob) -> AttemptKey:
    return AttemptKey(job.metadata.key, job.metadata.uid, names.job_name(job), job.metadata.generation)


def is_queued(job: TrainingJob) -> bool:
    """Whether Kueue decides when it starts."""
    return names.QUEUE_LABEL in job.metadata.labels


def needs_admission(job: TrainingJob, now: datetime) -> bool:
    """Whether room has to be found or kept for the job's workers."""
    if job.metadata.deletion_timestamp or job.spec.suspend or is_queued(job):
        return False
    status = job.status
    if status is None:
        return True
    held_off = status.state == "Pending" and status.next_retry_time and now < parse_time(status.next_retry_time)
    return status.state not in FINISHED_STATES and not held_off


def job_of_worker(pod: Pod) -> Iterable[str]:
    """The uid of the Job that a worker is of."""
    owner = pod.metadata.controller
    return (owner.uid,) if owner is not None and names.JOB_LABEL in pod.metadata.labels else ()


def place_of(job: TrainingJob) -> Iterable[str]:
    """Where the job keeps its checkpoints, if it does."""
    place = shared_place(job)
    return (place,) if place else ()


def waits_for_store(job: TrainingJob, jobs: Store[TrainingJob]) -> str:
    """Why the job must not start while another one uses its place for checkpoints; "" if none does."""
    return "".join(store_in_use(job, jobs.by(BY_PLACE, place), place) for place in place_of(job))


class GangReader:
    """The jobs as gangs. What a worker asks for is worked out once for each spec."""

    def __init__(self, operator: Operator, template: Template, avoided: Avoided) -> None:
        self._template = template
        self._avoided = avoided
        self._shapes: dict[tuple[AttemptKey, tuple[str, ...]], PodRequirements | None] = {}
        self._jobs: Store[TrainingJob] = operator.store(TRAINING_JOBS, {BY_PLACE: place_of})
        self._attempts: Store[Job] = operator.store(JOBS, labels=names.MANAGED_SELECTOR)
        self._pods: Store[Pod] = operator.store(PODS, {BY_JOB: job_of_worker})
        self._classes: Store[PriorityClass] = operator.store(PRIORITY_CLASSES)
        self._granted: set[AttemptKey] = set()

    def read(self, now: datetime) -> dict[AttemptKey, Gang | AdmissionDecision]:
        """Everyone who stands in line; a verdict for whom no room has to be looked for."""
        line = {attempt_key(job): self._entry(job) for job in self._jobs if needs_admission(job, now)}
        self._granted &= line.keys()
        self._shapes = {turn: shape for turn, shape in self._shapes.items() if turn[0] in line}
        return line

    def mark_admitted(self, turn: AttemptKey) -> None:
        """It may start; until it is seen to run, or no longer stands in line, nobody else gets its room."""
        self._granted.add(turn)

    def _entry(self, job: TrainingJob) -> Gang | AdmissionDecision:
        turn, attempt, shape = attempt_key(job), self._attempt(job), self._shape(job)
        if shape is None or (attempt is not None and attempt.condition("Complete")):
            return ADMITTED
        gang = Gang(
            key=job.metadata.key,
            uid=job.metadata.uid,
            workers=job.spec.num_workers,
            shape=shape,
            created_at=job.metadata.creation_timestamp,
        )
        if attempt is not None and _runs(attempt):
            self._granted.discard(turn)
            return self._running_gang(gang, attempt)
        if message := waits_for_store(job, self._jobs):
            return AdmissionDecision(admitted=False, message=message)
        if turn in self._granted:
            return structs.replace(gang, state="started", unbound=gang.workers)
        return self._waiting(gang, job, is_broken=attempt is not None and attempt.condition("Failed") is not None)

    def _running_gang(self, gang: Gang, attempt: Job) -> Gang:
        """A worker that has failed is replaced, by its Job or in the next attempt: its room is kept."""
        pods = self._pods.by(BY_JOB, attempt.metadata.uid)
        machines = tuple(pod.spec.node_name for pod in pods if pod.spec.node_name and not pod.is_finished)
        done = sum(pod.status.phase == "Succeeded" for pod in pods)
        unbound = max(0, attempt.spec.parallelism - len(machines) - done)
        return structs.replace(gang, state="started", unbound=unbound, machines=machines)

    def _waiting(self, gang: Gang, job: TrainingJob, *, is_broken: bool) -> Gang | AdmissionDecision:
        name = job.spec.scheduling.priority if job.spec.scheduling is not None else None
        priority = self._priority(name)
        if priority is None:
            message = f"PriorityClass {name} does not exist: create it, or remove scheduling.priority"
            return AdmissionDecision(admitted=False, message=message)
        gang = structs.replace(gang, priority=priority)
        if not is_broken and not _restarts(job):
            return gang
        return structs.replace(gang, state="keeping", restarting_since=_restarting_since(job))

    def _attempt(self, job: TrainingJob) -> Job | None:
        found = self._attempts.get(Key(job.metadata.namespace, names.job_name(job)))
        owner = found.metadata.controller if found is not None else None
        return found if owner is not None and owner.uid == job.metadata.uid else None

    def _priority(self, name: str | None) -> int | None:
        """Of the class that is named, else of the default one; of several defaults Kubernetes takes the lowest."""
        if name:
            found = self._classes.get(Key("", name))
            return found.value if found is not None else None
        return min((each.value for each in self._classes if each.global_default), default=0)

    def _shape(self, job: TrainingJob) -> PodRequirements | None:
        """None when it can't be made out: whoever makes the workers will fail as well, and say why."""
        turn = (attempt_key(job), self._avoided(job))
        if turn not in self._shapes:
            try:
                self._shapes[turn] = _shape(self._template(job), job.metadata.namespace)
            except Exception:
                # One strange job must not keep all others from starting.
                log.exception("the workers' pods can't be made out", key=str(job.metadata.key))
                self._shapes[turn] = None
        return self._shapes[turn]


def _shape(template: Mapping[str, Any], namespace: str) -> PodRequirements:
    return shape_of(msgspec.convert(template["spec"], PodSpec), template["metadata"].get("labels", {}), namespace)


def _runs(attempt: Job) -> bool:
    return not (attempt.spec.suspend or attempt.metadata.deletion_timestamp or attempt.condition("Failed"))


def _restarts(job: TrainingJob) -> bool:
    return job.status is not None and job.status.state == "Restarting"


def _restarting_since(job: TrainingJob) -> str:
    conditions = job.status.conditions if job.status is not None else ()
    return next((c.last_transition_time for c in conditions if (c.type, c.status) == ("Restarting", "True")), "")
