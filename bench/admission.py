"""Gang admission of a full cluster, beside a survey: python -m bench.admission [RUNNING WAITING NODES]

A look after each event, by what has changed. The survey, which is the reference of the tests, reads every job and every
node anew for it, as the operator did before. Times are the processor's; what is printed is how many times longer the
survey takes, and a loop over all nodes that does nothing but read what is free.
"""

import asyncio
import gc
import logging
import sys
import time
from random import Random
from typing import Any, cast

import msgspec
import structlog

from bench.many_jobs import say
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
        self._stores = Informers(ScriptedCluster(), (), metrics=Metrics(), random=Random(0))
        operator = cast("Operator", self._stores)
        self.ledger = SharedLedger(operator)
        self.admission = GangAdmission.of(
            operator, shared_ledger=self.ledger, template=template, now=lambda: NOW, starvation_timeout_s=600.0
        )
        self.admission.attach(self._stores, lambda _: None)
        self._full = FullReader(self._stores, template, lambda _: ())
        self._nodes = nodes
        for number in range(nodes):
            self.put(NODES, _node(number))
        for number in range(running):
            self.run(number)
        for number in range(running, running + waiting):
            self.put(TRAINING_JOBS, _job(number, gpus=(1, 2, 4)[number % 3]))

    def run(self, number: int) -> None:
        """A job whose workers all have nodes."""
        job = _job(number, gpus=2)
        self.put(TRAINING_JOBS, job)
        self.put(JOBS, attempt := _attempt(job))
        for worker in range(WORKERS):
            self.put(PODS, _pod(attempt, worker, (number * WORKERS + worker) % self._nodes))

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
        queue = self._full.read(NOW)
        gangs = [entry for entry in queue.values() if isinstance(entry, Gang)]
        survey(gangs, self.ledger.ledger, NOW, 600.0)
        return time.process_time() - began

    def read_nodes(self) -> float:
        began = time.process_time()
        ledger = self.ledger.ledger
        assert sum(ledger.free(name).get(GPU, 0) for name in ledger.nodes) >= 0
        return time.process_time() - began

    def start_looking(self) -> list[float]:
        """The first look, which reads everything."""
        self.admission.decision(_job(0))
        return self.look()

    # Events.

    def come_and_go(self, turn: int) -> None:
        """A pod of others ends, or takes what it left."""
        self.put(PODS, _other(turn // 2, phase="Succeeded" if turn % 2 else "Running"))

    def end_one(self, turn: int) -> None:
        """A job ends, and the first in line gets its place and is bound."""
        self.look()
        done = _job(turn)
        for worker in range(WORKERS):
            self.remove(PODS, Key("ml", f"{names.job_name(done)}-{worker}"))
        self.put(TRAINING_JOBS, _with_state(done, "Completed"))

    def join(self, turn: int) -> None:
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


def _pod(attempt: Job, worker: int, on: int) -> Pod:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": attempt.metadata.name, "uid": attempt.metadata.uid}
    meta = {"name": f"{attempt.metadata.name}-{worker}", "namespace": "ml", "labels": {names.JOB_LABEL: "x"}}
    return _bound({**meta, "ownerReferences": [{**owner, "controller": True}]}, on, {GPU: "2", "cpu": "2"}, "Running")


def _other(number: int, phase: str) -> Pod:
    return _bound({"name": f"other-{number}", "namespace": "kube-system"}, number, {"cpu": "1"}, phase)


def _bound(meta: JSON, on: int, requests: dict[str, str], phase: str) -> Pod:
    containers = [{"name": "main", "resources": {"requests": requests}}]
    spec = {"nodeName": f"gpu-{on:05}", "containers": containers}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, Pod)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


async def run(running: int, waiting: int, nodes: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    cluster = Cluster(running, waiting, nodes)
    say(f"{running:,} running jobs, {waiting:,} waiting ones, {nodes:,} nodes; how many times longer than a look takes:")
    gc.collect()
    gc.freeze()
    first, survey_s, loop_s = cluster.start_looking(), cluster.survey(), cluster.read_nodes()
    header = f"{'after':>34}  {'survey':>8}  {'loop':>8}  {'longest look / loop':>20}  parts"
    say(header)
    line("the start, all of its parts", [sum(first)], [survey_s], [loop_s], max(first), len(first))
    for event in (cluster.come_and_go, cluster.end_one, cluster.join, cluster.flap):
        looks, surveys, loops, parts = [], [], [], 0
        longest = 0.0
        for turn in range(LOOKS):
            event(turn)
            took = cluster.look()
            looks.append(sum(took))
            longest, parts = max(longest, *took), max(parts, len(took))
            if turn % (LOOKS // SURVEYS) == 0:
                surveys.append(cluster.survey())
                loops.append(cluster.read_nodes())
        line((event.__doc__ or "a job joins the line").split(",")[0].strip("."), looks, surveys, loops, longest, parts)


def line(after: str, looks: list[float], surveys: list[float], loops: list[float], longest: float, parts: int) -> None:
    survey_s, loop_s, look_s = median(surveys), median(loops), median(looks)
    say(f"{after:>34}  {survey_s / look_s:7.1f}×  {loop_s / look_s:7.2f}×  {longest / loop_s:19.2f}×  {parts}")


if __name__ == "__main__":
    counts = (*map(int, sys.argv[1:4]), *(5000, 1000, 5000)[len(sys.argv) - 1 :])
    asyncio.run(run(*counts))
