"""Admission that reads what has changed says at any time what a survey of all jobs and nodes says, to the letter."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar, cast

import msgspec
import pytest

from holdfast.api.core.objects import Job, Pod, PriorityClass
from holdfast.api.meta import Key, Object, ObjectMeta
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import JOBS, NODES, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.scheduling.gang import AdmissionDecision, Gang
from holdfast.scheduling.ledger import GPU
from holdfast.times import format_time
from holdfast.trainingjob.gang_admission import GangAdmission
from holdfast.trainingjob.objects import names
from tests.runtime.scripted import ScriptedCluster
from tests.scheduling.gang.survey import survey
from tests.scheduling.nodes import node
from tests.trainingjob.controller.full_reader import FullReader

T = TypeVar("T", bound=Object)

BEGIN = datetime(2026, 4, 5, 12, tzinfo=UTC)
SEQUENCES, STEPS = 120, 25
STATES = ("Pending", "Running", "Running", "Restarting", "Restarting", "Suspended", "Completed", "Failed")
# Later than the loop's clock ever is: each look is as if hours had passed since the last, so that nothing is held back.
LATER_S = 1e9


def template(job: TrainingJob) -> JSON:
    resources = {"requests": {GPU: job.spec.gpus_per_worker or 1}}
    return {"metadata": {"labels": {}}, "spec": {"containers": [{"resources": resources}]}}


class World:
    """The stores of an operator, changed at random, with the events of each change."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.now = BEGIN
        self._stores = Informers(ScriptedCluster(), (), metrics=Metrics(), random=random)
        self._avoided: dict[Key, tuple[str, ...]] = {}
        operator = cast("Operator", self._stores)
        self.ledger = SharedLedger(operator)
        self._looks = 0
        self.admission = GangAdmission.of(
            operator,
            shared_ledger=self.ledger,
            template=self._template,
            avoided=self._avoid,
            now=lambda: self.now,
            starvation_timeout_s=600.0,
        )
        self.admission.attach(self._stores, lambda _: None)
        self._full = FullReader(self._stores, self._template, self._avoid)
        for _ in range(3):
            self._node()

    def event(self) -> None:
        events: tuple[Callable[[], None], ...] = (
            *(self._submit, self._submit, self._status, self._status, self._status, self._attempt, self._attempt),
            *(self._worker, self._worker, self._worker, self._node, self._class, self._delete, self._forget_avoided),
        )
        self._random.choice(events)()
        if self._random.random() < 0.1:
            self.now += timedelta(seconds=self._random.choice([1, 120, 601]))

    def compare(self) -> int:
        """How many decisions were compared."""
        self._looks += 1
        ends = self.admission._patience_ends
        if ends is not None and ends < self.now:
            self.admission._queue.touch()  # a timer does so
        self.admission._decide(LATER_S * self._looks)
        queue = self._full.read(self.now)
        gangs = [entry for entry in queue.values() if isinstance(entry, Gang)]
        in_order = sorted(gangs, key=lambda gang: (gang.shape.digest if gang.unbound else b"", gang.key))
        expected = survey(in_order, self.ledger.ledger, self.now, 600.0)
        decided: dict[object, AdmissionDecision] = {}
        for attempt_id, entry in queue.items():
            decided[attempt_id] = expected.decisions[attempt_id.uid] if isinstance(entry, Gang) else entry
            if isinstance(entry, Gang) and entry.state != "started" and decided[attempt_id].admitted:
                self._full.mark_admitted(attempt_id)
        assert {key: published.decision for key, published in self.admission._published.items()} == decided
        assert self.ledger.ledger.nodes_held_for_gangs == frozenset(expected.held_nodes)
        return len(decided)

    def _put(self, resource: Resource[T], obj: T) -> None:
        informer = self._stores.of(resource)
        old = informer.store.get(obj.metadata.key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self._remove(resource, old)
            old = None
        informer.store.put(obj)
        for handler in informer.handlers:
            handler(old, obj)

    def _remove(self, resource: Resource[T], obj: T) -> None:
        informer = self._stores.of(resource)
        informer.store.remove(obj.metadata.key)
        for handler in informer.handlers:
            handler(obj, None)

    def _some(self, resource: Resource[T]) -> T | None:
        found = sorted(self._stores.store(resource, labels=self._labels(resource)), key=lambda each: each.metadata.key)
        return self._random.choice(found) if found else None

    @staticmethod
    def _labels(resource: Resource[Any]) -> str:
        return "app.kubernetes.io/managed-by=holdfast" if resource is JOBS else ""

    def _submit(self) -> None:
        random = self._random
        name = f"job-{random.randrange(10)}"
        if self._stores.store(TRAINING_JOBS).get(Key("ml", name)) is not None and random.random() < 0.7:
            return
        meta = {
            "name": name,
            "namespace": "ml",
            "uid": f"{name}-{random.randrange(10**6)}",
            "generation": random.randrange(3),
            "creationTimestamp": format_time(BEGIN - timedelta(seconds=random.choice([0, 60, 900]))),
            "labels": {names.QUEUE_LABEL: "team"} if random.random() < 0.05 else {},
        }
        spec: JSON = {"model": "m", "dataset": "d", "numWorkers": random.randrange(1, 4)}
        spec["gpusPerWorker"] = random.choice([1, 1, 2, 4])
        if random.random() < 0.2:
            spec["scheduling"] = {"priority": random.choice(["high", "low"])}
        if random.random() < 0.2:
            spec["checkpoint"] = {"enabled": True, "storage": {"type": "pvc", "pvcName": "shared", "prefix": "x"}}
        self._put(TRAINING_JOBS, msgspec.convert({"metadata": meta, "spec": spec}, TrainingJob))

    def _status(self) -> None:
        job = self._some(TRAINING_JOBS)
        if job is None:
            return
        state = self._random.choice(STATES)
        count = job.status.restart_count if job.status is not None else 0
        status: JSON = {"state": state, "restartCount": count + (state == "Restarting")}
        if state == "Pending" and self._random.random() < 0.5:
            status["nextRetryTime"] = format_time(self.now + timedelta(seconds=300))
        if state == "Restarting":
            if self._random.random() < 0.3:
                self._avoided[job.metadata.key] = ("n-1",)
            told = {"type": "Restarting", "status": "True", "reason": "x", "message": ""}
            status["conditions"] = [{**told, "lastTransitionTime": format_time(self.now)}]
        spec = msgspec.structs.replace(job.spec, suspend=self._random.random() < 0.1)
        meta = msgspec.structs.replace(job.metadata, generation=job.metadata.generation + (spec != job.spec))
        body = {**msgspec.to_builtins(job), "status": status}
        changed = msgspec.structs.replace(msgspec.convert(body, TrainingJob), metadata=meta, spec=spec)
        self._put(TRAINING_JOBS, changed)

    def _attempt(self) -> None:
        job = self._some(TRAINING_JOBS)
        if job is None:
            return
        condition = self._random.choice(["", "", "", "", "Failed", "Complete"])
        owner = {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "name": job.metadata.name}
        name = names.job_name(job)
        body = {
            "metadata": {
                "name": name,
                "namespace": "ml",
                "uid": f"{job.metadata.uid}-{name}",
                "deletionTimestamp": self._random.choice(["", "", "", "", "2026-04-05T11:59:00Z"]),
                "ownerReferences": [{**owner, "uid": job.metadata.uid, "controller": True}],
            },
            "spec": {"parallelism": job.spec.num_workers, "suspend": self._random.random() < 0.3},
            "status": {"conditions": [{"type": condition, "status": "True"}] if condition else []},
        }
        self._put(JOBS, msgspec.convert(body, Job))

    def _worker(self) -> None:
        attempt = self._some(JOBS)
        if attempt is None:
            return
        name, number = attempt.metadata.name, self._random.randrange(3)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": attempt.metadata.uid}
        on = self._random.choice(["", *sorted(self.ledger.ledger.nodes)])
        requests = {GPU: self._random.choice(["1", "2"])}
        pod = {
            "metadata": {
                "name": f"{name}-{number}",
                "namespace": "ml",
                "uid": f"{name}-{number}",
                "labels": {names.JOB_LABEL: name.split("-training")[0]},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {"nodeName": on, "containers": [{"resources": {"requests": requests}}]},
            "status": {"phase": self._random.choice(["Running", "Running", "Succeeded", "Failed"])},
        }
        self._put(PODS, msgspec.convert(pod, Pod))

    def _node(self) -> None:
        flags: dict[str, Any] = self._random.choice([{}, {}, {}, {"unschedulable": True}])
        self._put(NODES, node(f"n-{self._random.randrange(5)}", gpus=self._random.choice([1, 2, 4, 8]), **flags))

    def _class(self) -> None:
        name, value = self._random.choice([("high", 100), ("low", -10), ("usual", 5)])
        self._put(
            PRIORITY_CLASSES,
            PriorityClass(metadata=ObjectMeta(name=name), value=value, global_default=self._random.random() < 0.3),
        )

    def _delete(self) -> None:
        resource: Resource[Any] = self._random.choice([TRAINING_JOBS, JOBS, PODS, PODS, NODES, PRIORITY_CLASSES])
        if (found := self._some(resource)) is not None:
            self._remove(resource, found)

    def _forget_avoided(self) -> None:
        """Time is over for some: no event tells so."""
        if self._avoided:
            del self._avoided[self._random.choice(sorted(self._avoided))]

    def _avoid(self, job: TrainingJob) -> tuple[str, ...]:
        return self._avoided.get(job.metadata.key, ()) if names.attempt(job) else ()

    def _template(self, job: TrainingJob) -> JSON:
        body = template(job)
        if avoided := self._avoid(job):
            hosts = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(avoided)}
            required = {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}
            node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
            body["spec"]["affinity"] = {"nodeAffinity": node_affinity}
        return body


@pytest.mark.parametrize("part", range(3))
async def test_what_is_read_by_changes_agrees_with_what_is_read_anew(part: int) -> None:
    compared = 0
    for seed in range(part, SEQUENCES, 3):
        world = World(Random(seed))
        for _ in range(STEPS):
            for _ in range(1 + seed % 6):
                world.event()
            compared += world.compare()
        await asyncio.sleep(0)
    assert compared > SEQUENCES // 3 * STEPS
