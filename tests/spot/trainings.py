"""What runs on the computers: trainings that count steps in virtual time, agents that save them, and their registry.

A training's memory is a number of steps and the name of the process that began it. An image holds such a memory, and
who is made from the image goes on from there.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import datetime

import msgspec
from msgspec import Struct, structs

from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup, Phase, run_conditions
from holdfast.api.core.objects import Container, Pod, PodSpec
from holdfast.api.meta import Key, Object, merge_conditions
from holdfast.api.spotinstancejob import REPLICA_LABEL, SPOT_JOB_LABEL, SpotInstanceJob
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.runtime.controller import Done, Result, TerminalError
from holdfast.runtime.informer import Store
from holdfast.spotinstancejob.images import CheckpointImages, SavedImage, checkpoint_of
from holdfast.spotinstancejob.names import ATTEMPT_LABEL
from holdfast.spotinstancejob.repository import RepositoryProblem
from holdfast.times import format_time
from tests.controllers.lab import seen_as
from tests.local.controllers.kubelets import STOPPED, ended, running

BASE_IMAGE = "registry.example.com/train@sha256:" + "b" * 64
FREEZE_S, PUSH_S = 2.0, 8.0


class _ContainerWithImage(Container, frozen=True, kw_only=True):
    image: str = ""


class _SpecWithImages(PodSpec, frozen=True, kw_only=True):
    containers: tuple[_ContainerWithImage, ...] = ()


class _PodWithImages(Object, frozen=True, kw_only=True):
    spec: _SpecWithImages


PODS_WITH_IMAGES = seen_as(_PodWithImages, PODS)


class Memory(Struct, frozen=True):
    """What a process holds, and its checkpoint image, too."""

    born: str
    """The pod in which the process began."""
    steps: float = 0.0


class Training(Struct, frozen=True):
    pod: Key
    node: str
    job: str
    replica: int
    attempt: int
    began_s: float
    memory: Memory
    image: str = ""

    @property
    def of_replica(self) -> tuple[Key, int]:
        return Key(self.pod.namespace, self.job), self.replica

    def memory_at(self, now_s: float) -> Memory:
        """A step takes a second."""
        return structs.replace(self.memory, steps=self.memory.steps + now_s - self.began_s)


class Images:
    """The registry. `problem`: why it does not answer; what was asked for meanwhile fails."""

    def __init__(self) -> None:
        self.memories: dict[str, Memory] = {}
        """By repository@digest."""
        self._pushed: dict[tuple[str, str], CheckpointBackup] = {}
        self.newest = Memory(born="")
        """What was pushed last."""
        self.problem = ""
        self.deleted: set[tuple[str, int]] = set()

    def push(self, backup: CheckpointBackup, memory: Memory) -> list[JSON]:
        """What the backup's status says of its images."""
        built, self.newest = [], memory
        for each in backup.spec.containers:
            assert each.image is not None
            digest = f"sha256:{hashlib.sha256(each.image.encode()).hexdigest()}"
            self.memories[f"{each.image.rpartition(':')[0]}@{digest}"] = memory
            built.append({"containerName": each.name, "imageName": each.image, "digest": digest})
        return built

    def listed(self, backup: CheckpointBackup) -> None:
        self._pushed[backup.metadata.uid, backup.metadata.name] = backup

    # As the operator sees it.

    async def checkpoints(self, job: SpotInstanceJob) -> tuple[CheckpointImages, ...]:
        self._answer()
        found = (checkpoint_of(job, backup) for backup in self._pushed.values())
        there = (each for each in found if each is not None and (job.metadata.uid, each.number) not in self.deleted)
        return tuple(sorted(map(_labelled, there), key=lambda each: each.order, reverse=True))

    async def described(self, job: SpotInstanceJob, checkpoint: CheckpointImages) -> CheckpointImages | None:
        self._answer()
        return _labelled(checkpoint) if (job.metadata.uid, checkpoint.number) not in self.deleted else None

    async def delete(self, job: SpotInstanceJob, checkpoints: Iterable[CheckpointImages]) -> int:
        self._answer()
        numbers = {(job.metadata.uid, each.number) for each in checkpoints}
        self.deleted |= numbers
        return len(numbers)

    def _answer(self) -> None:
        if self.problem:
            raise RepositoryProblem(self.problem, may_pass=True)


def _labelled(checkpoint: CheckpointImages) -> CheckpointImages:
    labels = {"base-image": BASE_IMAGE, "runtime": "containerd 2.2.9"}

    def with_labels(image: SavedImage) -> SavedImage:
        return structs.replace(image, labels=labels)

    return structs.replace(checkpoint, images=tuple(map(with_labels, checkpoint.images)))


class _Player:
    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        raise AssertionError(error)


class Kubelets(_Player):
    """Of all computers that are on. A training ends by itself after so many `steps`, with success."""

    def __init__(
        self,
        cluster: Cluster,
        pods: Store[Pod],
        images: Images,
        is_on: Callable[[str], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._images = images
        self._is_on = is_on
        self._now = now
        self.steps = 3000.0
        self.stop_s = 5.0
        self.refuses: set[str] = set()
        """Images of which no container can be made."""
        self.trainings: dict[str, Training] = {}
        """By uid of the pod, those that run."""
        self.started: list[Training] = []
        self.problems: list[str] = []
        self._ends: set[asyncio.Task[None]] = set()
        self._stopping: set[str] = set()

    def running(self, job: str, replica: int) -> Training | None:
        """The training of that replica that really runs."""
        found = [each for each in self.live() if (each.job, each.replica) == (job, replica)]
        assert len(found) <= 1, found
        return found[0] if found else None

    def live(self) -> list[Training]:
        """Those whose computers are on."""
        return [each for each in self.trainings.values() if self._is_on(each.node)]

    async def reconcile(self, key: Key) -> Result:
        pod = self._pods.get(key)
        if pod is None or not pod.spec.node_name or not self._is_on(pod.spec.node_name):
            return Done()
        with suppress(NotFound, Conflict):
            if pod.is_terminating:
                await self._stop(pod)
            elif pod.status.phase == "Pending":
                await self._start(pod)
        return Done()

    async def end(self, pod: Key, *, exit_code: int) -> None:
        """The container ends by itself."""
        found = await self._cluster.get(PODS, pod)
        self.trainings.pop(found.metadata.uid, None)
        await self._cluster.patch_status(PODS, pod, {"status": ended(found, exit_code, self._now())})

    def close(self) -> None:
        for task in self._ends:
            task.cancel()

    async def _start(self, pod: Pod) -> None:
        owner, key = pod.metadata.controller, pod.metadata.key
        if SPOT_JOB_LABEL not in pod.metadata.labels or owner is None:
            status = running(pod, self._now())
        elif owner.kind != "Job":
            status = _without_container(pod, "there is no command true")
        else:
            (container,) = (await self._cluster.get(PODS_WITH_IMAGES, key)).spec.containers
            if container.image in self.refuses:
                status = _without_container(pod, "the checkpoint can't be restored")
            else:
                self._begin(pod, container.image)
                status = running(pod, self._now())
        await self._cluster.patch_status(PODS, key, {"status": status})

    def _begin(self, pod: Pod, image: str) -> None:
        if pod.metadata.uid in self.trainings:
            return
        labels, now_s = pod.metadata.labels, asyncio.get_running_loop().time()
        training = Training(
            pod=pod.metadata.key,
            node=pod.spec.node_name,
            job=labels[SPOT_JOB_LABEL],
            replica=int(labels[REPLICA_LABEL]),
            attempt=int(labels[ATTEMPT_LABEL]),
            began_s=now_s,
            memory=self._images.memories.get(image) or Memory(born=pod.metadata.name),
            image=image if "@" in image else "",
        )
        if training.image and training.image not in self._images.memories:
            self.problems.append(f"{pod.metadata.name} was made from {image}, which nobody has pushed")
        twice = [each.pod for each in self.live() if each.of_replica == training.of_replica]
        if twice:
            self.problems.append(f"{pod.metadata.key} runs beside {twice}: no replica runs twice")
        self.trainings[pod.metadata.uid] = training
        self.started.append(training)
        self._spawn(self._train(pod.metadata.uid, training))

    async def _train(self, uid: str, training: Training) -> None:
        await asyncio.sleep(max(1.0, self.steps - training.memory.steps))
        if self.trainings.get(uid) is training and self._is_on(training.node):
            with suppress(NotFound):
                await self.end(training.pod, exit_code=0)

    async def _stop(self, pod: Pod) -> None:
        """A training takes a while to stop, and trains until then."""
        uid, key = pod.metadata.uid, pod.metadata.key
        if uid in self.trainings:
            if uid not in self._stopping:
                self._stopping.add(uid)
                self._spawn(self._stop_training(uid, key))
            return
        if not pod.is_finished:
            await self._cluster.patch_status(PODS, key, {"status": ended(pod, STOPPED, self._now())})
        if pod.metadata.deletion_grace_period_seconds:
            await self._cluster.delete(PODS, key, DeleteOptions(uid=uid, grace_period_s=0))

    async def _stop_training(self, uid: str, key: Key) -> None:
        await asyncio.sleep(self.stop_s)
        training = self.trainings.pop(uid, None)
        if training is not None and self._is_on(training.node):
            with suppress(NotFound, Conflict):
                await self._stop(await self._cluster.get(PODS, key))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)


def _without_container(pod: Pod, why: str) -> JSON:
    """Its image was fetched, and no container made: a pod that only brings an image is content with that."""
    waiting = {"reason": "CreateContainerError", "message": why}
    statuses = [
        {
            "name": each.name,
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"waiting": waiting},
        }
        for each in pod.spec.containers
    ]
    return {"phase": "Pending", "containerStatuses": statuses}


class Agents(_Player):
    """One on each computer that is on. `fails` is what a run ends with, instead of an image; `hangs`: it never ends."""

    def __init__(
        self,
        cluster: Cluster,
        backups: Store[CheckpointBackup],
        kubelets: Kubelets,
        images: Images,
        is_on: Callable[[str], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._backups = backups
        self._kubelets = kubelets
        self._images = images
        self._is_on = is_on
        self._now = now
        self.fails = ""
        self.hangs = False
        self.are_there = True
        self.push_s = PUSH_S
        self.runs: list[str] = []
        self._begun: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def reconcile(self, key: Key) -> Result:
        backup = self._backups.get(key)
        status = backup.status if backup is not None else None
        if backup is None or status is None or not status.run or not status.node_name or status.mode != "container":
            return Done()
        run = backup.metadata.uid, status.run
        if status.phase is None and run not in self._begun and self.are_there and self._is_on(status.node_name):
            self._begun[run] = asyncio.create_task(self._carry_out(key, status.pod_uid, status.node_name))
        return Done()

    def close(self) -> None:
        for task in self._begun.values():
            task.cancel()

    async def _carry_out(self, key: Key, pod_uid: str, node: str) -> None:
        with suppress(NotFound):
            self.runs.append(key.name)
            await self._write(key, "Checkpointing")
            if self.hangs:
                return
            await asyncio.sleep(FREEZE_S)
            training = self._kubelets.trainings.get(pod_uid)
            taken = self._now()
            if not self._is_on(node):
                return
            if training is None:
                await self._write(key, "Failed", reason="PodEnded", said="the pod has ended")
                return
            memory = training.memory_at(asyncio.get_running_loop().time())
            await asyncio.sleep(self.push_s)
            if not self._is_on(node):
                return
            why = self.fails or self._images.problem
            if why:
                await self._write(key, "Failed", reason="PushFailed", said=why)
                return
            backup = await self._cluster.get(CHECKPOINT_BACKUPS, key)
            if backup.status is None or backup.status.phase in TERMINAL_PHASES:
                return
            done = await self._write(
                key,
                "Completed",
                builtImages=self._images.push(backup, memory),
                frozenSeconds=FREEZE_S,
                lastCheckpointTime=format_time(taken),
                completionTime=format_time(self._now()),
            )
            self._images.listed(done)

    async def _write(
        self, key: Key, phase: Phase, *, reason: str = "", said: str = "", **fields: object
    ) -> CheckpointBackup:
        backup = await self._cluster.get(CHECKPOINT_BACKUPS, key)
        assert backup.status is not None
        conditions = run_conditions(
            phase,
            reason=reason or phase,
            message=said or f"the agent says {phase}",
            generation=backup.metadata.generation,
            at=format_time(self._now()),
        )
        merged = msgspec.to_builtins(merge_conditions(backup.status.conditions, conditions))
        body = {"phase": phase, "message": said or f"the agent says {phase}", "conditions": merged, **fields}
        return await self._cluster.patch_status(CHECKPOINT_BACKUPS, key, {"status": body})
