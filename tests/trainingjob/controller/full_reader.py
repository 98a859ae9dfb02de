"""All jobs read as gangs, anew at every look: what reading by changes has to agree with."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.core.objects import Job, Pod, PodSpec, PriorityClass
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.resources import JOBS, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.pods.template import MANAGED_SELECTOR
from holdfast.runtime.informer import Informers, Store
from holdfast.scheduling.constraints import PodRequirements, shape_of
from holdfast.scheduling.gang import ADMITTED, AdmissionDecision, Gang
from holdfast.trainingjob.gang_reader import (
    BY_JOB,
    BY_STORAGE,
    AttemptKey,
    Avoided,
    Template,
    attempt_key,
    job_of_worker,
    needs_admission,
    storage_of,
    waits_for_store,
)
from holdfast.trainingjob.objects import names


class FullReader:
    """Reads the jobs as gangs. The requirements of a worker are computed once for each spec."""

    def __init__(self, stores: Informers, template: Template, avoided: Avoided) -> None:
        self._template = template
        self._avoided = avoided
        self._shapes: dict[tuple[AttemptKey, tuple[str, ...]], PodRequirements | None] = {}
        self._jobs: Store[TrainingJob] = stores.store(TRAINING_JOBS, {BY_STORAGE: storage_of})
        self._attempts: Store[Job] = stores.store(JOBS, labels=MANAGED_SELECTOR)
        self._pods: Store[Pod] = stores.store(PODS, {BY_JOB: job_of_worker})
        self._classes: Store[PriorityClass] = stores.store(PRIORITY_CLASSES)
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
        shape_key = (attempt_key(job), self._avoided(job))
        if shape_key not in self._shapes:
            self._shapes[shape_key] = _shape(self._template(job), job.metadata.namespace)
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
