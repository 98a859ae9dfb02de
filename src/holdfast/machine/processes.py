"""One started command as the runner sees it: the other end of its supervisor's socket."""

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.machine import supervisor
from holdfast.machine.identity import ProcessId, identify

LOG_BYTES = 10_000_000
LAST_WORDS = 2_000
KILLED = 137
# Longer than a supervisor tries to end what it has started.
PATIENCE_S = 10.0


class StartError(HoldfastError):
    """The command could not be started."""


class Launch(Struct, frozen=True, kw_only=True):
    """A command with all that it needs."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    log: Path
    log_bytes: int = LOG_BYTES
    cgroups: tuple[Path, ...] = ()


class Exit(Struct, frozen=True):
    """How a command ended; `left` are processes that would not die."""

    code: int
    signal: int = 0
    left: tuple[int, ...] = ()
    message: str = ""


class Process:
    """A running command. Closing it ends the command and everything that it started."""

    def __init__(self, popen: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._popen = popen
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._execs: dict[int, asyncio.Future[int]] = {}
        self._exit: asyncio.Task[Exit] | None = None

    @classmethod
    async def start(cls, launch: Launch, *, marker: Mapping[str, str], note: Callable[[ProcessId], None]) -> "Process":
        """Start a command; `note` is told of its supervisor before it runs, and then of itself. Raises `StartError`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, _complaints(launch).open("wb") as errors:
                popen = _spawn(theirs, errors, marker)
        except OSError:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        process = cls(popen, reader, writer)
        try:
            await process._launch(launch, note)
        except BaseException:
            await process.close()
            raise
        return process

    async def _launch(self, launch: Launch, note: Callable[[ProcessId], None]) -> None:
        if identity := identify(self._popen.pid):
            note(identity)
        self._send(
            do="launch",
            argv=list(launch.argv),
            env=launch.env,
            cwd=str(launch.cwd),
            log=str(launch.log),
            log_bytes=launch.log_bytes,
            cgroups=[str(path / "cgroup.procs") for path in launch.cgroups],
        )
        answer = await self._receive()
        if answer is None:
            raise StartError(f"the supervisor of {launch.argv[0]} ended before it started it: {_last_words(launch)}")
        if answer["event"] == "failed":
            raise StartError(str(answer["message"]))
        if identity := identify(int(answer["pid"])):
            note(identity)
        self._exit = asyncio.create_task(self._listen())

    async def wait(self) -> Exit:
        """Until the command, and all that it started, has ended."""
        assert self._exit is not None
        return await asyncio.shield(self._exit)

    def signal(self, number: int) -> None:
        self._send(do="signal", number=int(number))

    def kill(self) -> None:
        """End everything now; `wait` tells when it has."""
        self._send(do="kill")

    async def force(self) -> None:
        """The same, even where the supervisor does not answer; what it leaves then is for the caller to find."""
        self.kill()
        await asyncio.wait({asyncio.ensure_future(self.wait())}, timeout=PATIENCE_S)
        if self._exit is not None and not self._exit.done():
            self._popen.kill()

    async def exec(self, argv: Sequence[str]) -> int:
        """Run a second command beside the first, and give its exit code; cancelling ends it."""
        if self._exit is None or self._exit.done():
            return KILLED
        number = next(self._numbers)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._execs[number] = future
        self._send(do="exec", id=number, argv=list(argv))
        try:
            return await future
        finally:
            if future.cancelled():
                self._send(do="cancel", id=number)
            self._execs.pop(number, None)

    async def close(self) -> None:
        """The supervisor ends everything when the connection closes, and is waited for."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        try:
            await asyncio.to_thread(self._popen.wait, PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            await asyncio.to_thread(self._popen.wait)
        if self._exit is not None:
            self._exit.cancel()

    async def _listen(self) -> Exit:
        try:
            while (message := await self._receive()) is not None:
                if message["event"] == "exited":
                    return Exit(message["code"], message["signal"], tuple(message["left"]))
                future = self._execs.get(message["id"])
                if future is not None and not future.done():
                    future.set_result(message["code"])
            return Exit(KILLED, 9, message="the supervisor of the process was killed")
        finally:
            for future in self._execs.values():
                if not future.done():
                    future.set_result(KILLED)

    async def _receive(self) -> supervisor.Message | None:
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            body = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return supervisor.decode(body)

    def _send(self, **message: object) -> None:
        if not self._writer.is_closing():
            self._writer.write(supervisor.encode(message))


def _spawn(control: socket.socket, errors: BinaryIO, marker: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A supervisor in a session of its own, so that Ctrl-C in holdfast's terminal does not reach it."""
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-I", "-S", supervisor.__file__],
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=errors,
        cwd="/",
        env=dict(marker),
        start_new_session=True,
    )


def _complaints(launch: Launch) -> Path:
    """What the supervisor itself has to say; empty unless it fails."""
    return launch.log.with_name("supervisor")


def _last_words(launch: Launch) -> str:
    return _complaints(launch).read_text(errors="replace")[-LAST_WORDS:].strip() or "no message"
