"""`holdfast sidecar`: the container that runs beside the training in a worker's pod."""

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
from holdfast.sidecar.background import background_tasks
from holdfast.sidecar.settings import settings, termination_log
from holdfast.sidecar.shutdown import write_failure_reason
from holdfast.sidecar.sidecar import Clocks, Sidecar

# From glibc's malloc.h; other C libraries lack mallopt.
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8


def sidecar() -> None:
    """Restore, watch and report beside a training. The operator runs it in a worker's pod."""
    tune_allocator()
    try:
        configuration = settings(os.environ)
        if configuration.any_user:
            os.umask(0)  # no other pod sees these folders
        configure(level_from(os.environ))
        asyncio.run(_run(Sidecar(configuration, os.environ, clocks=Clocks(time.time), run_id=secrets.token_hex(8))))
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        write_failure_reason(termination_log(os.environ), error)
        _exit(1)


def tensorboard_sidecar() -> None:
    """Download a job's events from its object store. The operator runs it beside TensorBoard."""
    from holdfast.sidecar.background import events

    tune_allocator()
    try:
        configure(level_from(os.environ))
        asyncio.run(_until_stopped(events(os.environ).run))
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        _exit(1)


def tune_allocator() -> None:
    """Return the memory of uploads to the system at once; by default glibc retains it, per thread."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 2)
        libc.mallopt(M_MMAP_THRESHOLD, 256 << 10)


async def _run(sidecar: Sidecar) -> None:
    stop = asyncio.Event()
    with on_signal(stop.set):
        await sidecar.run(stop)
        _exit(0)


async def _until_stopped(run: Callable[[], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    with on_signal(stop.set):
        async with background_tasks() as running:
            running.start(run)
            await stop.wait()
            _exit(0)


def _exit(code: int) -> None:
    """Exit at once: a hanging upload thread must not use up the grace period."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
