"""One server process of the control plane: started, awaited, stopped, killed and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 20.0
LAUNCHER = Path(__file__).with_name("launch.py")

# The kernel's death signal follows the thread that forked, not its process, so all forks come from one that stays.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")


class ComponentFailed(Exception):
    """A server died or did not become ready; the text ends with the last lines of its log."""


def spawn(
    command: Sequence[str], *, log: Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own that dies with this process; its output is added to `log`."""
    argv = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]
    with log.open("ab") as output:
        return _spawner.submit(
            subprocess.Popen,
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        ).result()


class Component:
    """A server whose port and data stay the same from one start to the next; it works in its log's folder."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """environment: variables beside those of this process."""
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._environment = environment or {}
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the server and return when it is ready."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the server without waiting for it."""
        if self.pid is not None:
            raise ComponentFailed(f"{self.name} runs already, with process id {self.pid}: stop it first")
        environment = {**os.environ, **self._environment}
        self._process = spawn(self.command, log=self.log, cwd=self.log.parent, environment=environment)

    def await_ready(self, within_s: float = READY_WITHIN_S) -> None:
        """Return when the server is ready; one that has ended is not, whoever else may answer on its port."""
        deadline = time.monotonic() + within_s
        while self.pid is None or not self._ready():
            if self.pid is None:
                code = self._process.returncode if self._process else "none"
                raise ComponentFailed(f"{self.name} ended before it was ready (exit code {code}).\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ComponentFailed(f"{self.name} was not ready within {within_s:.0f} s.\n{self.tail()}")
            time.sleep(0.05)

    def stop(self, within_s: float = STOP_WITHIN_S) -> None:
        """Ask the server to end, make it end if it does not, and return when it has ended."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the server at once, as a lost machine would."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.killpg(self.pid, number)

    @property
    def log_size(self) -> int:
        """Where the log ends now."""
        return self.log.stat().st_size if self.log.exists() else 0

    def tail(self, *, since: int = 0, lines: int = 40) -> str:
        """The last lines of the log, none from before position `since`."""
        if not self.log.exists():
            return f"{self.log} was never written"
        with self.log.open("rb") as file:
            file.seek(since)
            last = file.read().decode(errors="replace").splitlines()[-lines:]
        return "\n".join([f"Last lines of {self.log}:", *last])
