"""The first step of a run: the kubelet freezes a container, and its archive lies on the node."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog
from msgspec import structs

from holdfast.api.scalars import InvalidQuantity, parse_quantity
from holdfast.checkpoints.errors import CheckpointError
from holdfast.checkpoints.images.errors import ArchiveRefused
from holdfast.checkpoints.images.target import target_image
from holdfast.node.faults import (
    GPU_RESOURCES,
    KubeletAnswer,
    RunFailed,
    RunFailure,
    checkpoint_failure,
    disk_failure,
    kubelet_failure,
)
from holdfast.node.journal import ContainerRecord
from holdfast.node.kubelet import KubeletRefused, KubeletUnavailable, KubeletUntrusted
from holdfast.node.objects import SavedContainer
from holdfast.node.parts import in_thread
from holdfast.node.progress import FIRST_PAUSE_S, SHORTEST_S, ContainerFailed, RunProgress
from holdfast.node.status import status_of
from holdfast.times import format_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# CRIU's files, the archive, and a compressed copy or the restored files on another node.
DISK_FACTOR = 3
# Where nothing is known of the size yet.
LEAST_FREE = 64 << 20
# Archives of so many unanswered calls are looked for; earlier ones are gone by then.
REMEMBERED_CALLS = 20


async def must_have_space(progress: RunProgress) -> None:
    """Raise RunFailed if the last run's size would not fit: a disk that fills up stops the whole node."""
    free = await in_thread(progress.parts.archives.free_bytes)
    needed = max(LEAST_FREE, DISK_FACTOR * _last_bytes(progress))
    if free < needed:
        raise RunFailed(disk_failure(free=free, needed=needed, where=str(progress.parts.archives.folder)))


def _last_bytes(progress: RunProgress) -> int:
    """Of the last run's archives, where this agent has seen them: what status says of images may be compressed."""
    status = status_of(progress.backup)
    return max(status.bytes, progress.parts.durations.last_bytes(status.pod_uid))


async def freeze(progress: RunProgress, container: ContainerRecord) -> None:
    """Until the kubelet has answered; a kubelet that goes away is asked again when it is back."""
    pause_s, obstacle = FIRST_PAUSE_S, ""
    while True:
        progress.doing = f"freezing container {container.name}"
        await _wait_for_next_second(progress, container, obstacle)
        container, answer = await _call(progress, container)
        if answer is None:
            await _take(progress, container)
            return
        if isinstance(answer, KubeletAnswer):
            raise ContainerFailed(await _refused(progress, container, answer))
        obstacle = answer
        log.warning("kubelet not reached", container=container.name, error=obstacle)
        await progress.remove_files(container)
        pause_s = await progress.pause(pause_s, obstacle)
        await progress.pod()


async def _wait_for_next_second(progress: RunProgress, container: ContainerRecord, obstacle: str) -> None:
    parts = progress.parts
    wait_s = parts.call_times.wait_s(status_of(progress.backup).pod_uid, container.name, parts.clocks.clock())
    if wait_s:
        await parts.clocks.sleep(wait_s)
    if progress.left_s < SHORTEST_S:
        raise ContainerFailed(progress.too_late(obstacle))
    if (preemption := progress.preemption()) is not None:
        raise ContainerFailed(preemption)


async def _call(
    progress: RunProgress, container: ContainerRecord
) -> tuple[ContainerRecord, KubeletAnswer | str | None]:
    """One call. The answer is a refusal, why there was none, or None when all went well."""
    parts, key = progress.parts, progress.pod_key
    at = parts.clocks.now().isoformat()
    container = await progress.change(
        structs.replace(container, calls=(*container.calls, at)[-REMEMBERED_CALLS:], archive="")
    )
    began_s = parts.clocks.clock()
    try:
        calling = parts.kubelet.checkpoint(key.namespace, key.name, container.name, int(progress.left_s))
        path = await _answer(progress, calling)
    except KubeletUnavailable as error:
        parts.metrics.kubelet_called("unavailable")
        return container, str(error)
    except KubeletRefused as error:
        parts.metrics.kubelet_called(str(error.answer.status))
        return container, error.answer
    except KubeletUntrusted as error:
        parts.metrics.kubelet_called("untrusted")
        raise ContainerFailed(RunFailure("KubeletUntrusted", str(error))) from None
    finally:
        # The kubelet names the archive at some time between the call and its answer.
        parts.call_times.called(status_of(progress.backup).pod_uid, container.name, parts.clocks.clock())
    frozen_s = parts.clocks.clock() - began_s
    parts.metrics.kubelet_called("200")
    parts.metrics.frozen(frozen_s)
    return structs.replace(container, archive=path, frozen_s=round(frozen_s, 3)), None


async def _answer(progress: RunProgress, calling: Coroutine[Any, Any, str]) -> str:
    """A run that is no longer wanted waits for the kubelet's answer, too.

    A runtime may go on when nobody listens: its archive would come after the run's files were removed, and the next
    run's call would be a second one at the same time.
    """
    call = asyncio.ensure_future(calling)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        try:
            if not progress.is_stopping:
                await asyncio.wait([call])
        finally:
            call.cancel()
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


async def _take(progress: RunProgress, container: ContainerRecord) -> None:
    """Remember the archive, if it is where it should be: nothing outside the folder is ever touched."""
    archives, at = progress.parts.archives, progress.parts.clocks.now()
    try:
        path = await in_thread(lambda: archives.locate(container.archive))
        size = await in_thread(lambda: archives.size(path))
        image = target_image(progress.backup, container.name, progress.run, at)
    except ArchiveRefused as error:
        raise ContainerFailed(checkpoint_failure(error)) from None
    except CheckpointError as error:
        raise RunFailed(checkpoint_failure(error)) from None
    facts = structs.replace(container.facts, created=format_time(at))
    answered = structs.replace(container, archive=str(path), size=size, calls=container.calls[:-1])
    await progress.change(structs.replace(answered, facts=facts, image=str(image)))


async def _refused(progress: RunProgress, container: ContainerRecord, answer: KubeletAnswer) -> RunFailure:
    """Why, in our words. Whether a 404 means the container or the endpoint is seen from the pod."""
    is_known, has_gpus, memory = False, False, 0
    try:
        pod = await progress.pod()
    except RunFailed as error:
        if answer.status == 404:
            return error.failure
    else:
        status, found = pod.container_status(container.name), pod.container(container.name)
        is_known = status is not None and status.is_running
        has_gpus = found is not None and _has_gpus(found)
        memory = _memory_bytes(found) if found is not None else 0
    failure = kubelet_failure(
        answer, node=progress.parts.node, container=container.name, is_known=is_known, has_gpus=has_gpus
    )
    if failure.reason == "DiskFull":
        free = await in_thread(progress.parts.archives.free_bytes)
        needed = DISK_FACTOR * (_last_bytes(progress) or memory)
        more = disk_failure(free=free, needed=needed, where=str(progress.parts.archives.folder))
        failure = failure._replace(message=f"{failure.message}; {more.message}")
    return failure


def _has_gpus(container: SavedContainer) -> bool:
    return any(name.startswith(GPU_RESOURCES) for name in (*container.resources.limits, *container.resources.requests))


def _memory_bytes(container: SavedContainer) -> int:
    """What it may use at most, or has asked for; 0 where nothing is written."""
    amount = container.resources.limits.get("memory") or container.resources.requests.get("memory") or 0
    try:
        return int(parse_quantity(amount))
    except InvalidQuantity:
        return 0
