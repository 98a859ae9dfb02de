"""The process between the kubelet and one container: it starts the command and ends all descendants of the command.

The supervisor runs as a script, once per container, so it imports little and nothing of holdfast. As a subreaper it
inherits every orphan of the command, even after a change of session or a cleared environment: when the command ends,
or the kubelet dies (the socket on standard input closes), no process of the container survives.
"""

import ctypes
import marshal
import os
import select
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIGKILL = 9
SIGNALS = range(1, 65)
CONTROL = 0
CHUNK = 1 << 16
REAP_EVERY_MS = 10_000
GIVE_UP_AFTER_MS = 5_000
PASS_MS = 5

LIBC = ctypes.CDLL(None, use_errno=True)

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    # marshal: both ends are the same interpreter, and importing json would double the start-up time.
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes) -> Message:
    message: Message = marshal.loads(body)  # noqa: S302 - from our own socket
    return message


class MessageBuffer:
    """Splits a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                break
            messages.append(decode(self._buffer[4:end]))
            self._buffer = self._buffer[end:]
        return messages


class RotatingLog:
    """At most two files of `limit` bytes: the current file and the previous file. A line may be split."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._file = self._open()
        self._size = os.fstat(self._file).st_size

    def write(self, data: bytes) -> None:
        """A full disk loses output, but never stops the training."""
        for start in range(0, len(data), self._limit):
            piece = data[start : start + self._limit]
            try:
                if self._size + len(piece) > self._limit:
                    self._rotate()
                self._size += os.write(self._file, piece)
            except OSError:
                continue

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _rotate(self) -> None:
        os.replace(self._path, f"{self._path}.1")  # noqa: PTH105 - pathlib is slow to import
        os.close(self._file)
        self._file, self._size = self._open(), 0


def parents() -> dict[int, int]:
    """The parent pid of every process on the host."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is slow to import
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    # The name in parentheses may hold anything, even parentheses.
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
    return found


def descendants(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    pending = [root]
    while pending:
        new = [pid for pid in children.get(pending.pop(), ()) if pid not in found]
        found.update(new)
        pending += new
    return found


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def prctl(option: int, value: int) -> None:
    LIBC.prctl(option, value, 0, 0, 0)


def exit_code(status: int) -> int:
    """The exit code as container runtimes report it: 128 plus the signal number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class Supervisor:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._inbox = MessageBuffer()
        self._launch: Message = {}
        self._main = 0
        self._main_status: int | None = None
        self._execs: dict[int, int] = {}  # pid → exec id of the kubelet
        self._pidfds: dict[int, int] = {}  # pid → descriptor
        self._output = -1
        self._log: RotatingLog | None = None

    def run(self) -> None:
        """Run until the command has ended or the kubelet is gone."""
        self._poll.register(CONTROL, select.POLLIN)
        while self._main_status is None:
            for fd, _ in self._poll.poll(REAP_EVERY_MS):
                if fd == CONTROL:
                    self._read_control_socket()
                elif fd == self._output:
                    self._copy_output()
            self._reap()
        self._end_all()
        self._drain()
        code = exit_code(self._main_status)
        number = os.WTERMSIG(self._main_status) if os.WIFSIGNALED(self._main_status) else 0
        self._send({"event": "exited", "code": code, "signal": number, "left": sorted(descendants(os.getpid()))})

    def _read_control_socket(self) -> None:
        try:
            data = os.read(CONTROL, CHUNK)
        except ConnectionError:
            data = b""
        if not data:  # the kubelet is gone: nobody else would ever stop these processes
            self._end_all()
            sys.exit(1)
        for message in self._inbox.feed(data):
            self._handle_command(message)

    def _handle_command(self, message: Message) -> None:
        match message["do"]:
            case "launch":
                self._start(message)
            case "signal":
                # Signal the whole process group: a shell as the first process does not forward signals.
                self._signal_group(self._main, message["number"])
            case "kill":
                signal_all(descendants(os.getpid()), SIGKILL)
            case "exec":
                self._exec(message)
            case "cancel":
                for pid, number in self._execs.items():
                    if number == message["id"]:
                        self._signal_group(pid, SIGKILL)

    def _signal_group(self, pid: int, number: int) -> None:
        if pid in self._pidfds:
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                signal_all({pid}, number)  # between fork and setsid

    def _start(self, launch: Message) -> None:
        self._launch = launch
        self._output, write = os.pipe()
        os.set_blocking(self._output, False)
        self._poll.register(self._output, select.POLLIN)
        try:
            self._log = RotatingLog(launch["log"], launch["log_bytes"])
            self._main = self._fork(launch["argv"], write)
        except OSError as error:
            self._send({"event": "failed", "message": str(error)})
            sys.exit(0)
        os.close(write)
        self._send({"event": "started", "pid": self._main})

    def _exec(self, message: Message) -> None:
        devnull = os.open(os.devnull, os.O_WRONLY)
        try:
            self._execs[self._fork(message["argv"], devnull)] = message["id"]
        except OSError as error:
            self._send({"event": "exec", "id": message["id"], "code": 126, "message": str(error)})
        finally:
            os.close(devnull)

    def _fork(self, argv: list[str], output: int) -> int:
        """Start a process in its own session, in the container's environment. Raises the error of a failed start."""
        read, write = os.pipe()  # closed by a successful exec
        pid = os.fork()
        if pid == 0:
            self._exec_child(argv, output, write)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            failure = file.read()
        if failure:
            os.waitpid(pid, 0)
            raise OSError(failure.decode(errors="replace"))
        self._pidfds[pid] = os.pidfd_open(pid)
        self._poll.register(self._pidfds[pid], select.POLLIN)
        return pid

    def _exec_child(self, argv: list[str], output: int, failure: int) -> None:
        cwd = self._launch["cwd"]
        step = f"can't use the working directory {cwd}"
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, SIGKILL)
            # Ignored signals stay ignored across exec: Python ignores SIGPIPE, nohup SIGHUP, a background job of a
            # script SIGINT. A container starts with the defaults.
            for number in SIGNALS:
                LIBC.signal(number, None)
            os.chdir(cwd)
            step = "can't enter its cgroup"
            for path in self._launch["cgroups"]:
                with open(path, "w") as file:  # noqa: PTH123
                    file.write("0")
            step = f"can't run {argv[0]}"
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execvpe(argv[0], argv, self._launch["env"])  # noqa: S606 - the purpose of the supervisor
        except (OSError, ValueError) as error:
            os.write(failure, f"{step}: {getattr(error, 'strerror', None) or error}".encode())
        finally:
            os._exit(127)

    def _copy_output(self) -> bool:
        """Copy one chunk to the log; returns whether there may be more output."""
        assert self._log is not None
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._poll.unregister(self._output)
            os.close(self._output)
            self._output = -1
            return False
        self._log.write(data)
        return True

    def _drain(self) -> None:
        while self._output >= 0 and self._copy_output():
            pass

    def _reap(self) -> bool:
        """Reap every child that has ended; returns whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._on_exit(pid, status)

    def _on_exit(self, pid: int, status: int) -> None:
        if (fd := self._pidfds.pop(pid, None)) is not None:
            self._poll.unregister(fd)
            os.close(fd)
        if pid == self._main:
            self._main_status = status
        elif pid in self._execs:
            self._send({"event": "exec", "id": self._execs.pop(pid), "code": exit_code(status)})

    def _end_all(self) -> None:
        """Kill in passes until no process is left: the next pass finds processes that were forked meanwhile."""
        for _ in range(GIVE_UP_AFTER_MS // PASS_MS):
            if not self._reap():
                return
            signal_all(descendants(os.getpid()), SIGKILL)
            if self._output >= 0:
                self._copy_output()
            select.select([], [], [], PASS_MS / 1000)

    def _send(self, message: Message) -> None:
        data = encode(message)
        try:
            while data:
                data = data[os.write(CONTROL, data) :]
        except (BrokenPipeError, ConnectionError):
            return


if __name__ == "__main__":
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    Supervisor().run()
