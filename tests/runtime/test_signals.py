"""Signals, as a process of its own gets them."""

import asyncio
import os
import pty
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

PROGRAM = """
import asyncio
from holdfast.runtime.process import on_signal

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
async def program(linger_s: float, *before: str) -> AsyncIterator[Process]:
    code = PROGRAM.format(linger_s=linger_s)
    process = await asyncio.create_subprocess_exec(*before, sys.executable, "-c", code, stdout=PIPE)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
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


async def test_a_closed_terminal_signals_twice_and_hurries_nobody() -> None:
    async with program(linger_s=1) as process:
        process.send_signal(signal.SIGHUP)
        await said(process, "stopping")
        process.send_signal(signal.SIGHUP)
        await said(process, "ended")
        assert await process.wait() == 0


async def test_what_nohup_ignores_stays_ignored() -> None:
    async with program(1, "nohup") as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        await said(process, "ended")
        assert await process.wait() == 0


IN_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


async def test_a_terminal_that_is_gone_keeps_nothing_from_being_done(tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = PROGRAM.format(linger_s=0) + f"open({str(done)!r}, 'w').close()\n"
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", IN_A_TERMINAL, code), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        line = b""
        while not line.endswith(b"\n"):  # a terminal may hand out the first letters while the rest is being written
            line += await asyncio.to_thread(os.read, ours, 1024)
        assert line.strip() == b"ready"
        os.close(ours)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert done.exists()
