"""The TrainingJobs as gangs: which wait for capacity, and which have it. Only jobs that have changed are read anew."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
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
from holdfast.runtime.operator import Operator
from holdfast.scheduling.constraints import PodRequirements, shape_of
from holdfast.scheduling.gang import ADMITTED, AdmissionDecision, Gang
from holdfast.times import parse_time
from holdfast.trainingjob.decide.checkpoints import store_in_use
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.storage import shared_location

BY_JOB = "job"
BY_STORAGE = "place"

# The pod template of a job's workers, as written into their Job.
Template: TypeAlias = Callable[[TrainingJob], Mapping[str, Any]]
# Nodes that a job's workers must not run on.
Avoided: TypeAlias = Callable[[TrainingJob], tuple[str, ...]]

T = TypeVar("T", bound=Object)

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
    if job.status is None:
        return True
    until = held_off_until(job)
    return job.status.state not in FINISHED_STATES and not (until is not None and now < until)


def held_off_until(job: TrainingJob) -> datetime | None:
    """Until when the job has no turn, since its last one failed."""
    status = job.status
    if status is None or status.state != "Pending" or not status.next_retry_time:
        return None
    return parse_time(status.next_retry_time)


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


# Of a gang whose workers all have nodes: nobody asks what they require.
WITH_NODES = PodRequirements(requests={}, constraints=PodSpec(), digest=b"")


class Entry(NamedTuple):
    """A job in the queue: its gang, or its decision where there is no capacity to find."""

    attempt_id: AttemptKey
    value: Gang | AdmissionDecision


class EntryChange(NamedTuple):
    """None outside the queue."""

    before: Entry | None
    after: Entry | None


class GangReader:
    """Reads the jobs as gangs, each when something about it has changed, and the requirements of its workers when they
    matter. `on_change` is called when a pass may be needed.
    """

    def __init__(self, operator: Operator, template: Template, avoided: Avoided) -> None:
        self._template = template
        self._avoided = avoided
        self._shapes: dict[Key, tuple[AttemptKey, tuple[str, ...], PodRequirements | None]] = {}
        self._jobs: Store[TrainingJob] = operator.store(TRAINING_JOBS, {BY_STORAGE: storage_of})
        self._attempts: Store[Job] = operator.store(JOBS, labels=MANAGED_SELECTOR)
        self._pods: Store[Pod] = operator.store(PODS, {BY_JOB: job_of_worker})
        self._classes: Store[PriorityClass] = operator.store(PRIORITY_CLASSES)
        self._entries: dict[Key, Entry] = {}
        self._admitted: dict[Key, AttemptKey] = {}
        self._unread: dict[Key, None] = {}
        self._is_late = False
        # Jobs that turn into other gangs with time alone, and when to read them again.
        self._read_again_at: dict[Key, datetime] = {}

    def attach(self, informers: Informers, on_change: Callable[[], None]) -> None:
        def follow(handler: Handler[T], relevant: Callable[[T], object]) -> Handler[T]:
            def changed(old: T | None, new: T | None) -> None:
                if old is None or new is None or relevant(old) != relevant(new):
                    handler(old, new)
                    on_change()

            return changed

        def pod_changed(old: Pod | None, new: Pod | None) -> None:
            """A worker that has come can wait until it is asked for; what a worker leaves has to be kept."""
            if _place_of(old) != _place_of(new):
                self._worker_changed(old, new)
                if old is not None and _place_of(old):
                    on_change()

        informers.of(TRAINING_JOBS).handlers.append(follow(self._job_changed, _job_fields))
        informers.of(JOBS).handlers.append(follow(self._attempt_changed, _attempt_fields))
        informers.of(PODS).handlers.append(pod_changed)
        informers.of(PRIORITY_CLASSES).handlers.append(
            follow(self._class_changed, lambda each: (each.value, each.global_default))
        )

    @property
    def is_behind(self) -> bool:
        return bool(self._unread)

    def entries(self) -> Collection[Entry]:
        """The queue, as far as it was read."""
        return self._entries.values()

    def read_changed(self, now: datetime, is_late: Callable[[], bool]) -> Iterator[EntryChange]:
        """What has changed in the queue. When it is late the rest is left for the next time."""
        if not self._is_late:
            self._unread.update((key, None) for key, at in self._read_again_at.items() if at <= now)
        while self._unread:
            self._is_late = is_late()
            if self._is_late:
                return
            key = next(reversed(self._unread))
            before, after = self._entries.get(key), self._read(key, now)
            del self._unread[key]
            if after is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = after
            if after != before:
                yield EntryChange(before, after)

    def mark_admitted(self, attempt_id: AttemptKey) -> None:
        """The attempt may start. Its capacity stays reserved until the attempt is seen to run or leaves the queue."""
        self._admitted[attempt_id.key] = attempt_id

    def mark_changed(self, key: Key) -> None:
        """Read the job again before the next pass."""
        if key in self._entries or self._jobs.get(key) is not None:
            self._unread[key] = None
        else:
            self._unread.pop(key, None)

    def _job_changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        for job in filter(None, (old, new)):
            self.mark_changed(job.metadata.key)
            for storage in storage_of(job):
                for other in self._jobs.by(BY_STORAGE, storage):
                    self.mark_changed(other.metadata.key)

    def _attempt_changed(self, old: Job | None, new: Job | None) -> None:
        for attempt in filter(None, (old, new)):
            if (owner := attempt.metadata.controller) is not None:
                self.mark_changed(Key(attempt.metadata.namespace, owner.name))

    def _worker_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in filter(None, (old, new)):
            owner = pod.metadata.controller
            attempt = self._attempts.get(Key(pod.metadata.namespace, owner.name)) if owner is not None else None
            self._attempt_changed(None, attempt)

    def _class_changed(self, _old: PriorityClass | None, _new: PriorityClass | None) -> None:
        for key, entry in self._entries.items():
            if entry.value != ADMITTED:
                self.mark_changed(key)

    def _read(self, key: Key, now: datetime) -> Entry | None:
        job = self._jobs.get(key)
        self._read_again_at.pop(key, None)
        attempt_id = attempt_key(job) if job is not None and needs_admission(job, now) else None
        if self._admitted.get(key) != attempt_id:
            self._admitted.pop(key, None)
        if job is not None and attempt_id is not None:
            return Entry(attempt_id, self._value(job, attempt_id))
        self._shapes.pop(key, None)
        until = held_off_until(job) if job is not None else None
        if until is not None and now < until:
            self._read_again_at[key] = until
        return None

    def _value(self, job: TrainingJob, attempt_id: AttemptKey) -> Gang | AdmissionDecision:
        attempt = self._attempt(job)
        if attempt is not None and attempt.condition("Complete"):
            return ADMITTED
        is_running = attempt is not None and _is_running(attempt)
        unbound, nodes = self._workers(attempt) if attempt is not None and is_running else (job.spec.num_workers, ())
        shape = self._shape(job, attempt_id) if unbound else self._no_shape(attempt_id.key)
        if shape is None:
            return ADMITTED
        gang = Gang(
            key=attempt_id.key,
            uid=job.metadata.uid,
            workers=job.spec.num_workers,
            shape=shape,
            created_at=job.metadata.creation_timestamp,
        )
        if is_running:
            self._admitted.pop(attempt_id.key, None)
            return structs.replace(gang, state="started", unbound=unbound, nodes=nodes)
        if message := waits_for_store(job, self._jobs):
            return AdmissionDecision(admitted=False, message=message)
        if attempt_id.key in self._admitted:
            return structs.replace(gang, state="started", unbound=gang.workers)
        return self._waiting(gang, job, is_broken=attempt is not None and attempt.condition("Failed") is not None)

    def _workers(self, attempt: Job) -> tuple[int, tuple[str, ...]]:
        """How many workers have no node yet, and the nodes of the others.

        A failed worker is replaced, by its Job or in the next attempt, so its capacity stays reserved.
        """
        pods = self._pods.by(BY_JOB, attempt.metadata.uid)
        nodes = tuple(pod.spec.node_name for pod in pods if pod.spec.node_name and not pod.is_finished)
        done = sum(pod.status.phase == "Succeeded" for pod in pods)
        return max(0, attempt.spec.parallelism - len(nodes) - done), nodes

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

    def _no_shape(self, key: Key) -> PodRequirements:
        self._shapes.pop(key, None)
        return WITH_NODES

    def _shape(self, job: TrainingJob, attempt_id: AttemptKey) -> PodRequirements | None:
        """None when the requirements can't be computed: making the workers fails as well then, and reports why."""
        key, avoided = attempt_id.key, self._avoided(job)
        if avoided:
            self._read_again_at[key] = datetime.min.replace(tzinfo=UTC)  # with every pass: nodes are avoided for a time
        known = self._shapes.get(key)
        if known is None or known[:2] != (attempt_id, avoided):
            try:
                shape = _shape(self._template(job), key.namespace)
            except Exception:
                # One malformed job must not keep all other jobs from starting.
                log.exception("the workers' pods can't be made out", key=str(key))
                shape = None
            known = self._shapes[key] = (attempt_id, avoided, shape)
        return known[2]


def _shape(template: Mapping[str, Any], namespace: str) -> PodRequirements:
    return shape_of(msgspec.convert(template["spec"], PodSpec), template["metadata"].get("labels", {}), namespace)


def _is_running(attempt: Job) -> bool:
    return not (attempt.spec.suspend or attempt.metadata.deletion_timestamp or attempt.condition("Failed"))


def _is_restarting(job: TrainingJob) -> bool:
    return job.status is not None and job.status.state == "Restarting"


def _restarting_since(job: TrainingJob) -> str:
    conditions = job.status.conditions if job.status is not None else ()
    return next((c.last_transition_time for c in conditions if (c.type, c.status) == ("Restarting", "True")), "")


def _place_of(pod: Pod | None) -> tuple[str, str]:
    """Where the pod uses capacity, and how it has ended."""
    if pod is None:
        return "", ""
    return ("", pod.status.phase) if pod.is_finished else (pod.spec.node_name, "")


def _job_fields(job: TrainingJob) -> object:
    """The fields that decide whether and where the job is in the queue; its progress does not matter."""
    status = job.status
    state = (status.state, status.next_retry_time, _restarting_since(job)) if status is not None else None
    return attempt_key(job), job.metadata.deletion_timestamp, is_queued(job), state


def _attempt_fields(job: Job) -> object:
    return job.spec, job.metadata.deletion_timestamp, job.condition("Complete"), job.condition("Failed")
