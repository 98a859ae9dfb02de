"""Gang admission by what has changed, beside a survey: python -m bench.admission [RUNNING WAITING NODES]

After each event comes a look, as the operator's loop would take it, in one part or several between which other tasks
have their turn. The survey, the reference of the tests, reads every job and every node anew, as the operator did once.
The loop is over all nodes and does nothing but read what is free. Times are the processor's.
"""

import asyncio
import gc
import logging
import sys
import time
from typing import Any, cast

import msgspec
import structlog

from bench.many_jobs import say
from bench.placement import median, seeded
from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import JOBS, NODES, PODS, TRAINING_JOBS
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.scheduling.gang import Gang
from holdfast.scheduling.ledger import GPU
from holdfast.times import parse_time
from holdfast.trainingjob.gang_admission import GangAdmission
from holdfast.trainingjob.gang_reader import AttemptKey, attempt_key
from holdfast.trainingjob.objects import names
from tests.runtime.scripted import ScriptedCluster
from tests.scheduling.gang.survey import survey
from tests.trainingjob.controller.full_reader import FullReader

NOW = parse_time("2026-04-05T12:00:00Z")
CREATED = "2026-04-05T11:55:00Z"
GPUS, WORKERS = 8, 4
# Looks after each kind of event, and how many of them have a survey and a loop beside them.
LOOKS, SURVEYS = 200, 5


def template(job: TrainingJob) -> JSON:
    resources = {"requests": {GPU: job.spec.gpus_per_worker or 1, "cpu": "2", "memory": "8Gi"}}
    tolerations = [{"key": GPU, "operator": "Exists"}]
    spec = {"containers": [{"name": "trainer", "resources": resources}], "tolerations": tolerations}
    return {"metadata": {"labels": {"training-job": job.metadata.name}}, "spec": spec}


class Cluster:
    """Full nodes, jobs that run on them and jobs that wait, in the stores of an operator."""

    def __init__(self, running: int, waiting: int, nodes: int) -> None:
        self._stores = Informers(ScriptedCluster(), (), metrics=Metrics(), random=seeded(0))
        operator = cast("Operator", self._stores)
        self.ledger = SharedLedger(operator)
        self.admission = GangAdmission.of(
            operator, shared_ledger=self.ledger, template=template, now=lambda: NOW, starvation_timeout_s=600.0
        )
        self._told: list[Key] = []
        self.admission.attach(self._stores, self._told.append)
        self.full = FullReader(self._stores, template, lambda _: ())
        self._nodes = nodes
        for number in range(nodes):
            self.put(NODES, _node(number))
        for number in range(running):
            self.run(number)
        for number in range(running, running + waiting):
            self.put(TRAINING_JOBS, _job(number, gpus=(1, 2, 4)[number % 3]))

    def run(self, number: int) -> None:
        """A job whose workers all have nodes, one beside the other."""
        self.put(TRAINING_JOBS, job := _job(number))
        self._bind(job, [(number * WORKERS + worker) % self._nodes for worker in range(WORKERS)])

    def _bind(self, job: TrainingJob, nodes: list[int]) -> None:
        self.put(JOBS, attempt := _attempt(job))
        for worker, on in enumerate(nodes):
            self.put(PODS, _pod(attempt, worker, on, job.spec.gpus_per_worker or 1))

    def put(self, resource: Resource[Any], obj: Object) -> None:
        informer = self._stores.of(resource)
        old = informer.store.put(obj)
        for handler in informer.handlers:
            handler(old, obj)

    def remove(self, resource: Resource[Any], key: Key) -> None:
        informer = self._stores.of(resource)
        old = informer.store.remove(key)
        for handler in informer.handlers:
            handler(old, None)

    def look(self) -> list[float]:
        """What the events have called for: the time of each part, between which other tasks have their turn."""
        loop, parts_s = asyncio.get_running_loop(), []
        while (due := self.admission._next_pass) is not None:
            due.cancel()
            self.admission._next_pass = None
            began = time.process_time()
            self.admission._decide(loop.time())
            parts_s.append(time.process_time() - began)
        return parts_s

    def survey(self) -> float:
        began = time.process_time()
        queue = self.full.read(NOW)
        gangs = [entry for entry in queue.values() if isinstance(entry, Gang)]
        survey(gangs, self.ledger.ledger, NOW, 600.0)
        return time.process_time() - began

    def read_nodes(self) -> float:
        began = time.process_time()
        ledger = self.ledger.ledger
        assert sum(ledger.free(name).get(GPU, 0) for name in ledger.nodes) >= 0
        return time.process_time() - began

    def told(self) -> list[AttemptKey]:
        """The attempts that have heard something since the last call."""
        jobs = [self._stores.store(TRAINING_JOBS).get(key) for key in self._told]
        self._told.clear()
        return [attempt_key(job) for job in jobs if job is not None]

    def start_looking(self) -> list[float]:
        """The first look, which reads everything."""
        self.admission.decision(_job(0))
        return self.look()

    # Events.

    def come_and_go(self, turn: int) -> None:
        """A pod of others ends, or takes what it left."""
        self.put(PODS, _other(turn // 2, phase="Succeeded" if turn % 2 else "Running"))

    def end_one(self, turn: int) -> None:
        """A job ends. The one that gets its place is bound there before the next ends."""
        for attempt_id in self.told():
            job = self._stores.store(TRAINING_JOBS).get(attempt_id.key)
            decision = self.admission.decision(job) if job is not None else None
            is_bound = self._stores.of(JOBS).store.get(Key("ml", attempt_id.attempt)) is not None
            if job is not None and decision is not None and decision.admitted and not is_bound:
                nodes = [(turn - 1) * WORKERS + worker for worker in range(WORKERS)]
                self._bind(job, [number % self._nodes for number in nodes])
        self.look()
        done = _job(turn)
        for worker in range(WORKERS):
            self.remove(PODS, Key("ml", f"{names.job_name(done)}-{worker}"))
        self.put(TRAINING_JOBS, _with_state(done, "Completed"))

    def join(self, turn: int) -> None:
        """A job joins the line."""
        self.put(TRAINING_JOBS, _job(10**6 + turn, gpus=4))

    def flap(self, turn: int) -> None:
        """A node is lost, or comes back."""
        self.put(NODES, _node(turn // 2, ready=bool(turn % 2)))


def _node(number: int, *, ready: bool = True) -> Node:
    body = {
        "metadata": {"name": f"gpu-{number:05}", "labels": {}},
        "spec": {"taints": [{"key": GPU, "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {GPU: str(GPUS), "cpu": "96", "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }
    return msgspec.convert(body, Node)


def _job(number: int, *, gpus: int = 2) -> TrainingJob:
    name = f"job-{number:07}"
    meta = {"name": name, "namespace": "ml", "uid": name, "generation": 1, "creationTimestamp": CREATED}
    spec = {"model": "m", "dataset": "d", "numWorkers": WORKERS, "gpusPerWorker": gpus}
    return msgspec.convert({"metadata": meta, "spec": spec}, TrainingJob)


def _with_state(job: TrainingJob, state: str) -> TrainingJob:
    body = {**msgspec.to_builtins(job), "status": {"state": state}}
    return msgspec.convert(body, TrainingJob)


def _attempt(job: TrainingJob) -> Job:
    owner = {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "name": job.metadata.name}
    meta = {"name": names.job_name(job), "namespace": "ml", "uid": f"attempt-of-{job.metadata.uid}"}
    owners = [{**owner, "uid": job.metadata.uid, "controller": True}]
    return msgspec.convert({"metadata": {**meta, "ownerReferences": owners}, "spec": {"parallelism": WORKERS}}, Job)


def _pod(attempt: Job, worker: int, on: int, gpus: int) -> Pod:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": attempt.metadata.name, "uid": attempt.metadata.uid}
    meta = {"name": f"{attempt.metadata.name}-{worker}", "namespace": "ml", "labels": {names.JOB_LABEL: "x"}}
    asks = {GPU: str(gpus), "cpu": "2", "memory": "8Gi"}
    return _bound({**meta, "ownerReferences": [{**owner, "controller": True}]}, on, asks, "Running")


def _other(number: int, phase: str) -> Pod:
    return _bound({"name": f"other-{number}", "namespace": "kube-system"}, number, {"cpu": "1"}, phase)


def _bound(meta: JSON, on: int, requests: dict[str, str], phase: str) -> Pod:
    containers = [{"name": "main", "resources": {"requests": requests}}]
    spec = {"nodeName": f"gpu-{on:05}", "containers": containers}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, Pod)


async def measure_full(running: int, waiting: int, nodes: int) -> None:
    cluster = Cluster(running, waiting, nodes)
    say(f"\n{running:,} jobs run, {waiting:,} wait, on {nodes:,} nodes:\n")
    say(HEADER)
    gc.collect()
    gc.disable()  # what the surveys leave behind would be collected during the looks
    line("the start", [cluster.start_looking()], [cluster.survey()], [cluster.read_nodes()])
    for event in (cluster.come_and_go, cluster.end_one, cluster.join, cluster.flap):
        looks, surveys, loops = [], [], []
        for turn in range(LOOKS):
            event(turn)
            looks.append(cluster.look())
            if turn % (LOOKS // SURVEYS) == 0:
                surveys.append(cluster.survey())
                loops.append(cluster.read_nodes())
        line((event.__doc__ or "").split(".")[0].split(",")[0], looks, surveys, loops)


async def measure_burst(jobs: int, nodes: int) -> None:
    """Jobs that come one after the other, on empty nodes, while no scheduler binds any."""
    cluster, looks, surveys, loops = Cluster(0, 0, nodes), [], [], []
    cluster.start_looking()
    for number in range(jobs):
        cluster.put(TRAINING_JOBS, _job(number))
        looks.append(cluster.look())
        if number % (jobs // SURVEYS) == jobs // SURVEYS - 1:
            for told in cluster.told():
                cluster.full.mark_admitted(told)
            surveys.append(cluster.survey())
            loops.append(cluster.read_nodes())
    say(f"\n{jobs:,} jobs come to {nodes:,} empty nodes, one after the other, and none is bound yet:\n")
    say(HEADER)
    line("A job comes", looks, surveys, loops)


HEADER = f"{'':>22}  {'survey / look':>13}  {'look / loop':>11}  {'longest part / loop':>19}  {'parts':>5}"


def line(after: str, looks: list[list[float]], surveys: list[float], loops: list[float]) -> None:
    look_s, survey_s, loop_s = median(map(sum, looks)), median(iter(surveys)), median(iter(loops))
    longest_s, parts = max(max(look, default=0.0) for look in looks), max(map(len, looks))
    cells = f"{survey_s / look_s:12.1f}×  {look_s / loop_s:10.1f}×  {longest_s / loop_s:18.1f}×  {parts:5}"
    say(f"{after:>22}  {cells}")


async def run(running: int, waiting: int, nodes: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    await measure_full(running, waiting, nodes)
    await measure_burst(max(SURVEYS, waiting), nodes)


if __name__ == "__main__":
    asyncio.run(run(*map(int, sys.argv[1:4] or ("5000", "1000", "5000"))))
