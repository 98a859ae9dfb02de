"""Who stands in line, as the caches show it."""

from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.api.core.objects import Job, Pod, PriorityClass
from holdfast.api.meta import Key, ObjectMeta
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import JOBS, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.pods.template import MANAGED_SELECTOR
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.scheduling.gang import ADMITTED, AdmissionDecision, Gang
from holdfast.scheduling.ledger import GPU
from holdfast.scheduling.resources import NANO
from holdfast.trainingjob.gang_reader import GangReader, attempt_key, needs_admission
from tests.runtime.scripted import ScriptedCluster

NOW = datetime(2026, 4, 5, 12, tzinfo=UTC)
PAST, FUTURE = "2026-04-05T11:59:00Z", "2026-04-05T12:01:00Z"
UID = "job-uid"


def training_job(
    status: JSON | None = None, *, labels: JSON | None = None, deleted: str = "", **spec: Any
) -> TrainingJob:
    meta = {
        "name": "bert",
        "namespace": "ml",
        "uid": UID,
        "generation": 3,
        "creationTimestamp": PAST,
        "deletionTimestamp": deleted,
        "labels": labels or {},
    }
    body: JSON = {"metadata": meta, "spec": {"model": "m", "dataset": "d", "numWorkers": 2, **spec}}
    return msgspec.convert({**body, "status": status} if status is not None else body, TrainingJob)


def attempt(
    name: str = "bert-training", *, owner: str = UID, condition: str = "", deleted: str = "", **spec: Any
) -> Job:
    reference = {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "name": "bert", "uid": owner}
    conditions = [{"type": condition, "status": "True"}] if condition else []
    body = {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-of-{name}",
            "deletionTimestamp": deleted,
            "ownerReferences": [{**reference, "controller": True}],
        },
        "spec": {"parallelism": 2, **spec},
        "status": {"conditions": conditions},
    }
    return msgspec.convert(body, Job)


def worker(number: int, phase: str = "Running", *, on: str = "gpu-1", of: str = "bert-training") -> Pod:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": of, "uid": f"uid-of-{of}", "controller": True}
    meta = {"name": f"{of}-{number}", "namespace": "ml", "labels": {"training-job": "bert"}}
    body = {
        "metadata": {**meta, "ownerReferences": [reference]},
        "spec": {"nodeName": on},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


def template(job: TrainingJob) -> JSON:
    """Each worker asks for as many GPUs as the job says."""
    resources = {"limits": {GPU: job.spec.gpus_per_worker or 1}}
    return {"metadata": {"labels": {"training-job": "bert"}}, "spec": {"containers": [{"resources": resources}]}}


class TrainingJobCaches:
    """What an operator would have in its stores."""

    def __init__(self, *things: TrainingJob | Job | Pod | PriorityClass) -> None:
        operator = Operator(ScriptedCluster(), identity="test", now=utc_now, random=Random(0), metrics=Metrics())
        self.built = 0
        self.avoided: tuple[str, ...] = ()
        self.gangs = GangReader(operator, self._template, lambda _: self.avoided)
        self.jobs, self.attempts = operator.store(TRAINING_JOBS), operator.store(JOBS, labels=MANAGED_SELECTOR)
        self.pods, self.classes = operator.store(PODS), operator.store(PRIORITY_CLASSES)
        self.put(*things)

    def put(self, *things: TrainingJob | Job | Pod | PriorityClass) -> None:
        for thing in things:
            match thing:
                case TrainingJob():
                    self.jobs.put(thing)
                case Job():
                    self.attempts.put(thing)
                case Pod():
                    self.pods.put(thing)
                case _:
                    self.classes.put(thing)

    def entry(self) -> Gang | AdmissionDecision | None:
        """The one entry, if there is one, after everything was read anew."""
        return read(self.gangs, *self.jobs.keys())

    def gang(self) -> Gang:
        found = self.entry()
        assert isinstance(found, Gang)
        return found

    def _template(self, job: TrainingJob) -> JSON:
        self.built += 1
        return template(job)


def read(gangs: GangReader, *keys: Key) -> Gang | AdmissionDecision | None:
    for key in keys:
        gangs.mark_changed(key)
    list(gangs.read_changed(NOW, lambda: False))
    return next((entry.value for entry in gangs.entries()), None)


@pytest.mark.parametrize(
    ("job", "stands"),
    [
        (training_job(), True),
        (training_job({}), True),
        (training_job({"state": "Pending"}), True),
        (training_job({"state": "Running"}), True),
        (training_job({"state": "Restarting"}), True),
        (training_job({"state": "Suspended"}), True),
        (training_job({"state": "Completed"}), False),
        (training_job({"state": "Failed"}), False),
        (training_job(suspend=True), False),
        (training_job(deleted=PAST), False),
        (training_job(labels={"kueue.x-k8s.io/queue-name": "team"}), False),
        (training_job({"state": "Pending", "nextRetryTime": FUTURE}), False),
        (training_job({"state": "Pending", "nextRetryTime": PAST}), True),
        (training_job({"state": "Restarting", "nextRetryTime": FUTURE}), True),
    ],
)
async def test_a_job_stands_in_line_while_room_is_to_be_found_or_kept_for_it(job: TrainingJob, stands: bool) -> None:
    assert needs_admission(job, NOW) is stands
    assert (TrainingJobCaches(job).entry() is not None) is stands


async def test_a_job_that_waits_brings_what_decides_its_turn() -> None:
    gang = TrainingJobCaches(training_job(gpusPerWorker=4, numWorkers=3)).gang()
    assert (str(gang.key), gang.uid, gang.workers, gang.created_at) == ("ml/bert", UID, 3, PAST)
    assert (gang.state, gang.priority, gang.unbound) == ("waiting", 0, 0)
    assert gang.shape.requests[GPU] == 4 * NANO


@pytest.mark.parametrize(
    ("status", "children", "expected"),
    [
        (None, (), "waiting"),
        ({"state": "Pending"}, (attempt(suspend=True),), "waiting"),
        ({"state": "Suspended"}, (attempt(suspend=True),), "waiting"),
        ({"state": "Initializing"}, (attempt(),), "started"),
        ({"state": "Running"}, (attempt(),), "started"),
        ({"state": "Running"}, (attempt(condition="FailureTarget"),), "started"),
        ({"state": "Running"}, (attempt(condition="Failed"),), "keeping"),
        ({"state": "Restarting", "restartCount": 1}, (attempt(),), "keeping"),
        ({"state": "Restarting", "restartCount": 1}, (attempt("bert-training-1"),), "started"),
        ({"state": "Restarting", "restartCount": 1}, (attempt("bert-training-1", suspend=True),), "keeping"),
        ({"state": "Running"}, (attempt(deleted=PAST),), "waiting"),
        ({"state": "Pending"}, (attempt(owner="somebody else"),), "waiting"),
    ],
)
async def test_where_a_job_stands_follows_from_its_current_attempt(
    status: JSON | None, children: tuple[Job, ...], expected: str
) -> None:
    assert TrainingJobCaches(training_job(status), *children).gang().state == expected


@pytest.mark.parametrize(
    ("pods", "unbound", "machines"),
    [
        ((), 2, ()),
        ((worker(0, on=""), worker(1, on="")), 2, ()),
        ((worker(0), worker(1, on="")), 1, ("gpu-1",)),
        ((worker(0), worker(1, on="gpu-2")), 0, ("gpu-1", "gpu-2")),
        ((worker(0), worker(1, "Succeeded")), 0, ("gpu-1",)),
        ((worker(0), worker(1, "Failed")), 1, ("gpu-1",)),
        ((worker(0, of="bert-training-1"), worker(1, of="bert-training-1")), 2, ()),
        ((worker(0), worker(1), worker(2)), 0, ("gpu-1", "gpu-1", "gpu-1")),
    ],
)
async def test_room_is_kept_for_each_worker_that_has_neither_a_machine_nor_finished(
    pods: tuple[Pod, ...], unbound: int, machines: tuple[str, ...]
) -> None:
    gang = TrainingJobCaches(training_job(), attempt(), *pods).gang()
    assert (gang.unbound, gang.nodes) == (unbound, machines)


async def test_an_attempt_is_as_large_as_it_was_made() -> None:
    gang = TrainingJobCaches(training_job(numWorkers=8), attempt(parallelism=3)).gang()
    assert (gang.state, gang.unbound) == ("started", 3)


async def test_a_job_whose_attempt_is_complete_asks_for_nothing() -> None:
    assert TrainingJobCaches(training_job({"state": "Running"}), attempt(condition="Complete")).entry() == ADMITTED


def restarting(kind: str, status: str) -> JSON:
    told = {"type": kind, "status": status, "reason": "x", "message": "", "lastTransitionTime": FUTURE}
    return {"state": "Restarting", "restartCount": 1, "conditions": [told]}


@pytest.mark.parametrize(
    ("kind", "status", "since"),
    [("Restarting", "True", FUTURE), ("Restarting", "False", ""), ("Running", "True", "")],
)
async def test_a_restart_lasts_since_the_condition_says_so(kind: str, status: str, since: str) -> None:
    assert TrainingJobCaches(training_job(restarting(kind, status))).gang().restarting_since == since


def named(name: str, value: int, *, default: bool = False) -> PriorityClass:
    return PriorityClass(metadata=ObjectMeta(name=name), value=value, global_default=default)


@pytest.mark.parametrize(
    ("wish", "classes", "priority"),
    [
        ({}, (), 0),
        ({}, (named("high", 100),), 0),
        ({}, (named("usual", 7, default=True), named("high", 100)), 7),
        ({}, (named("usual", 7, default=True), named("lower", 5, default=True)), 5),
        ({"scheduling": {"nodeSelector": {"a": "b"}}}, (named("usual", 7, default=True),), 7),
        ({"scheduling": {"priority": "high"}}, (named("usual", 7, default=True), named("high", 100)), 100),
        ({"scheduling": {"priority": "low"}}, (named("low", -10),), -10),
    ],
)
async def test_the_priority_is_that_of_the_class_or_of_the_default_one(
    wish: JSON, classes: tuple[PriorityClass, ...], priority: int
) -> None:
    assert TrainingJobCaches(training_job(**wish), *classes).gang().priority == priority


async def test_a_class_that_is_not_there_is_named_and_holds_back_only_who_has_not_started() -> None:
    job = training_job(scheduling={"priority": "high"})
    assert TrainingJobCaches(job).entry() == AdmissionDecision(
        admitted=False, message="PriorityClass high does not exist: create it, or remove scheduling.priority"
    )
    assert TrainingJobCaches(job, attempt()).gang().state == "started"


async def test_a_turn_that_was_granted_counts_as_started_until_it_is_seen_to_run() -> None:
    caches = TrainingJobCaches(job := training_job())
    caches.gangs.mark_admitted(attempt_key(job))
    assert (caches.gang().state, caches.gang().unbound) == ("started", 2)
    caches.put(attempt(suspend=True))
    assert caches.gang().unbound == 2, "made, and not let go yet"
    caches.put(attempt(), worker(0))
    assert (caches.gang().state, caches.gang().unbound) == ("started", 1)
    caches.put(attempt(suspend=True))
    assert caches.gang().state == "waiting", "stopped again: it needs a new turn"


@pytest.mark.parametrize(
    "change",
    [
        training_job({"state": "Pending", "nextRetryTime": FUTURE}),
        training_job(suspend=True),
        training_job({"state": "Failed"}),
        training_job(deleted=PAST),
    ],
)
async def test_a_turn_is_lost_by_who_leaves_the_line(change: TrainingJob) -> None:
    caches = TrainingJobCaches(job := training_job())
    caches.gangs.mark_admitted(attempt_key(job))
    caches.put(change)
    assert caches.entry() is None
    caches.put(job)
    assert caches.gang().state == "waiting"


async def test_a_turn_is_for_one_attempt_of_one_spec() -> None:
    for other in (training_job({"state": "Restarting", "restartCount": 1}), _changed(training_job(numWorkers=4))):
        caches = TrainingJobCaches(job := training_job())
        caches.gangs.mark_admitted(attempt_key(job))
        caches.put(other)
        assert caches.gang().state != "started"


def _changed(job: TrainingJob) -> TrainingJob:
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, generation=4))


async def test_what_a_worker_asks_for_is_worked_out_once_for_each_spec() -> None:
    caches = TrainingJobCaches(job := training_job())
    assert caches.gang().shape is caches.gang().shape
    assert caches.built == 1
    caches.put(_changed(job))
    caches.gang()
    assert caches.built == 2


async def test_what_a_worker_asks_for_is_worked_out_anew_when_nodes_are_lost() -> None:
    caches = TrainingJobCaches(training_job())
    caches.gang()
    for avoided, built in ((("gpu-1",), 2), (("gpu-1",), 2), (("gpu-1", "gpu-2"), 3)):
        caches.avoided = avoided
        caches.gang()
        assert caches.built == built


@pytest.mark.parametrize("strange", [{"spec": {}}, {"metadata": {}, "spec": {"containers": 3}}, {}])
async def test_a_job_that_can_not_be_made_out_is_left_to_who_makes_its_workers(strange: JSON) -> None:
    operator = Operator(ScriptedCluster(), identity="test", now=utc_now, random=Random(0), metrics=Metrics())
    operator.store(TRAINING_JOBS).put(training_job())
    assert read(GangReader(operator, lambda _: strange, lambda _: ()), training_job().metadata.key) == ADMITTED
