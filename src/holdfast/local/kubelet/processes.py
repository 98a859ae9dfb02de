"""One started command as the runner sees it: the other end of its supervisor's socket."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.local.kubelet import supervisor
from holdfast.local.kubelet.environment import MACHINE, POD_UID

# Which process is which: a number alone is used again, a number with its start time and boot is not.

PROC = Path("/proc")


class Stat(Struct, frozen=True):
    """What the kernel says of a process."""

    parent: int
    session: int
    start: int  # in clock ticks since boot
    state: str


class ProcessId(Struct, frozen=True):
    """One process of one boot, and no other."""

    pid: int
    start: int
    boot: str

    def is_alive(self) -> bool:
        found = stat(self.pid)
        return found is not None and found.start == self.start and found.state != "Z" and self.boot == boot_id()

    def send(self, number: signal.Signals) -> None:
        """Signal this process, never another one that has been given its number since."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat(pid: int) -> Stat | None:
    """None when there is no such process (any more)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, even parentheses; the fields after it are numbered from 3.
    fields = text.rpartition(")")[2].split()
    return Stat(parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]), state=fields[0])


def identify(pid: int) -> ProcessId | None:
    found = stat(pid)
    return ProcessId(pid, found.start, boot_id()) if found else None


def processes() -> dict[int, Stat]:
    """Every process of the machine."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: found for pid in pids if (found := stat(pid))}


def environment(pid: int) -> dict[str, str]:
    """What the process was started with; empty where that is not ours to see."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


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


# What was started for a pod, written down before it runs: what a runner that was killed leaves to the next one.

PROCESS_JOURNAL = "processes.jsonl"


def record_process(folder: Path, identity: ProcessId) -> None:
    """Add one process. Not synced to the disk: a record that is lost with the machine speaks of nothing alive."""
    with (folder / PROCESS_JOURNAL).open("ab") as file:
        file.write(msgspec.json.encode(identity) + b"\n")


def started(folder: Path) -> bool:
    """Whether anything of this pod has ever been started."""
    return (folder / PROCESS_JOURNAL).exists()


def read_processes(folder: Path) -> list[ProcessId]:
    """All that can be read: a last line that was cut short is passed over, since its process never got to run."""
    try:
        lines = (folder / PROCESS_JOURNAL).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=ProcessId))
        except msgspec.DecodeError:
            continue
    return found


# Processes that a runner left behind when it was killed: found by identity, never by name, and ended.

PASS_S = 0.02


class OrphansRemain(HoldfastError):
    """Processes of an earlier run that don't end."""


async def end_left_behind(pods: Path, machine: str) -> int:
    """End whatever an earlier runner on this data folder started and is still there; returns how many those were."""
    noted = [identity for folder in _folders(pods) for identity in read_processes(folder)]
    return await _end({MACHINE: machine}, noted)


async def end_of_pod(folder: Path, machine: str, uid: str) -> int:
    """The same for one pod: what escaped its supervisors because one of them was killed."""
    return await _end({MACHINE: machine, POD_UID: uid}, read_processes(folder))


async def _end(marker: Mapping[str, str], noted: Iterable[ProcessId]) -> int:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + PATIENCE_S
    ended: set[int] = set()
    while left := find(marker, noted):
        if loop.time() > give_up:
            pids = ", ".join(str(one.pid) for one in left)
            raise OrphansRemain(f"these processes of an earlier run don't end: {pids}; end them, then start again")
        for one in left:
            one.send(signal.SIGKILL)
        ended |= {one.pid for one in left}
        await asyncio.sleep(PASS_S)
    return len(ended)


def find(marker: Mapping[str, str], noted: Iterable[ProcessId]) -> list[ProcessId]:
    """By the record of what was started, by its sessions, by the mark in the environment; and their descendants."""
    boot, all_processes = boot_id(), processes()
    alive = {pid: found for pid, found in all_processes.items() if found.state != "Z"}
    known = {one.pid: one.start for one in noted if one.boot == boot}
    ours = {pid for pid, found in alive.items() if _is_ours(pid, found, alive, known, marker)}
    ours |= _below(ours, alive)
    ours -= _self_and_ancestors(all_processes)
    return [ProcessId(pid, alive[pid].start, boot) for pid in sorted(ours)]


def _is_ours(
    pid: int, found: Stat, alive: Mapping[int, Stat], known: Mapping[int, int], marker: Mapping[str, str]
) -> bool:
    if known.get(pid) == found.start:
        return True
    # A number is not given out again while a session bears it: unless its leader is a stranger, the session is ours.
    leader = alive.get(found.session)
    if found.session in known and (leader is None or leader.start == known[found.session]):
        return True
    return marker.items() <= environment(pid).items()


def _below(roots: set[int], alive: Mapping[int, Stat]) -> set[int]:
    found = set(roots)
    while new := {pid for pid, one in alive.items() if one.parent in found} - found:
        found |= new
    return found


def _self_and_ancestors(all_processes: Mapping[int, Stat]) -> set[int]:
    """A runner may itself have been started by a process that bears the mark."""
    found, pid = set(), os.getpid()
    while pid and pid not in found:
        found.add(pid)
        pid = all_processes[pid].parent if pid in all_processes else 0
    return found


def _folders(pods: Path) -> list[Path]:
    return list(pods.iterdir()) if pods.exists() else []
