"""Gang admission on the operator's own stores, on a cluster in this process where the test plays all other parts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.api.trainingjob import KIND, TrainingJob
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import JOBS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.controller import Controller, Done, Result, TerminalError
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.scheduling.gang import ADMITTED, AdmissionDecision
from holdfast.scheduling.ledger import GPU
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


class Ground:
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
async def ground() -> AsyncIterator[Ground]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0), bookmark_s=1.0)
    await cluster.create(NAMESPACES, {"metadata": {"name": "ml"}})
    yield Ground(cluster)
    await cluster.close()


class Running:
    """An operator for as long as the test wants it."""

    def __init__(self, ground: Ground, **options: Any) -> None:
        self._ground = ground
        self._options = options

    async def __aenter__(self) -> "Running":
        ground = self._ground
        self._operator = Operator(ground.cluster, identity="test", now=utc_now, random=Random(0), metrics=Metrics())
        ground.admission = GangAdmission.of(
            self._operator,
            shared_ledger=SharedLedger(self._operator),
            template=template,
            now=ground.now,
            **{"patience_s": 600.0, **self._options},
        )
        ground.asking = Asking(self._operator, ground.admission)
        controller = Controller(
            name="asking",
            resource=TRAINING_JOBS,
            reconciler=ground.asking,
            writer=self._operator.writer(),
            watches=(ground.admission,),
        )
        self._operator.add(controller)
        self._running = asyncio.create_task(self._operator.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._operator.stop()
        await self._running


async def test_a_job_starts_when_its_workers_fit_and_hears_when_that_changes(ground: Ground) -> None:
    async with Running(ground):
        await ground.submit("bert", 2, 2)
        await ground.told("bert", "no node is there")
        await ground.node("gpu-1", 2)
        await eventually(ground.verdict("bert"), lambda it: it is not None and it.impossible, what="it can't fit")
        await ground.node("gpu-2", 2)
        await ground.told("bert", ADMITTED)


async def test_room_that_others_give_back_lets_the_next_start(ground: Ground) -> None:
    await ground.node("gpu-1", 2)
    await ground.node("gpu-2", 2)
    other = await ground.worker("other", 0, "foreign-job", node="gpu-1", gpus=1)
    async with Running(ground):
        await ground.submit("bert", 2, 2)
        await ground.told("bert", "needs 2 × 2 GPUs; 1 node has 2 free")
        await ground.cluster.patch_status(PODS, other, {"status": {"phase": "Succeeded"}})
        await ground.told("bert", ADMITTED)


async def test_the_same_room_is_not_given_twice_while_nothing_of_the_first_is_seen(ground: Ground) -> None:
    await ground.node("gpu-1", 4)
    async with Running(ground):
        await ground.submit("first", 1, 4)
        await ground.told("first", ADMITTED)
        await ground.submit("second", 1, 4, scheduling={"nodeSelector": {}})
        await ground.told("second", "needs 1 × 4 GPUs; no node has 4 free")
        await ground.start("first", 1, suspend=True)
        uid = (await ground.cluster.get(JOBS, Key("ml", "first-training"))).metadata.uid
        await ground.cluster.patch(JOBS, Key("ml", "first-training"), {"spec": {"suspend": False}})
        await ground.worker("first", 0, uid, node="gpu-1", gpus=4)
        await ground.submit("third", 1, 1)
        await ground.told("third", "needs 1 × 1 GPU; no node has 1 free")
        assert ground.asking.told["first"] == ADMITTED
        await ground.cluster.delete(TRAINING_JOBS, Key("ml", "first"))
        await ground.cluster.delete(PODS, Key("ml", "first-0"), grace_period_s=0)
        await ground.told("second", ADMITTED)


async def test_a_job_that_is_held_off_loses_its_turn_and_gets_one_when_the_time_has_come(ground: Ground) -> None:
    await ground.node("gpu-1", 4)
    async with Running(ground):
        await ground.submit("first", 1, 4)
        await ground.told("first", ADMITTED)
        later = (ground.now() + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        await ground.status("first", state="Pending", nextRetryTime=later)
        await ground.submit("second", 1, 4)
        await ground.told("second", ADMITTED)
        await eventually(ground.verdict("first"), lambda it: it is None, what="the first is out of the line")
        ground.ahead = timedelta(hours=2)
        # Its controller looks at it when its time has come.
        await ground.status("first", message="again")
        await ground.told("first", "needs 1 × 4 GPUs; no node has 4 free")


async def test_the_next_attempt_needs_a_turn_of_its_own_and_comes_before_those_who_wait(ground: Ground) -> None:
    await ground.node("gpu-1", 4)
    async with Running(ground):
        await ground.submit("first", 1, 4)
        await ground.told("first", ADMITTED)
        uid = await ground.start("first", 1)
        pod = await ground.worker("first", 0, uid, node="gpu-1", gpus=4)
        await ground.submit("second", 1, 1)
        await ground.told("second", "needs 1 × 1 GPU; no node has 1 free")
        await ground.status("first", state="Restarting", restartCount=1)
        await ground.told("first", "needs 1 × 4 GPUs; no node has 4 free")
        await ground.cluster.delete(PODS, pod, grace_period_s=0)
        await ground.told("first", ADMITTED)
        assert ground.asking.told["second"] != ADMITTED


async def test_a_restart_that_lost_its_machine_for_good_makes_room_after_a_while(ground: Ground) -> None:
    await ground.node("gpu-1", 4)
    async with Running(ground, patience_s=2.0):
        await ground.submit("first", 2, 4)
        told = {"type": "Restarting", "status": "True", "reason": "x", "message": "", "observedGeneration": 1}
        since = ground.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        await ground.status(
            "first", state="Restarting", restartCount=1, conditions=[{**told, "lastTransitionTime": since}]
        )
        await eventually(ground.verdict("first"), lambda it: it is not None and it.position == 1, what="it waits")
        await ground.submit("second", 1, 1)
        await ground.told("second", ADMITTED)


async def test_priority_comes_from_the_class_and_a_class_that_is_made_later_is_found(ground: Ground) -> None:
    await ground.node("gpu-1", 4)
    held = await ground.worker("other", 0, "foreign-job", node="gpu-1", gpus=1)
    async with Running(ground):
        await ground.submit("usual", 1, 4)
        await ground.submit("urgent", 1, 4, scheduling={"priority": "urgent"})
        await ground.told("urgent", "PriorityClass urgent does not exist: create it, or remove scheduling.priority")
        await ground.cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100})
        await ground.told("urgent", "needs 1 × 4 GPUs; no node has 4 free")
        await ground.cluster.delete(PODS, held, grace_period_s=0)
        await ground.told("urgent", ADMITTED)
        assert ground.asking.told["usual"] != ADMITTED


async def test_who_queues_at_kueue_is_not_held_back_here(ground: Ground) -> None:
    async with Running(ground):
        body = {"model": "m", "dataset": "d", "numWorkers": 100}
        labels = {"kueue.x-k8s.io/queue-name": "team"}
        await ground.cluster.create(
            TRAINING_JOBS, {"metadata": {"name": "bert", "labels": labels}, "spec": body}, namespace="ml"
        )
        await ground.told("bert", ADMITTED)


async def test_without_admission_everyone_starts_at_once(ground: Ground) -> None:
    async with Running(ground, enabled=False):
        await ground.submit("bert", 100, 64)
        await ground.told("bert", ADMITTED)
        assert ground.asking.asked == 1, "nobody is woken for it"


async def test_heartbeats_and_progress_cause_no_look(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    await ground.node("gpu-1", 1)
    calls = 0
    soon = GangAdmission._schedule_pass

    def counting(self: GangAdmission, after_s: float = 0.0) -> None:
        nonlocal calls
        calls += 1
        soon(self, after_s)

    monkeypatch.setattr(GangAdmission, "_schedule_pass", counting)
    async with Running(ground):
        await ground.submit("bert", 1, 1)
        await ground.told("bert", ADMITTED)
        before = calls
        for beat in range(5):
            condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:00:0{beat}Z"}
            await ground.cluster.patch_status(NODES, Key("", "gpu-1"), {"status": {"conditions": [condition]}})
            await ground.status("bert", progress=f"{beat}%", currentEpoch=beat)
        # What counts comes last: when it was looked at, the others were seen as well.
        await ground.cluster.patch(NODES, Key("", "gpu-1"), {"metadata": {"labels": {"zone": "a"}}})
        await ground.submit("next", 1, 1)
        await ground.told("next", "needs 1 × 1 GPU; no node has 1 free")
        # The label, the new job and its question, and that the other has a status at all: not one of ten for each beat.
        assert 2 <= calls - before <= 5


async def test_a_look_that_fails_is_taken_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "RETRY_S", 0.05)
    judge, failures = GangAdmission._decide, 0

    def failing(self: GangAdmission, at_s: float) -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise RuntimeError("as told")
        judge(self, at_s)

    monkeypatch.setattr(GangAdmission, "_decide", failing)
    await ground.node("gpu-1", 1)
    async with Running(ground):
        await ground.submit("bert", 1, 1)
        await ground.told("bert", ADMITTED)
    assert failures == 2


async def test_new_numbers_are_told_with_some_calm_and_a_start_at_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "NUMBERS_INTERVAL_S", 3600.0)
    for number in (1, 2, 3):
        await ground.node(f"gpu-{number}", 1)
        await ground.worker("other", number, "foreign-job", node=f"gpu-{number}", gpus=1)
    async with Running(ground):
        await ground.submit("bert", 3, 1)
        await ground.told("bert", "needs 3 × 1 GPU; no node has 1 free")
        await ground.cluster.delete(PODS, Key("ml", "other-1"), grace_period_s=0)
        # A second job tells that this was looked at.
        await ground.submit("next", 3, 1)
        await ground.told("next", "needs 3 × 1 GPU; 1 node has 1 free")
        assert ground.asking.told["bert"] == AdmissionDecision(
            admitted=False, message="needs 3 × 1 GPU; no node has 1 free", position=1
        )
        for number in (2, 3):
            await ground.cluster.delete(PODS, Key("ml", f"other-{number}"), grace_period_s=0)
        await ground.told("bert", ADMITTED)


async def test_new_numbers_are_told_in_the_end_though_nothing_else_happens(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "NUMBERS_INTERVAL_S", 0.5)
    await ground.node("gpu-1", 1)
    await ground.node("gpu-2", 1)
    for number in (1, 2):
        await ground.worker("other", number, "foreign-job", node=f"gpu-{number}", gpus=1)
    async with Running(ground):
        await ground.submit("bert", 2, 1)
        await ground.told("bert", "needs 2 × 1 GPU; no node has 1 free")
        await ground.cluster.delete(PODS, Key("ml", "other-1"), grace_period_s=0)
        await ground.told("bert", "needs 2 × 1 GPU; 1 node has 1 free")


async def test_another_reason_is_told_soon_however_calm_numbers_are(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "NUMBERS_INTERVAL_S", 3600.0)
    await ground.node("gpu-1", 1)
    await ground.worker("other", 1, "foreign-job", node="gpu-1", gpus=1)
    async with Running(ground):
        await ground.submit("bert", 1, 1)
        await ground.told("bert", "needs 1 × 1 GPU; no node has 1 free")
        await ground.cluster.delete(NODES, Key("", "gpu-1"))
        await ground.told("bert", "no node is there")


async def test_nobody_looks_while_the_stores_are_half_full(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine would seem empty to who has not seen the pods yet."""
    await ground.node("gpu-1", 1)
    await ground.worker("other", 0, "foreign-job", node="gpu-1", gpus=1)
    await ground.submit("bert", 1, 1)
    listing = ground.cluster.list

    async def slow(resource: Any, **how: Any) -> Any:
        if resource is PODS:
            await asyncio.sleep(0.5)
        return await listing(resource, **how)

    monkeypatch.setattr(ground.cluster, "list", slow)
    async with Running(ground):
        await eventually(ground.verdict("bert"), lambda it: it is not None, what="it is judged")
        assert ground.asking.told["bert"] != ADMITTED
