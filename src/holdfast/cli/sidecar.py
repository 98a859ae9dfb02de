"""`holdfast sidecar`: what runs in a worker's pod beside its training program."""

import asyncio
import contextlib
import ctypes
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable

from holdfast.errors import HoldfastError
from holdfast.runtime.process import configure, level_from, on_signal
from holdfast.sidecar.background import loops
from holdfast.sidecar.settings import settings, termination_log
from holdfast.sidecar.shutdown import write_failure_reason
from holdfast.sidecar.sidecar import Clocks, Sidecar

# Of glibc's malloc.h; other libraries do without.
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8


def sidecar() -> None:
    """Restore, watch and report beside a training. The operator runs it in a worker's pod."""
    _tune_allocator()
    try:
        told = settings(os.environ)
        configure(level_from(os.environ))
        asyncio.run(_run(Sidecar(told, os.environ, clocks=Clocks(time.time), run_id=secrets.token_hex(8))))
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        write_failure_reason(termination_log(os.environ), str(error))
        _end(1)


def tensorboard_sidecar() -> None:
    """Download a job's events from its object store. The operator runs it beside TensorBoard."""
    from holdfast.sidecar.tensorboard import events

    _tune_allocator()
    try:
        configure(level_from(os.environ))
        asyncio.run(_until_stopped(events(os.environ).run))
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        _end(1)


def _tune_allocator() -> None:
    """Memory that uploads have used goes back at once; by default glibc keeps it, for each thread on its own."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 2)
        libc.mallopt(M_MMAP_THRESHOLD, 256 << 10)


async def _run(sidecar: Sidecar) -> None:
    stop = asyncio.Event()
    with on_signal(stop.set):
        await sidecar.run(stop)
        _end(0)


async def _until_stopped(run: Callable[[], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    with on_signal(stop.set):
        async with loops() as running:
            running.keep_running(run)
            await stop.wait()
            _end(0)


def _end(code: int) -> None:
    """At once: an upload that hangs in a thread must not use up the grace period."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
