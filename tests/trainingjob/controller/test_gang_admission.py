"""Gang admission on the operator's own stores, on a cluster in this process where the test plays all other parts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.api.trainingjob import KIND, TrainingJob
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions
from holdfast.cluster.resources import JOBS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.controller import Controller, Done, Result, TerminalError
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.scheduling.gang import ADMITTED, AdmissionDecision
from holdfast.scheduling.ledger import GPU
from holdfast.times import format_time
from holdfast.trainingjob import gang_admission as admission_module
from holdfast.trainingjob.gang_admission import GangAdmission
from tests.control_plane.waiting import eventually


def template(job: TrainingJob) -> JSON:
    resources = {"requests": {GPU: job.spec.gpus_per_worker or 1}}
    return {
        "metadata": {"labels": {"training-job": job.metadata.name}},
        "spec": {"containers": [{"name": "trainer", "resources": resources}]},
    }


class Asking:
    """A reconciler that does nothing but ask; what it is told is what the job was told last."""

    def __init__(self, operator: Operator, admission: GangAdmission) -> None:
        self._jobs = operator.store(TRAINING_JOBS)
        self._admission = admission
        self.told: dict[str, AdmissionDecision | None] = {}
        self.asked = 0

    async def reconcile(self, key: Key) -> Result:
        self.asked += 1
        job = self._jobs.get(key)
        self.told[key.name] = self._admission.decision(job) if job is not None else None
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """Nothing is final here."""


class AdmissionLab:
    """A cluster, an operator on it that asks for every job, and a clock that the test can advance."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ahead = timedelta()
        self.asking: Asking
        self.admission: GangAdmission

    def now(self) -> datetime:
        return utc_now() + self.ahead

    async def node(self, name: str, gpus: int) -> None:
        room = {GPU: str(gpus), "cpu": "8", "memory": "64Gi", "pods": "110"}
        condition = {"type": "Ready", "status": "True"}
        status = {"allocatable": room, "capacity": room, "conditions": [condition]}
        await self.cluster.create(NODES, {"metadata": {"name": name}, "status": status})

    async def submit(self, name: str, workers: int, gpus: int, **spec: Any) -> None:
        body = {"model": "m", "dataset": "d", "numWorkers": workers, "gpusPerWorker": gpus, **spec}
        await self.cluster.create(TRAINING_JOBS, {"metadata": {"name": name}, "spec": body}, namespace="ml")

    async def status(self, name: str, **status: Any) -> None:
        await self.cluster.patch_status(TRAINING_JOBS, Key("ml", name), {"status": status})

    async def start(self, name: str, workers: int, *, suspend: bool = False, attempt: str = "") -> str:
        """The job's Job, as its controller would make it; its uid."""
        job = await self.cluster.get(TRAINING_JOBS, Key("ml", name))
        owner = _owner(KIND.api_version, KIND.kind, name, job.metadata.uid)
        container = {"name": "trainer", "image": "x"}
        body = {
            "metadata": {
                "name": attempt or f"{name}-training",
                "labels": {"app.kubernetes.io/managed-by": "holdfast"},
                "ownerReferences": [owner],
            },
            "spec": {
                "completions": workers,
                "parallelism": workers,
                "completionMode": "Indexed",
                "suspend": suspend,
                "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
            },
        }
        return (await self.cluster.create(JOBS, body, namespace="ml")).metadata.uid

    async def worker(self, name: str, number: int, job_uid: str, *, node: str, gpus: int) -> Key:
        owner = _owner("batch/v1", "Job", f"{name}-training", job_uid)
        resources = {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
        body = {
            "metadata": {"name": f"{name}-{number}", "labels": {"training-job": name}, "ownerReferences": [owner]},
            "spec": {"nodeName": node, "containers": [{"name": "trainer", "image": "x", "resources": resources}]},
        }
        return (await self.cluster.create(PODS, body, namespace="ml")).metadata.key

    async def told(self, name: str, expected: AdmissionDecision | str) -> None:
        """Wait until the job has heard this; a text is what it waits for."""

        def right(verdict: AdmissionDecision | None) -> bool:
            return (
                verdict == expected
                if isinstance(expected, AdmissionDecision)
                else verdict is not None and (not verdict.admitted and verdict.message == expected)
            )

        await eventually(self.verdict(name), right, what=f"{name} hears {expected}")

    def verdict(self, name: str) -> Callable[[], Awaitable[AdmissionDecision | None]]:
        """A look at what the job has heard last."""

        async def look() -> AdmissionDecision | None:
            return self.asking.told.get(name)

        return look


def _owner(version: str, kind: str, name: str, uid: str) -> JSON:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


@pytest.fixture
async def lab() -> AsyncIterator[AdmissionLab]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0), bookmark_s=1.0)
    await cluster.create(NAMESPACES, {"metadata": {"name": "ml"}})
    yield AdmissionLab(cluster)
    await cluster.close()


class Running:
    """An operator for as long as the test wants it."""

    def __init__(self, lab: AdmissionLab, **options: Any) -> None:
        self._lab = lab
        self._options = options

    async def __aenter__(self) -> "Running":
        lab = self._lab
        self._operator = Operator(lab.cluster, identity="test", now=utc_now, random=Random(0), metrics=Metrics())
        lab.admission = GangAdmission.of(
            self._operator,
            shared_ledger=SharedLedger(self._operator),
            template=template,
            now=lab.now,
            **{"starvation_timeout_s": 600.0, **self._options},
        )
        lab.asking = Asking(self._operator, lab.admission)
        controller = Controller(
            name="asking",
            resource=TRAINING_JOBS,
            reconciler=lab.asking,
            writer=self._operator.writer(),
            watches=(lab.admission,),
        )
        self._operator.add(controller)
        self._running = asyncio.create_task(self._operator.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._operator.stop()
        await self._running


async def test_a_job_starts_when_its_workers_fit_and_hears_when_that_changes(lab: AdmissionLab) -> None:
    async with Running(lab):
        await lab.submit("bert", 2, 2)
        await lab.told("bert", "no node is there")
        await lab.node("gpu-1", 2)
        await eventually(lab.verdict("bert"), lambda it: it is not None and it.impossible, what="it can't fit")
        await lab.node("gpu-2", 2)
        await lab.told("bert", ADMITTED)


async def test_room_that_others_give_back_lets_the_next_start(lab: AdmissionLab) -> None:
    await lab.node("gpu-1", 2)
    await lab.node("gpu-2", 2)
    other = await lab.worker("other", 0, "foreign-job", node="gpu-1", gpus=1)
    async with Running(lab):
        await lab.submit("bert", 2, 2)
        await lab.told("bert", "needs 2 × 2 GPUs; 1 node has 2 free")
        await lab.cluster.patch_status(PODS, other, {"status": {"phase": "Succeeded"}})
        await lab.told("bert", ADMITTED)


async def test_the_same_room_is_not_given_twice_while_nothing_of_the_first_is_seen(lab: AdmissionLab) -> None:
    await lab.node("gpu-1", 4)
    async with Running(lab):
        await lab.submit("first", 1, 4)
        await lab.told("first", ADMITTED)
        await lab.submit("second", 1, 4, scheduling={"nodeSelector": {}})
        await lab.told("second", "needs 1 × 4 GPUs; no node has 4 free")
        await lab.start("first", 1, suspend=True)
        uid = (await lab.cluster.get(JOBS, Key("ml", "first-training"))).metadata.uid
        await lab.cluster.patch(JOBS, Key("ml", "first-training"), {"spec": {"suspend": False}})
        await lab.worker("first", 0, uid, node="gpu-1", gpus=4)
        await lab.submit("third", 1, 1)
        await lab.told("third", "needs 1 × 1 GPU; no node has 1 free")
        assert lab.asking.told["first"] == ADMITTED
        await lab.cluster.delete(TRAINING_JOBS, Key("ml", "first"))
        await lab.cluster.delete(PODS, Key("ml", "first-0"), DeleteOptions(grace_period_s=0))
        await lab.told("second", ADMITTED)


async def test_a_job_that_is_held_off_loses_its_turn_and_gets_one_when_the_time_has_come(lab: AdmissionLab) -> None:
    await lab.node("gpu-1", 4)
    async with Running(lab):
        await lab.submit("first", 1, 4)
        await lab.told("first", ADMITTED)
        later = format_time(lab.now() + timedelta(hours=1))
        await lab.status("first", state="Pending", nextRetryTime=later)
        await lab.submit("second", 1, 4)
        await lab.told("second", ADMITTED)
        await eventually(lab.verdict("first"), lambda it: it is None, what="the first is out of the line")
        lab.ahead = timedelta(hours=2)
        # Its controller looks at it when its time has come.
        await lab.status("first", message="again")
        await lab.told("first", "needs 1 × 4 GPUs; no node has 4 free")


async def test_the_next_attempt_needs_a_turn_of_its_own_and_comes_before_those_who_wait(lab: AdmissionLab) -> None:
    await lab.node("gpu-1", 4)
    async with Running(lab):
        await lab.submit("first", 1, 4)
        await lab.told("first", ADMITTED)
        uid = await lab.start("first", 1)
        pod = await lab.worker("first", 0, uid, node="gpu-1", gpus=4)
        await lab.submit("second", 1, 1)
        await lab.told("second", "needs 1 × 1 GPU; no node has 1 free")
        await lab.status("first", state="Restarting", restartCount=1)
        await lab.told("first", "needs 1 × 4 GPUs; no node has 4 free")
        await lab.cluster.delete(PODS, pod, DeleteOptions(grace_period_s=0))
        await lab.told("first", ADMITTED)
        assert lab.asking.told["second"] != ADMITTED


async def test_a_restart_that_lost_its_machine_for_good_makes_room_after_a_while(lab: AdmissionLab) -> None:
    await lab.node("gpu-1", 4)
    async with Running(lab, starvation_timeout_s=2.0):
        await lab.submit("first", 2, 4)
        told = {"type": "Restarting", "status": "True", "reason": "x", "message": "", "observedGeneration": 1}
        since = format_time(lab.now())
        await lab.status(
            "first", state="Restarting", restartCount=1, conditions=[{**told, "lastTransitionTime": since}]
        )
        await eventually(lab.verdict("first"), lambda it: it is not None and it.position == 1, what="it waits")
        await lab.submit("second", 1, 1)
        await lab.told("second", ADMITTED)


async def test_priority_comes_from_the_class_and_a_class_that_is_made_later_is_found(lab: AdmissionLab) -> None:
    await lab.node("gpu-1", 4)
    held = await lab.worker("other", 0, "foreign-job", node="gpu-1", gpus=1)
    async with Running(lab):
        await lab.submit("usual", 1, 4)
        await lab.submit("urgent", 1, 4, scheduling={"priority": "urgent"})
        await lab.told("urgent", "PriorityClass urgent does not exist: create it, or remove scheduling.priority")
        await lab.cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100})
        await lab.told("urgent", "needs 1 × 4 GPUs; no node has 4 free")
        await lab.cluster.delete(PODS, held, DeleteOptions(grace_period_s=0))
        await lab.told("urgent", ADMITTED)
        assert lab.asking.told["usual"] != ADMITTED


async def test_who_queues_at_kueue_is_not_held_back_here(lab: AdmissionLab) -> None:
    async with Running(lab):
        body = {"model": "m", "dataset": "d", "numWorkers": 100}
        labels = {"kueue.x-k8s.io/queue-name": "team"}
        await lab.cluster.create(
            TRAINING_JOBS, {"metadata": {"name": "bert", "labels": labels}, "spec": body}, namespace="ml"
        )
        await lab.told("bert", ADMITTED)


async def test_without_admission_everyone_starts_at_once(lab: AdmissionLab) -> None:
    async with Running(lab, enabled=False):
        await lab.submit("bert", 100, 64)
        await lab.told("bert", ADMITTED)
        assert lab.asking.asked == 1, "nobody is woken for it"


async def test_heartbeats_and_progress_cause_no_look(lab: AdmissionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.node("gpu-1", 1)
    calls = 0
    soon = GangAdmission._schedule_pass

    def counting(self: GangAdmission, after_s: float = 0.0) -> None:
        nonlocal calls
        calls += 1
        soon(self, after_s)

    monkeypatch.setattr(GangAdmission, "_schedule_pass", counting)
    async with Running(lab):
        await lab.submit("bert", 1, 1)
        await lab.told("bert", ADMITTED)
        before = calls
        for beat in range(5):
            condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:00:0{beat}Z"}
            await lab.cluster.patch_status(NODES, Key("", "gpu-1"), {"status": {"conditions": [condition]}})
            await lab.status("bert", progress=f"{beat}%", currentEpoch=beat)
        # What counts comes last: when it was looked at, the others were seen as well.
        await lab.cluster.patch(NODES, Key("", "gpu-1"), {"metadata": {"labels": {"zone": "a"}}})
        await lab.submit("next", 1, 1)
        await lab.told("next", "needs 1 × 1 GPU; no node has 1 free")
        # The label, the new job and its question, and that the other has a status at all: not one of ten for each beat.
        assert 2 <= calls - before <= 5


async def test_a_look_that_fails_is_taken_again(lab: AdmissionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "RETRY_S", 0.05)
    judge, failures = GangAdmission._decide, 0

    def failing(self: GangAdmission, at_s: float) -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise RuntimeError("as told")
        judge(self, at_s)

    monkeypatch.setattr(GangAdmission, "_decide", failing)
    await lab.node("gpu-1", 1)
    async with Running(lab):
        await lab.submit("bert", 1, 1)
        await lab.told("bert", ADMITTED)
    assert failures == 2


async def test_new_numbers_are_told_with_some_calm_and_a_start_at_once(
    lab: AdmissionLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "NUMBERS_INTERVAL_S", 3600.0)
    for number in (1, 2, 3):
        await lab.node(f"gpu-{number}", 1)
        await lab.worker("other", number, "foreign-job", node=f"gpu-{number}", gpus=1)
    async with Running(lab):
        await lab.submit("bert", 3, 1)
        await lab.told("bert", "needs 3 × 1 GPU; no node has 1 free")
        await lab.cluster.delete(PODS, Key("ml", "other-1"), DeleteOptions(grace_period_s=0))
        # A second job tells that this was looked at.
        await lab.submit("next", 3, 1)
        await lab.told("next", "needs 3 × 1 GPU; 1 node has 1 free")
        assert lab.asking.told["bert"] == AdmissionDecision(
            admitted=False, message="needs 3 × 1 GPU; no node has 1 free", position=1
        )
        for number in (2, 3):
            await lab.cluster.delete(PODS, Key("ml", f"other-{number}"), DeleteOptions(grace_period_s=0))
        await lab.told("bert", ADMITTED)


async def test_new_numbers_are_told_in_the_end_though_nothing_else_happens(
    lab: AdmissionLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "NUMBERS_INTERVAL_S", 0.5)
    await lab.node("gpu-1", 1)
    await lab.node("gpu-2", 1)
    for number in (1, 2):
        await lab.worker("other", number, "foreign-job", node=f"gpu-{number}", gpus=1)
    async with Running(lab):
        await lab.submit("bert", 2, 1)
        await lab.told("bert", "needs 2 × 1 GPU; no node has 1 free")
        await lab.cluster.delete(PODS, Key("ml", "other-1"), DeleteOptions(grace_period_s=0))
        await lab.told("bert", "needs 2 × 1 GPU; 1 node has 1 free")


async def test_another_reason_is_told_soon_however_calm_numbers_are(
    lab: AdmissionLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "NUMBERS_INTERVAL_S", 3600.0)
    await lab.node("gpu-1", 1)
    await lab.worker("other", 1, "foreign-job", node="gpu-1", gpus=1)
    async with Running(lab):
        await lab.submit("bert", 1, 1)
        await lab.told("bert", "needs 1 × 1 GPU; no node has 1 free")
        await lab.cluster.delete(NODES, Key("", "gpu-1"))
        await lab.told("bert", "no node is there")


async def test_nobody_looks_while_the_stores_are_half_full(lab: AdmissionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine would seem empty to who has not seen the pods yet."""
    await lab.node("gpu-1", 1)
    await lab.worker("other", 0, "foreign-job", node="gpu-1", gpus=1)
    await lab.submit("bert", 1, 1)
    listing = lab.cluster.list

    async def slow(resource: Any, **how: Any) -> Any:
        if resource is PODS:
            await asyncio.sleep(0.5)
        return await listing(resource, **how)

    monkeypatch.setattr(lab.cluster, "list", slow)
    async with Running(lab):
        await eventually(lab.verdict("bert"), lambda it: it is not None, what="it is judged")
        assert lab.asking.told["bert"] != ADMITTED
