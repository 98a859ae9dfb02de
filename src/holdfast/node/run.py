"""One run of a CheckpointBackup: all containers frozen, then all built, then all pushed, with one write per phase."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from msgspec import structs

from holdfast.api.checkpointbackup import BuiltImage, CheckpointBackup, Phase
from holdfast.api.meta import Key
from holdfast.checkpoints.errors import CheckpointError, StorageFull
from holdfast.checkpoints.images.target import target_repository
from holdfast.cluster.errors import NotFound
from holdfast.errors import HoldfastError
from holdfast.node.facts import image_facts
from holdfast.node.faults import RunFailed, RunFailure, checkpoint_failure, internal_failure
from holdfast.node.freeze import LEAST_FREE, freeze, must_have_space
from holdfast.node.journal import ContainerRecord, RunRecord
from holdfast.node.objects import AGENT_NODES, SavedPod
from holdfast.node.parts import RunParts, in_thread
from holdfast.node.progress import SHORTEST_S, ContainerFailed, RunProgress, full_disk
from holdfast.node.push import build, credential, open_target, push
from holdfast.node.status import RunStatusWriter, status_of
from holdfast.pods.template import SIDECAR_CONTAINER
from holdfast.times import format_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Each step keeps the deadline itself; this ends one that does not. The operator ends the run 10 s after the deadline.
BACKSTOP_S = 3.0
STATUS_S = 9.0
NO_CONTAINER = RunFailure("NoContainer", "the pod has no container to save")


class RunOutcome(NamedTuple):
    """How the run ended. message: for the event."""

    phase: Phase
    reason: str
    message: str


class NodeBackupRun:
    """earlier: the record that an earlier process left of this run. seen_s: when this one saw it begin, if it did."""

    def __init__(
        self,
        parts: RunParts,
        backup: CheckpointBackup,
        *,
        earlier: RunRecord | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        seen_s: float | None = None,
    ) -> None:
        self._parts = parts
        self._progress = RunProgress(parts, backup, is_stopping, seen_s)
        self._progress.record = earlier
        self.is_ending = False
        self._writer = RunStatusWriter(
            parts.cluster,
            backup,
            now=parts.clocks.now,
            sleep=parts.clocks.sleep,
            left_s=lambda: self._progress.left_s + STATUS_S,
        )

    @property
    def backup(self) -> CheckpointBackup:
        """As it was last written."""
        return self._writer.backup

    async def execute(self) -> RunOutcome:
        """Raises RunInterrupted, which leaves the record for the next process, or RunSuperseded."""
        failure: RunFailure | None = None
        try:
            async with asyncio.timeout(max(0.0, self._progress.left_s) + BACKSTOP_S):
                await self._prepare()
                begun_s, is_whole = self._parts.clocks.clock(), not self._writer.has_reached("Checkpointing")
                await self._freeze_all()
                await self._build_all()
                await self._push_all()
                if is_whole:
                    pod_uid = status_of(self.backup).pod_uid
                    size = sum(each.size for each in self._progress.containers)
                    self._parts.durations.ended(pod_uid, self._parts.clocks.clock() - begun_s, size)
        except RunFailed as error:
            failure = error.failure
        except ContainerFailed as error:  # while all of them wait for something
            failure = error.failure
        except StorageFull:
            failure = await full_disk(self._progress, LEAST_FREE)
        except CheckpointError as error:  # the journal can't be written
            failure = checkpoint_failure(error)
        except TimeoutError:
            failure = self._progress.too_late()
        except HoldfastError:  # the run is left to another, or can't be told how it ends
            raise
        except Exception:
            # Nobody would know before the deadline that it has ended.
            log.exception("error in a run", key=str(self.backup.metadata.key), run=self._progress.run)
            failure = internal_failure(self._parts.node)
        return await self._end(failure)

    @property
    def _is_all_done(self) -> bool:
        """Whether nothing is left but to say so."""
        containers = self._progress.containers
        return bool(containers) and all(each.is_pushed or each.is_failed for each in containers)

    async def discard(self) -> None:
        """Remove all files of the run, and then its record."""
        await remove_record(self._parts, self._progress.record)
        self._progress.record = None

    async def _prepare(self) -> None:
        """Find the containers, and write what is intended into the journal before anything is done."""
        progress = self._progress
        if progress.record is not None and not await in_thread(partial(_is_usable, self._parts, progress.record)):
            log.info(
                "run begun anew: its files are not those that the journal names", key=str(self.backup.metadata.key)
            )
            await self.discard()
        if progress.left_s < SHORTEST_S and not self._is_all_done:
            raise RunFailed(progress.too_late())
        if progress.record is not None:
            return
        pod = await progress.pod()
        if (preemption := progress.preemption()) is not None:
            raise RunFailed(preemption)
        try:
            node = await progress.persist(
                "get its node", lambda: self._parts.cluster.get(AGENT_NODES, Key("", self._parts.node))
            )
        except NotFound:
            raise RunFailed(RunFailure("NodeGone", f"the node {self._parts.node} is gone")) from None
        await must_have_space(progress)
        backup, run = self.backup, progress.run
        names = container_names(backup, pod)
        facts = {name: image_facts(backup, pod, node, self._parts.host, name, run) for name in names}
        await progress.write(
            RunRecord(
                namespace=backup.metadata.namespace,
                backup=backup.metadata.name,
                uid=backup.metadata.uid,
                run=run,
                pod=pod.metadata.name,
                pod_uid=pod.metadata.uid,
                boot_id=self._parts.host.boot_id,
                containers=tuple(_intended(backup, pod, name, facts[name]) for name in names),
            )
        )

    async def _freeze_all(self) -> None:
        progress = self._progress
        if any(not each.archive and not each.is_pushed and not each.is_failed for each in progress.containers):
            if self._writer.phase != "Checkpointing":
                await self._announce("Checkpointing", f"the kubelet of {self._parts.node} freezes {self._named()}")
            await progress.each(lambda each: not each.archive and not each.is_pushed, partial(freeze, progress))
        self._must_have_some()
        if not self._writer.has_reached("Checkpointed"):
            await progress.must_be_its_pod()
        frozen_s = sum(each.frozen_s for each in progress.containers)
        taken = max((each.facts.created for each in progress.containers if each.facts.created), default=None)
        await self._announce(
            "Checkpointed",
            f"{self._named()} stood still for {frozen_s:.1f} s and run on",
            frozenSeconds=round(frozen_s, 3),
            lastCheckpointTime=taken,
        )

    async def _build_all(self) -> None:
        await self._announce("ImageBuilding", f"the images of {self._named()} are built")
        await self._progress.each(lambda each: not each.is_built, partial(build, self._progress))
        self._must_have_some()
        await self._announce("ImageBuilt", f"the images of {self._named()} are built and checked")

    async def _push_all(self) -> None:
        progress, registry = self._progress, self.backup.spec.registry
        await self._announce("ImagePushing", f"the images of {self._named()} are pushed to {registry.url}")
        if not self._is_all_done:
            progress.must_go_on()
            async with open_target(progress, await credential(progress)) as client:
                await progress.each(lambda each: not each.is_pushed, partial(push, progress, client))
        self._must_have_some()

    async def _end(self, failure: RunFailure | None) -> RunOutcome:
        """Remove what is left, then say how it ended, then forget the run."""
        self.is_ending = True
        await self._try_to_remove_files()
        outcome, fields = self._outcome(failure), self._images()
        if outcome.phase == "Completed" and not self._writer.has_reached("ImagePushed"):
            await self._writer.write("ImagePushed", reason="ImagePushed", message=outcome.message, **fields)
        if outcome.phase == "Completed" and self.backup.spec.stop_pod:
            outcome = outcome._replace(phase="ImagePushed", reason="ImagePushed")
        elif outcome.phase == "Completed":
            await self._writer.write(outcome.phase, reason=outcome.reason, message=outcome.message)
        else:
            fields = fields if outcome.phase == "CompletedWithError" else {}
            await self._writer.write(outcome.phase, reason=outcome.reason, message=outcome.message, **fields)
        await self.discard()
        return outcome

    async def _try_to_remove_files(self) -> None:
        """What can't be removed is tried again after the last write, and with the next start."""
        try:
            for container in self._progress.containers:
                await self._progress.remove_files(container)
        except CheckpointError as error:
            log.warning("files not removed", key=str(self.backup.metadata.key), error=str(error))

    def _outcome(self, failure: RunFailure | None) -> RunOutcome:
        containers = self._progress.containers
        pushed = [each for each in containers if each.is_pushed]
        failed = {each.name: each.failure for each in containers if each.failure is not None}
        if failure is not None:
            failed |= {each.name: failure for each in containers if not each.is_pushed and not each.is_failed}
        if not pushed:
            first = failure or next(iter(failed.values()), NO_CONTAINER)
            return RunOutcome("Failed", first.reason, _failures_text(failed) if len(failed) > 1 else first.message)
        saved = ", ".join(each.name for each in pushed)
        if failed:
            reason = next(iter(failed.values())).reason
            return RunOutcome("CompletedWithError", reason, f"saved: {saved}; not saved: {_failures_text(failed)}")
        size, registry = sum(each.bytes for each in pushed), self.backup.spec.registry
        return RunOutcome("Completed", "Completed", f"{saved}: {size} bytes are in {registry.url}")

    def _images(self) -> dict[str, Any]:
        pushed = [each for each in self._progress.containers if each.is_pushed]
        images = [BuiltImage(container_name=each.name, image_name=each.image, digest=each.digest) for each in pushed]
        return {
            "builtImages": msgspec.to_builtins(images),
            "bytes": sum(each.bytes for each in pushed),
            "completionTime": format_time(self._parts.clocks.now()),
        }

    async def _announce(self, phase: Phase, message: str, **fields: Any) -> None:
        """Write a phase unless the run has passed it already: an earlier process may have written it."""
        progress = self._progress
        progress.must_go_on()
        if self._writer.has_reached(phase) and phase != "Checkpointing":
            return
        await self._writer.write(phase, reason=phase, message=message, **fields)
        log.info("phase", key=str(self.backup.metadata.key), run=progress.run, phase=phase)

    def _must_have_some(self) -> None:
        """Raise RunFailed when no container is left that could be saved."""
        failures = [each.failure for each in self._progress.containers]
        if all(failures):
            raise RunFailed(next(filter(None, failures), NO_CONTAINER))

    def _named(self) -> str:
        names = [each.name for each in self._progress.containers if not each.is_failed]
        return f"container {names[0]}" if len(names) == 1 else f"containers {', '.join(names)}"


def container_names(backup: CheckpointBackup, pod: SavedPod) -> tuple[str, ...]:
    """Those that the backup lists, else all but init containers and our own."""
    listed = tuple(each.name for each in backup.spec.containers)
    return listed or tuple(each.name for each in pod.spec.containers if each.name != SIDECAR_CONTAINER)


def _intended(backup: CheckpointBackup, pod: SavedPod, name: str, facts: Any) -> ContainerRecord:
    """A container that can't be saved is known before any is frozen."""
    record, status = ContainerRecord(name=name, facts=facts), pod.container_status(name)
    try:
        target_repository(backup, name)
    except CheckpointError as error:
        return structs.replace(record, failure=RunFailure("InvalidImageReference", str(error)))
    if pod.container(name) is None:
        there = ", ".join(each.name for each in pod.spec.containers)
        message = f"the pod has no container {name}: write one of {there} into spec.containers"
        return structs.replace(record, failure=RunFailure("ContainerUnknown", message))
    if status is None or not status.is_running:
        message = f"container {name} does not run now"
        return structs.replace(record, failure=RunFailure("ContainerNotRunning", message))
    return record


def _is_usable(parts: RunParts, record: RunRecord) -> bool:
    """Whether the archives are those that the record names. After another start of the machine none is trusted."""
    return record.boot_id == parts.host.boot_id and all(
        parts.archives.size(Path(each.archive)) == each.size
        for each in record.containers
        if each.archive and not each.is_pushed
    )


async def remove_record(parts: RunParts, record: RunRecord | None) -> None:
    """Remove all that a record names, and then the record itself."""
    if record is None:
        return
    for container in record.containers:
        await in_thread(partial(parts.archives.remove, record, container))
    await in_thread(partial(parts.journal.remove, record))


def _failures_text(failed: dict[str, RunFailure]) -> str:
    return "; ".join(f"{name}: {failure.message}" for name, failure in failed.items())
