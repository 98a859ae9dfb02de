"""Processes of containers: start them through a supervisor, identify them, and end orphans of an earlier run."""

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
from holdfast.local.kubelet.environment import NODE_ID, POD_UID

# A process is identified by pid, start time and boot id, because the kernel reuses pids.

PROC = Path("/proc")


class Stat(Struct, frozen=True):
    """The fields of /proc/PID/stat that are used here."""

    parent: int
    session: int
    start: int  # in clock ticks since boot
    state: str


class ProcessId(Struct, frozen=True):
    """Identifies one process uniquely, across pid reuse and reboots."""

    pid: int
    start: int
    boot: str

    def is_alive(self) -> bool:
        found = stat(self.pid)
        return found is not None and found.start == self.start and found.state != "Z" and self.boot == boot_id()

    def send(self, number: signal.Signals) -> None:
        """Signal this process, never a later process with the same pid."""
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
    """The stat of a process; None when the process does not exist (any more)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may contain anything, even parentheses; the fields after the name are numbered from 3.
    fields = text.rpartition(")")[2].split()
    return Stat(parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]), state=fields[0])


def identify(pid: int) -> ProcessId | None:
    found = stat(pid)
    return ProcessId(pid, found.start, boot_id()) if found else None


def processes() -> dict[int, Stat]:
    """Every process on the host."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: found for pid in pids if (found := stat(pid))}


def environment(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty without permission to read it."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


LOG_BYTES = 10_000_000
STDERR_TAIL_CHARS = 2_000
KILLED = 137
# Longer than a supervisor tries to end its processes (supervisor.GIVE_UP_AFTER_MS).
END_TIMEOUT_S = 10.0


class StartError(HoldfastError):
    """The command could not be started."""


class Launch(Struct, frozen=True, kw_only=True):
    """A command with its environment, working directory, log and cgroups."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    log: Path
    log_bytes: int = LOG_BYTES
    cgroups: tuple[Path, ...] = ()


class Exit(Struct, frozen=True):
    """The result of a command; `left` are the pids of processes that survived SIGKILL."""

    code: int
    signal: int = 0
    left: tuple[int, ...] = ()
    message: str = ""


class Process:
    """A running command. `close` ends the command and all its descendants."""

    def __init__(self, popen: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._popen = popen
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._execs: dict[int, asyncio.Future[int]] = {}
        self._exit: asyncio.Task[Exit] | None = None

    @classmethod
    async def start(
        cls, launch: Launch, *, marker: Mapping[str, str], record: Callable[[ProcessId], None]
    ) -> "Process":
        """Start a command; `note` gets the id of the supervisor first, then of the command. Raises `StartError`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, _stderr_file(launch).open("wb") as errors:
                popen = _spawn(theirs, errors, marker)
        except OSError:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        process = cls(popen, reader, writer)
        try:
            await process._launch(launch, record)
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
        reply = await self._receive()
        if reply is None:
            raise StartError(f"the supervisor of {launch.argv[0]} ended before it started it: {_stderr_tail(launch)}")
        if reply["event"] == "failed":
            raise StartError(str(reply["message"]))
        if identity := identify(int(reply["pid"])):
            note(identity)
        self._exit = asyncio.create_task(self._listen())

    async def wait(self) -> Exit:
        """Wait until the command and all its descendants have ended."""
        assert self._exit is not None
        return await asyncio.shield(self._exit)

    def signal(self, number: int) -> None:
        self._send(do="signal", number=int(number))

    def kill(self) -> None:
        """Kill the command and all its descendants; `wait` returns when they have ended."""
        self._send(do="kill")

    async def force(self) -> None:
        """Like `kill`, even when the supervisor does not respond; then the caller has to find the orphans."""
        self.kill()
        await asyncio.wait({asyncio.ensure_future(self.wait())}, timeout=END_TIMEOUT_S)
        if self._exit is not None and not self._exit.done():
            self._popen.kill()

    async def exec(self, argv: Sequence[str]) -> int:
        """Run a second command in the container and return its exit code; cancelling ends the second command."""
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
        """Close the connection, on which the supervisor ends all processes, and wait for the supervisor."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        try:
            await asyncio.to_thread(self._popen.wait, END_TIMEOUT_S)
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
    """Start a supervisor in its own session, so that Ctrl-C in holdfast's terminal does not reach the supervisor."""
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-I", "-S", supervisor.__file__],
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=errors,
        cwd="/",
        env=dict(marker),
        start_new_session=True,
    )


def _stderr_file(launch: Launch) -> Path:
    """The file with the stderr of the supervisor; empty unless the supervisor fails."""
    return launch.log.with_name("supervisor")


def _stderr_tail(launch: Launch) -> str:
    return _stderr_file(launch).read_text(errors="replace")[-STDERR_TAIL_CHARS:].strip() or "no message"


# The journal of the processes of a pod, written before they run: after a crash, the next kubelet reads the journal.

PROCESS_JOURNAL = "processes.jsonl"


def record_process(folder: Path, identity: ProcessId) -> None:
    """Add one process. No fsync: when a host crash loses the record, the process is gone too."""
    with (folder / PROCESS_JOURNAL).open("ab") as file:
        file.write(msgspec.json.encode(identity) + b"\n")


def started(folder: Path) -> bool:
    """Whether any process of this pod was ever started."""
    return (folder / PROCESS_JOURNAL).exists()


def read_processes(folder: Path) -> list[ProcessId]:
    """All readable records: a truncated last line is skipped, since its process never ran."""
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


# Orphans of a kubelet that was killed: found by process id and marker, never by name.

PASS_S = 0.02


class OrphansRemain(HoldfastError):
    """Processes of an earlier run do not end."""


async def end_orphans(pods: Path, node_id: str) -> int:
    """End all processes that an earlier kubelet on this data folder left running; returns their number."""
    recorded = [identity for folder in _folders(pods) for identity in read_processes(folder)]
    return await _end({NODE_ID: node_id}, recorded)


async def end_of_pod(folder: Path, node_id: str, uid: str) -> int:
    """End all processes of one pod that outlived a killed supervisor; returns their number."""
    return await _end({NODE_ID: node_id, POD_UID: uid}, read_processes(folder))


async def _end(marker: Mapping[str, str], recorded: Iterable[ProcessId]) -> int:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + END_TIMEOUT_S
    ended: set[int] = set()
    while left := find(marker, recorded):
        if loop.time() > deadline:
            pids = ", ".join(str(process_id.pid) for process_id in left)
            raise OrphansRemain(f"these processes of an earlier run don't end: {pids}; end them, then start again")
        for process_id in left:
            process_id.send(signal.SIGKILL)
        ended |= {process_id.pid for process_id in left}
        await asyncio.sleep(PASS_S)
    return len(ended)


def find(marker: Mapping[str, str], recorded: Iterable[ProcessId]) -> list[ProcessId]:
    """Processes by journal, by session, by marker in the environment; and the descendants of all of these."""
    boot, all_processes = boot_id(), processes()
    alive = {pid: found for pid, found in all_processes.items() if found.state != "Z"}
    known = {process_id.pid: process_id.start for process_id in recorded if process_id.boot == boot}
    ours = {pid for pid, found in alive.items() if _is_ours(pid, found, alive, known, marker)}
    ours |= _with_descendants(ours, alive)
    ours -= _self_and_ancestors(all_processes)
    return [ProcessId(pid, alive[pid].start, boot) for pid in sorted(ours)]


def _is_ours(
    pid: int, found: Stat, alive: Mapping[int, Stat], known: Mapping[int, int], marker: Mapping[str, str]
) -> bool:
    if known.get(pid) == found.start:
        return True
    # The kernel does not reuse a pid while a session has that id: unless its leader is foreign, the session is ours.
    leader = alive.get(found.session)
    if found.session in known and (leader is None or leader.start == known[found.session]):
        return True
    return marker.items() <= environment(pid).items()


def _with_descendants(roots: set[int], alive: Mapping[int, Stat]) -> set[int]:
    found = set(roots)
    while new := {pid for pid, process in alive.items() if process.parent in found} - found:
        found |= new
    return found


def _self_and_ancestors(all_processes: Mapping[int, Stat]) -> set[int]:
    """This process and its ancestors: a kubelet may itself run below a process with the marker."""
    found, pid = set(), os.getpid()
    while pid and pid not in found:
        found.add(pid)
        pid = all_processes[pid].parent if pid in all_processes else 0
    return found


def _folders(pods: Path) -> list[Path]:
    return list(pods.iterdir()) if pods.exists() else []
