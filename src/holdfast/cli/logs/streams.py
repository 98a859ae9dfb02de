"""Reads, follows and prints logs, whatever they are of."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import REPLICA_LABEL
from holdfast.cli.errors import print_error
from holdfast.cli.logs.saved import SavedLog, find_saved_log
from holdfast.cli.session import Session
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.resources import PODS
from holdfast.errors import HoldfastError
from holdfast.local.kubelet.logs import tail_log as last_lines
from holdfast.trainingjob.objects.names import INDEX_LABEL

POLL_S = 0.5
DRAIN_S = 2.0
# A longer line is printed in pieces: a worker may write without ever ending a line.
LONGEST_LINE = 2**20

Source: TypeAlias = Pod | SavedLog


class NoLog(HoldfastError):
    """There is no such worker, replica or pod (yet)."""


class LogOptions(Struct, frozen=True, kw_only=True):
    follow: bool
    tail: int | None
    attempt: int | None
    worker: int
    all: bool
    container: str


def have_several(sources: Sequence[Source]) -> bool:
    """Whether the sources are of more than one worker or replica."""
    return len({_number_of(source) for source in sources}) > 1


def _number_of(source: Source) -> str:
    if isinstance(source, SavedLog):
        return str(source.index)
    labels = source.metadata.labels
    return labels.get(REPLICA_LABEL) or labels.get(INDEX_LABEL, "?")


async def read_log(session: Session, source: Source, options: LogOptions) -> bytes:
    if isinstance(source, SavedLog):
        print_error(str(source))
        text = source.earlier + source.text
        return text if options.tail is None else last_lines(text, options.tail)
    try:
        return await session.cluster.pod_log(source.metadata.key, container=options.container, tail_lines=options.tail)
    except ClusterError:
        # The pod object exists, but its node is lost or has removed the logs.
        saved = await find_saved_log(session.cluster, source, options.container)
        if saved is None:
            raise
        return await read_log(session, saved, options)


async def follow_until_replaced(
    session: Session,
    sources: Sequence[Source],
    options: LogOptions,
    is_replaced: Callable[[], Awaitable[bool]],
    *,
    several: bool,
) -> None:
    """Follow the sources until they end, or until others have replaced them: a log on a lost node never ends."""
    streams = asyncio.gather(*(_follow_unless_deleted(session, source, options, several=several) for source in sources))
    replaced = asyncio.create_task(_wait_replaced(is_replaced))
    try:
        awaited: set[asyncio.Future[Any]] = {streams, replaced}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if streams.done():
            await streams
    finally:
        streams.cancel()
        replaced.cancel()
        await asyncio.gather(streams, replaced, return_exceptions=True)


async def _wait_replaced(is_replaced: Callable[[], Awaitable[bool]]) -> None:
    """Wait until others run, plus a delay for the last output of the old ones."""
    while True:
        with suppress(ClusterError):
            if await is_replaced():
                break
        await asyncio.sleep(4 * POLL_S)
    await asyncio.sleep(DRAIN_S)


async def _follow_unless_deleted(session: Session, source: Source, options: LogOptions, *, several: bool) -> None:
    with suppress(NotFound):  # the pod was deleted meanwhile
        await follow(session, source, options, several=several)


async def follow(session: Session, pod: Source, options: LogOptions, *, several: bool) -> None:
    if isinstance(pod, SavedLog):
        write(pod, await read_log(session, pod, options), several=several)
        return
    key = pod.metadata.key
    await _wait_started(session, key)
    rest = b""
    chunks = session.cluster.follow_log(key, container=options.container, tail_lines=options.tail)
    async with aclosing(chunks):
        async for chunk in chunks:
            # Whole lines for several workers; immediate output for a single worker.
            complete, end, rest = (rest + chunk).rpartition(b"\n") if several else (chunk, b"", b"")
            if len(rest) > LONGEST_LINE:
                end, rest = end + rest, b""
            write(pod, complete + end, several=several)
    write(pod, rest, several=several)


async def _wait_started(session: Session, key: Key) -> None:
    while True:
        pod = await session.cluster.get(PODS, key)
        if pod.status.phase != "Pending":
            return
        await asyncio.sleep(POLL_S)


def write(source: Source, text: bytes, *, several: bool) -> None:
    if several:
        text = b"".join(f"[{_number_of(source)}] ".encode() + line + b"\n" for line in text.splitlines())
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
