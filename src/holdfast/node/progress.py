"""One run while it is carried out: its record, which is on the disk before each step, and its deadline."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import structlog
from msgspec import structs

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, Forbidden, NotFound
from holdfast.errors import HoldfastError
from holdfast.node.faults import RunFailed, RunFailure, deadline_failure, disk_failure
from holdfast.node.journal import ContainerRecord, RunRecord
from holdfast.node.notice.time_left import too_late
from holdfast.node.objects import SAVED_PODS, SavedPod
from holdfast.node.parts import RunParts, in_thread
from holdfast.node.status import status_of
from holdfast.times import parse_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
# A call of less is not begun.
SHORTEST_S = 1.0
# A watch brings a run sooner, and clocks that are kept differ by less.
CLOCKS_DIFFER_S = 60.0

Result = TypeVar("Result")


class RunInterrupted(HoldfastError):
    """The agent is asked to end: the next one goes on from the journal."""


class ContainerFailed(HoldfastError):
    """One container can't be saved; the others go on."""

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RunProgress:
    """doing: what is under way, for the message of a run that is too late. seen_s: when the run was seen to begin."""

    def __init__(
        self, parts: RunParts, backup: CheckpointBackup, is_stopping: Callable[[], bool], seen_s: float | None = None
    ) -> None:
        self.parts = parts
        self.backup = backup
        self.run = status_of(backup).run
        self.doing = "looking for its pod"
        self.record: RunRecord | None = None
        self._is_stopping = is_stopping
        self.deadline_s = parts.clocks.clock() + self._until_deadline_s(seen_s)

    def _until_deadline_s(self, seen_s: float | None) -> float:
        """By when the run began, unless this node's clock is plainly another than the operator's."""
        start, timeout_s = status_of(self.backup).start_time, float(self.backup.spec.timeout_seconds)
        began = parse_time(start) if start else self.parts.clocks.now()
        left_s = (began + timedelta(seconds=timeout_s) - self.parts.clocks.now()).total_seconds()
        if seen_s is None:
            return min(timeout_s, left_s)
        since_seen_s = seen_s + timeout_s - self.parts.clocks.clock()
        return left_s if abs(left_s - since_seen_s) <= CLOCKS_DIFFER_S else since_seen_s

    @property
    def is_stopping(self) -> bool:
        """Whether the agent is asked to end."""
        return self._is_stopping()

    @property
    def left_s(self) -> float:
        return self.deadline_s - self.parts.clocks.clock()

    @property
    def pod_key(self) -> Key:
        return Key(self.backup.metadata.namespace, self.backup.spec.pod_ref.name)

    @property
    def containers(self) -> tuple[ContainerRecord, ...]:
        return self.record.containers if self.record else ()

    def too_late(self, obstacle: str = "") -> RunFailure:
        return deadline_failure(self.backup.spec.timeout_seconds, self.doing, obstacle)

    def preemption(self) -> RunFailure | None:
        """Why no container is to be frozen any more: the cloud takes the node back before an image would be pushed."""
        last_s = self.parts.durations.last_s(status_of(self.backup).pod_uid)
        late = too_late(self.parts.remaining_s(), last_s)
        return RunFailure("NodePreempted", late) if late else None

    def must_go_on(self) -> None:
        """Between two steps: an agent that is asked to end leaves the rest to the next one."""
        if self._is_stopping():
            raise RunInterrupted("the agent is asked to end")

    async def write(self, record: RunRecord) -> None:
        self.record = record
        await in_thread(lambda: self.parts.journal.write(record))

    async def change(self, container: ContainerRecord) -> ContainerRecord:
        assert self.record is not None, "a run has a record before its first step"
        await self.write(self.record.with_container(container))
        return container

    async def remove_files(self, container: ContainerRecord) -> None:
        record = self.record
        if record is not None:
            await in_thread(lambda: self.parts.archives.remove(record, container))

    async def each(
        self,
        is_due: Callable[[ContainerRecord], bool],
        step: Callable[[ContainerRecord], Awaitable[None]],
    ) -> None:
        """Take all containers that are due through one step; one that fails is remembered, and its files removed."""
        for container in self.containers:
            if container.is_failed or not is_due(container):
                continue
            self.must_go_on()
            try:
                await step(container)
            except ContainerFailed as error:
                log.warning(
                    "container not saved",
                    key=str(self.backup.metadata.key),
                    run=self.run,
                    container=container.name,
                    reason=error.failure.reason,
                    error=error.failure.message,
                )
                current = next(each for each in self.containers if each.name == container.name)
                await self.remove_files(current)
                await self.change(structs.replace(current, failure=error.failure, archive=""))

    async def pause(self, pause_s: float, obstacle: str) -> float:
        """Wait before the next try; raises ContainerFailed if the deadline comes first. Returns the next pause."""
        self.must_go_on()
        if self.left_s < pause_s + SHORTEST_S:
            raise ContainerFailed(self.too_late(obstacle))
        await self.parts.clocks.sleep(pause_s)
        return min(LONGEST_PAUSE_S, 2 * pause_s)

    async def persist(self, what: str, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask the API server until it answers."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await ask()
            except NotFound:
                raise
            except Forbidden as error:
                raise RunFailed(
                    RunFailure("AgentForbidden", f"the agent may not {what}: {error}; apply manifests/node")
                ) from None
            except ClusterError as error:
                log.warning("API server does not answer", what=what, error=str(error))
                pause_s = await self.pause(pause_s, str(error))

    async def pod(self) -> SavedPod:
        """The run's pod; another one of the same name is none of it."""
        key, wanted = self.pod_key, status_of(self.backup).pod_uid
        try:
            pod = await self.persist("get the pod", lambda: self.parts.cluster.get(SAVED_PODS, key))
        except NotFound:
            raise RunFailed(RunFailure("PodGone", f"the pod {key} is gone")) from None
        if pod.metadata.uid != wanted:
            raise RunFailed(_replaced(key, pod, wanted))
        if pod.spec.node_name != self.parts.node:
            raise RunFailed(RunFailure("PodNotHere", f"the pod {key} is not on {self.parts.node}"))
        if pod.status.phase != "Running":
            raise RunFailed(RunFailure("PodNotRunning", f"the pod {key} is {pod.status.phase}, and not Running"))
        return pod

    async def must_be_its_pod(self) -> None:
        """Raise RunFailed if what the kubelet has saved may be another pod: it knows pods by their names alone."""
        key, wanted = self.pod_key, status_of(self.backup).pod_uid
        try:
            pod = await self.persist("get the pod", lambda: self.parts.cluster.get(SAVED_PODS, key))
        except NotFound:
            return  # deleted after it was saved
        if pod.metadata.uid != wanted and pod.spec.node_name == self.parts.node:
            raise RunFailed(_replaced(key, pod, wanted))


async def full_disk(progress: RunProgress, needed: int) -> RunFailure:
    """Of the agent's own folder, which has the journal and compressed layers."""
    archives = progress.parts.archives
    return disk_failure(free=await in_thread(archives.work_free_bytes), needed=needed, where=str(archives.work))


def _replaced(key: Key, pod: SavedPod, wanted: str) -> RunFailure:
    return RunFailure("PodReplaced", f"the pod {key} has the uid {pod.metadata.uid}, and the run is of {wanted}")
