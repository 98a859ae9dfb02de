"""Lets jobs start when all their workers fit: one look at everyone who waits, a moment after something changed."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog
from msgspec import structs

from holdfast.api.core.objects import Job, Pod, PriorityClass
from holdfast.api.core.selectors import PodSpec
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.resources import JOBS, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.pods.template import MANAGED_SELECTOR
from holdfast.runtime.informer import Handler, Informers, Store
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.scheduling.constraints import PodRequirements, shape_of
from holdfast.scheduling.gang import ADMITTED, AdmissionDecision, Gang, run_admission
from holdfast.times import parse_time
from holdfast.trainingjob.decide.checkpoints import store_in_use
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.object_store import shared_place

# Reads from the caches who stands in line for room, and who has it.

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
        self._attempts: Store[Job] = operator.store(JOBS, labels=MANAGED_SELECTOR)
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


T = TypeVar("T", bound=Object)

# News comes in swarms: all pods of a job, all jobs of a user.
PAUSE_S = 0.005
# What a job waits for is written into its status: words that change faster than people read are not worth it, and
# numbers less so: a long line must not write itself to death.
MESSAGE_INTERVAL_S = 1.0
NUMBERS_CALM_S = 30.0
# After a look that failed; whatever it was may pass.
RETRY_S = 5.0
# 3 nodes have 2 free, 1 node has 2 free, no node has 2 free: the same words with other numbers.
NUMBER = re.compile(r"(no node|[0-9]+ nodes?) (has|have)|[0-9]+")


class PublishedDecision(NamedTuple):
    """The verdict that a job has heard, and when."""

    verdict: AdmissionDecision
    at_s: float


class GangAdmission:
    """A source of news for the jobs' controller: a job hears when its verdict has changed."""

    def __init__(
        self, gangs: GangReader, room: SharedLedger, *, now: Now, patience_s: float, per_namespace: int, enabled: bool
    ) -> None:
        self._gangs = gangs
        self._room = room
        self._now = now
        self._patience_s = patience_s
        self._per_namespace = per_namespace
        self._enabled = enabled
        self._ledger = room.ledger
        self._version = room.ledger.version
        self._told: dict[AttemptKey, PublishedDecision] = {}
        self._add: Callable[[Key], None] = lambda _: None
        # Nobody asks before all stores are full and this process leads; until then a look would be wrong or in vain.
        self._is_asked = False
        self._pause_s = PAUSE_S
        self._next: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None

    @classmethod
    def of(
        cls,
        operator: Operator,
        *,
        room: SharedLedger,
        shape: Template,
        avoided: Avoided = lambda _: (),
        now: Now,
        patience_s: float,
        per_namespace: int = 1,
        enabled: bool = True,
    ) -> "GangAdmission":
        """On the operator's stores. `shape` is the pod template of a job's workers, with the nodes that it avoids."""
        gangs = GangReader(operator, shape, avoided)
        return cls(gangs, room, now=now, patience_s=patience_s, per_namespace=per_namespace, enabled=enabled)

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        if not self._enabled:
            return
        self._add = add
        self._room.attach(informers)
        self._ledger.listeners.append(self._on_capacity_change)
        informers.of(TRAINING_JOBS).handlers.append(self._on_change(_queue_key))
        informers.of(JOBS).handlers.append(self._on_change(_attempt))
        informers.of(PRIORITY_CLASSES).handlers.append(self._on_change(lambda each: (each.value, each.global_default)))

    def verdict(self, job: TrainingJob) -> AdmissionDecision | None:
        """Whether the job's attempt may start; None for who is not in line, or was not looked at: it will hear."""
        self._is_asked = True
        if not self._enabled or is_queued(job):
            return ADMITTED
        if not needs_admission(job, self._now()):
            return None
        told = self._told.get(attempt_key(job))
        if told is None:
            self._schedule_pass()
        return told.verdict if told is not None else None

    def _on_capacity_change(self, _machine: str) -> None:
        """Looks again when more or less is free; what gangs themselves are expected to take makes no difference."""
        if self._ledger.version != self._version:
            self._version = self._ledger.version
            self._schedule_pass()

    def _on_change(self, seen: Callable[[T], object]) -> Handler[T]:
        """Looks again when something changed that is looked at."""

        def changed(old: T | None, new: T | None) -> None:
            if old is None or new is None or seen(old) != seen(new):
                self._schedule_pass()

        return changed

    def _schedule_pass(self, after_s: float = 0.0) -> None:
        """A look that takes long is not taken more often than it lasts."""
        if self._is_asked and self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.call_later(max(self._pause_s, after_s), self._run_pass)

    def _run_pass(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._decide(began)
        except Exception:
            log.exception("admission failed, trying again", retry_in_s=RETRY_S)
            self._schedule_pass(RETRY_S)
        self._pause_s = max(PAUSE_S, loop.time() - began)

    def _decide(self, at_s: float) -> None:
        now = self._now()
        line = self._gangs.read(now)
        gangs = {turn: entry for turn, entry in line.items() if isinstance(entry, Gang)}
        outlook = run_admission(gangs.values(), self._ledger, now, self._patience_s, self._per_namespace)
        self._ledger.set_gang_demand(outlook.taken, outlook.kept)
        judged = outlook.verdicts
        for turn, gang in gangs.items():
            if gang.state != "started" and judged[turn.uid].admitted:
                self._gangs.mark_admitted(turn)
        verdicts = {turn: judged[turn.uid] if isinstance(entry, Gang) else entry for turn, entry in line.items()}
        late_s = [*self._publish(verdicts, at_s), *_patience_left_s(gangs.values(), now, self._patience_s)]
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(min(late_s), self._schedule_pass) if late_s else None

    def _publish(self, verdicts: Mapping[AttemptKey, AdmissionDecision], at_s: float) -> list[float]:
        """Who may start hears it at once; other words can wait a little: for how long."""
        before, self._told = self._told, {}
        late_s = []
        for turn, verdict in verdicts.items():
            told = before.get(turn)
            if told is not None and told.verdict.admitted == verdict.admitted:
                if told.verdict.message == verdict.message:
                    self._told[turn] = PublishedDecision(verdict, told.at_s)
                    continue
                calm_s = _message_interval_s(told.verdict.message, verdict.message)
                if at_s < told.at_s + calm_s:
                    self._told[turn] = told
                    late_s.append(told.at_s + calm_s - at_s)
                    continue
            self._told[turn] = PublishedDecision(verdict, at_s)
            log.debug("verdict", key=str(turn.key), admitted=verdict.admitted, message=verdict.message)
            self._add(turn.key)
        return late_s


def _message_interval_s(old: str, new: str) -> float:
    return NUMBERS_CALM_S if NUMBER.sub("", old) == NUMBER.sub("", new) else MESSAGE_INTERVAL_S


def _patience_left_s(gangs: Iterable[Gang], now: datetime, patience_s: float) -> Iterator[float]:
    """When a job that restarts runs out of patience its room is free, and nothing else tells."""
    for gang in gangs:
        left_s = patience_s - gang.waited_s(now)
        if gang.state == "keeping" and left_s >= 0:
            # A moment more: then it is over.
            yield left_s + 1.0


def _queue_key(job: TrainingJob) -> object:
    """What decides whether and where it stands in line; its progress does not."""
    status = job.status
    told = (status.state, status.next_retry_time) if status is not None else None
    return attempt_key(job), job.metadata.deletion_timestamp, is_queued(job), told


def _attempt(job: Job) -> object:
    return job.spec, job.metadata.deletion_timestamp, job.condition("Complete"), job.condition("Failed")
