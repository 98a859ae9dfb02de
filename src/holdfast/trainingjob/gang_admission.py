"""Gang admission of TrainingJobs: a job starts when all its workers fit.

One pass over all waiting jobs runs shortly after a change.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog
from msgspec import structs

from holdfast.api.core.objects import Job, Pod, PodSpec, PriorityClass
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
from holdfast.trainingjob.objects.storage import shared_location

# Reads from the caches which jobs wait for capacity, and which jobs have it.

BY_JOB = "job"
BY_STORAGE = "place"

# The pod template of a job's workers, as written into their Job.
Template: TypeAlias = Callable[[TrainingJob], Mapping[str, Any]]
# Nodes that a job's workers must not run on.
Avoided: TypeAlias = Callable[[TrainingJob], tuple[str, ...]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class AttemptKey(NamedTuple):
    """The subject of an admission decision: one attempt of one job, at one generation of its spec."""

    key: Key
    uid: str
    attempt: str
    generation: int


def attempt_key(job: TrainingJob) -> AttemptKey:
    return AttemptKey(job.metadata.key, job.metadata.uid, names.job_name(job), job.metadata.generation)


def is_queued(job: TrainingJob) -> bool:
    """Whether Kueue decides when the job starts."""
    return names.QUEUE_LABEL in job.metadata.labels


def needs_admission(job: TrainingJob, now: datetime) -> bool:
    """Whether capacity has to be found or reserved for the job's workers."""
    if job.metadata.deletion_timestamp or job.spec.suspend or is_queued(job):
        return False
    status = job.status
    if status is None:
        return True
    held_off = status.state == "Pending" and status.next_retry_time and now < parse_time(status.next_retry_time)
    return status.state not in FINISHED_STATES and not held_off


def job_of_worker(pod: Pod) -> Iterable[str]:
    """The uid of the Job that owns a worker pod."""
    owner = pod.metadata.controller
    return (owner.uid,) if owner is not None and names.JOB_LABEL in pod.metadata.labels else ()


def storage_of(job: TrainingJob) -> Iterable[str]:
    """The checkpoint storage of the job, if the job stores checkpoints."""
    storage = shared_location(job)
    return (storage,) if storage else ()


def waits_for_store(job: TrainingJob, jobs: Store[TrainingJob]) -> str:
    """Why the job must not start while another job uses its checkpoint storage; "" when no other job does."""
    return "".join(store_in_use(job, jobs.by(BY_STORAGE, storage), storage) for storage in storage_of(job))


class GangReader:
    """Reads the jobs as gangs. The requirements of a worker are computed once for each spec."""

    def __init__(self, operator: Operator, template: Template, avoided: Avoided) -> None:
        self._template = template
        self._avoided = avoided
        self._shapes: dict[tuple[AttemptKey, tuple[str, ...]], PodRequirements | None] = {}
        self._jobs: Store[TrainingJob] = operator.store(TRAINING_JOBS, {BY_STORAGE: storage_of})
        self._attempts: Store[Job] = operator.store(JOBS, labels=MANAGED_SELECTOR)
        self._pods: Store[Pod] = operator.store(PODS, {BY_JOB: job_of_worker})
        self._classes: Store[PriorityClass] = operator.store(PRIORITY_CLASSES)
        self._admitted: set[AttemptKey] = set()

    def read(self, now: datetime) -> dict[AttemptKey, Gang | AdmissionDecision]:
        """All jobs in the queue. A job that needs no search for capacity gets its decision here."""
        queue = {attempt_key(job): self._entry(job) for job in self._jobs if needs_admission(job, now)}
        self._admitted &= queue.keys()
        self._shapes = {key: shape for key, shape in self._shapes.items() if key[0] in queue}
        return queue

    def mark_admitted(self, attempt_id: AttemptKey) -> None:
        """The attempt may start. Its capacity stays reserved until the attempt is seen to run or leaves the queue."""
        self._admitted.add(attempt_id)

    def _entry(self, job: TrainingJob) -> Gang | AdmissionDecision:
        attempt_id, attempt, shape = attempt_key(job), self._attempt(job), self._shape(job)
        if shape is None or (attempt is not None and attempt.condition("Complete")):
            return ADMITTED
        gang = Gang(
            key=job.metadata.key,
            uid=job.metadata.uid,
            workers=job.spec.num_workers,
            shape=shape,
            created_at=job.metadata.creation_timestamp,
        )
        if attempt is not None and _is_running(attempt):
            self._admitted.discard(attempt_id)
            return self._running_gang(gang, attempt)
        if message := waits_for_store(job, self._jobs):
            return AdmissionDecision(admitted=False, message=message)
        if attempt_id in self._admitted:
            return structs.replace(gang, state="started", unbound=gang.workers)
        return self._waiting(gang, job, is_broken=attempt is not None and attempt.condition("Failed") is not None)

    def _running_gang(self, gang: Gang, attempt: Job) -> Gang:
        """A failed worker is replaced, by its Job or in the next attempt, so its capacity stays reserved."""
        pods = self._pods.by(BY_JOB, attempt.metadata.uid)
        nodes = tuple(pod.spec.node_name for pod in pods if pod.spec.node_name and not pod.is_finished)
        done = sum(pod.status.phase == "Succeeded" for pod in pods)
        unbound = max(0, attempt.spec.parallelism - len(nodes) - done)
        return structs.replace(gang, state="started", unbound=unbound, nodes=nodes)

    def _waiting(self, gang: Gang, job: TrainingJob, *, is_broken: bool) -> Gang | AdmissionDecision:
        name = job.spec.scheduling.priority if job.spec.scheduling is not None else None
        priority = self._priority(name)
        if priority is None:
            message = f"PriorityClass {name} does not exist: create it, or remove scheduling.priority"
            return AdmissionDecision(admitted=False, message=message)
        gang = structs.replace(gang, priority=priority)
        if not is_broken and not _is_restarting(job):
            return gang
        return structs.replace(gang, state="keeping", restarting_since=_restarting_since(job))

    def _attempt(self, job: TrainingJob) -> Job | None:
        found = self._attempts.get(Key(job.metadata.namespace, names.job_name(job)))
        owner = found.metadata.controller if found is not None else None
        return found if owner is not None and owner.uid == job.metadata.uid else None

    def _priority(self, name: str | None) -> int | None:
        """The value of the named class, else of the default class; of several defaults Kubernetes takes the lowest."""
        if name:
            found = self._classes.get(Key("", name))
            return found.value if found is not None else None
        return min((each.value for each in self._classes if each.global_default), default=0)

    def _shape(self, job: TrainingJob) -> PodRequirements | None:
        """None when the requirements can't be computed: making the workers fails as well then, and reports why."""
        shape_key = (attempt_key(job), self._avoided(job))
        if shape_key not in self._shapes:
            try:
                self._shapes[shape_key] = _shape(self._template(job), job.metadata.namespace)
            except Exception:
                # One malformed job must not keep all other jobs from starting.
                log.exception("the workers' pods can't be made out", key=str(job.metadata.key))
                self._shapes[shape_key] = None
        return self._shapes[shape_key]


def _shape(template: Mapping[str, Any], namespace: str) -> PodRequirements:
    return shape_of(msgspec.convert(template["spec"], PodSpec), template["metadata"].get("labels", {}), namespace)


def _is_running(attempt: Job) -> bool:
    return not (attempt.spec.suspend or attempt.metadata.deletion_timestamp or attempt.condition("Failed"))


def _is_restarting(job: TrainingJob) -> bool:
    return job.status is not None and job.status.state == "Restarting"


def _restarting_since(job: TrainingJob) -> str:
    conditions = job.status.conditions if job.status is not None else ()
    return next((c.last_transition_time for c in conditions if (c.type, c.status) == ("Restarting", "True")), "")


T = TypeVar("T", bound=Object)

# Changes come in bursts: all pods of a job, all jobs of a user.
PAUSE_S = 0.005
# The reason for waiting is written into the job's status. A message that changes faster than people read is not worth
# a write, and a changed number even less: a long queue must not drown in its own status writes.
MESSAGE_INTERVAL_S = 1.0
NUMBERS_INTERVAL_S = 30.0
# After a failed pass; the cause may be temporary.
RETRY_S = 5.0
# 3 nodes have 2 free, 1 node has 2 free, no node has 2 free: the same message with other numbers.
NUMBER = re.compile(r"(no node|[0-9]+ nodes?) (has|have)|[0-9]+")


class PublishedDecision(NamedTuple):
    """The last decision that a job was requeued for, and when."""

    decision: AdmissionDecision
    at_s: float


class GangAdmission:
    """An event source of the TrainingJob controller: requeues a job when its admission decision changes."""

    def __init__(
        self,
        gangs: GangReader,
        shared_ledger: SharedLedger,
        *,
        now: Now,
        starvation_timeout_s: float,
        per_namespace: int,
        enabled: bool,
    ) -> None:
        self._gangs = gangs
        self._shared_ledger = shared_ledger
        self._now = now
        self._starvation_timeout_s = starvation_timeout_s
        self._per_namespace = per_namespace
        self._enabled = enabled
        self._ledger = shared_ledger.ledger
        self._version = shared_ledger.ledger.version
        self._published: dict[AttemptKey, PublishedDecision] = {}
        self._add: Callable[[Key], None] = lambda _: None
        # No reconcile asks before all stores are synced and this process leads. Until then a pass would be wrong or
        # useless.
        self._is_active = False
        self._pause_s = PAUSE_S
        self._next_pass: asyncio.TimerHandle | None = None
        self._recheck: asyncio.TimerHandle | None = None

    @classmethod
    def of(
        cls,
        operator: Operator,
        *,
        shared_ledger: SharedLedger,
        template: Template,
        avoided: Avoided = lambda _: (),
        now: Now,
        starvation_timeout_s: float,
        per_namespace: int = 1,
        enabled: bool = True,
    ) -> "GangAdmission":
        """Reads the operator's stores. `shape` returns the pod template of a job's workers, with the nodes to avoid."""
        gangs = GangReader(operator, template, avoided)
        return cls(
            gangs,
            shared_ledger,
            now=now,
            starvation_timeout_s=starvation_timeout_s,
            per_namespace=per_namespace,
            enabled=enabled,
        )

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        if not self._enabled:
            return
        self._add = add
        self._shared_ledger.attach(informers)
        self._ledger.listeners.append(self._on_capacity_change)
        informers.of(TRAINING_JOBS).handlers.append(self._on_change(_queue_key))
        informers.of(JOBS).handlers.append(self._on_change(_attempt_fields))
        informers.of(PRIORITY_CLASSES).handlers.append(self._on_change(lambda each: (each.value, each.global_default)))

    def decision(self, job: TrainingJob) -> AdmissionDecision | None:
        """Whether the job's attempt may start; None outside the queue, or before a pass, which requeues the job."""
        self._is_active = True
        if not self._enabled or is_queued(job):
            return ADMITTED
        if not needs_admission(job, self._now()):
            return None
        published = self._published.get(attempt_key(job))
        if published is None:
            self._schedule_pass()
        return published.decision if published is not None else None

    def _on_capacity_change(self, _node: str) -> None:
        """Schedules a pass when free capacity changes; the expected demand of the gangs themselves does not count."""
        if self._ledger.version != self._version:
            self._version = self._ledger.version
            self._schedule_pass()

    def _on_change(self, relevant: Callable[[T], object]) -> Handler[T]:
        """Schedules a pass when a relevant field of an object changes."""

        def changed(old: T | None, new: T | None) -> None:
            if old is None or new is None or relevant(old) != relevant(new):
                self._schedule_pass()

        return changed

    def _schedule_pass(self, after_s: float = 0.0) -> None:
        """The pause before a pass is at least as long as the last pass took."""
        if self._is_active and self._next_pass is None:
            loop = asyncio.get_running_loop()
            self._next_pass = loop.call_later(max(self._pause_s, after_s), self._run_pass)

    def _run_pass(self) -> None:
        self._next_pass = None
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
        queue = self._gangs.read(now)
        gangs = {attempt_id: entry for attempt_id, entry in queue.items() if isinstance(entry, Gang)}
        result = run_admission(gangs.values(), self._ledger, now, self._starvation_timeout_s, self._per_namespace)
        self._ledger.set_gang_demand(result.demand, result.held_nodes)
        decided = result.decisions
        for attempt_id, gang in gangs.items():
            if gang.state != "started" and decided[attempt_id.uid].admitted:
                self._gangs.mark_admitted(attempt_id)
        decisions = {
            attempt_id: decided[attempt_id.uid] if isinstance(entry, Gang) else entry
            for attempt_id, entry in queue.items()
        }
        delays_s = [
            *self._publish(decisions, at_s),
            *_starvation_left_s(gangs.values(), now, self._starvation_timeout_s),
        ]
        if self._recheck is not None:
            self._recheck.cancel()
        self._recheck = asyncio.get_running_loop().call_later(min(delays_s), self._schedule_pass) if delays_s else None

    def _publish(self, decisions: Mapping[AttemptKey, AdmissionDecision], at_s: float) -> list[float]:
        """Publishes a changed admission at once; a changed message may wait. Returns the delays of these messages."""
        before, self._published = self._published, {}
        delays_s = []
        for attempt_id, decision in decisions.items():
            published = before.get(attempt_id)
            if published is not None and published.decision.admitted == decision.admitted:
                if published.decision.message == decision.message:
                    self._published[attempt_id] = PublishedDecision(decision, published.at_s)
                    continue
                interval_s = _message_interval_s(published.decision.message, decision.message)
                if at_s < published.at_s + interval_s:
                    self._published[attempt_id] = published
                    delays_s.append(published.at_s + interval_s - at_s)
                    continue
            self._published[attempt_id] = PublishedDecision(decision, at_s)
            log.debug("verdict", key=str(attempt_id.key), admitted=decision.admitted, message=decision.message)
            self._add(attempt_id.key)
        return delays_s


def _message_interval_s(old: str, new: str) -> float:
    return NUMBERS_INTERVAL_S if NUMBER.sub("", old) == NUMBER.sub("", new) else MESSAGE_INTERVAL_S


def _starvation_left_s(gangs: Iterable[Gang], now: datetime, starvation_timeout_s: float) -> Iterator[float]:
    """When the patience of a restarting job ends its capacity becomes free, and no event reports that."""
    for gang in gangs:
        left_s = starvation_timeout_s - gang.waited_s(now)
        if gang.state == "keeping" and left_s >= 0:
            # One second more: by then the patience is over.
            yield left_s + 1.0


def _queue_key(job: TrainingJob) -> object:
    """The fields that decide whether and where the job is in the queue; its progress does not matter."""
    status = job.status
    state = (status.state, status.next_retry_time) if status is not None else None
    return attempt_key(job), job.metadata.deletion_timestamp, is_queued(job), state


def _attempt_fields(job: Job) -> object:
    return job.spec, job.metadata.deletion_timestamp, job.condition("Complete"), job.condition("Failed")
