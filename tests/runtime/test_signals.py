"""Signals, as a process of its own gets them."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

PROGRAM = """
import asyncio
from holdfast.runtime.signals import on_signal

async def main():
    stop = asyncio.Event()
    with on_signal(stop.set):
        print("ready", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        await asyncio.sleep({linger_s})
    print("ended", flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def program(linger_s: float) -> AsyncIterator[Process]:
    code = PROGRAM.format(linger_s=linger_s)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    try:
        await said(process, "ready")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(process: Process, word: str) -> None:
    assert process.stdout
    while (line := await process.stdout.readline()).strip() != word.encode():
        assert line, f"it ended without saying {word!r}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_to_stop(number: signal.Signals) -> None:
    async with program(linger_s=0) as process:
        process.send_signal(number)
        await said(process, "ended")
        assert await process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_signal_ends_at_once(number: signal.Signals) -> None:
    async with program(linger_s=3600) as process:
        process.send_signal(signal.SIGTERM)
        await said(process, "stopping")
        process.send_signal(number)
        assert await process.wait() == 128 + number
