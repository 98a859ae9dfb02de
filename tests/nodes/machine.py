"""A machine made of namespaces: network, mounts, processes, host name and control groups of its own.

All that runs in it descends from its first process, or was put under it, and the kernel ends all of it with that one:
that is how a machine loses its power here. Its mounts and its links go with it; what stays is its folder, its disk.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.control_plane.component import READY_WITHIN_S, Component, ComponentFailed
from tests.nodes import cgroups

JOIN, BOOT = (Path(__file__).with_name(name) for name in ("join.py", "boot.py"))
PYTHON = (sys.executable, "-I", "-S")
UNSHARE = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc")
ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
COMMAND_WITHIN_S = 120.0


class CommandFailed(Exception):
    """A command in a machine ended with an error; the text has all that it said."""


class Machine(Component):
    """`name` is its host name, `groups` are its control groups; what it keeps lies in `folder`."""

    def __init__(self, name: str, folder: Path, groups: cgroups.Groups) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.groups = groups
        self._up = folder / "up"
        first = [*PYTHON, str(BOOT), name, str(folder)]
        command = [*_joining(groups.first), program("unshare"), *UNSHARE, *first]
        super().__init__(name, command, log=folder / "boot.log", ready=self._up.exists)

    def launch(self) -> None:
        self._up.unlink(missing_ok=True)
        self.groups.make()
        super().launch()

    def await_ready(self, within_s: float = READY_WITHIN_S) -> None:
        super().await_ready(within_s)
        for file in self.groups.later:  # the one that made the namespaces stays outside them, and moves too
            file.write_text(str(self.pid))

    @property
    def first(self) -> int:
        """The process id, seen from outside, of the machine's first process."""
        (pid,) = self._children()
        return pid

    def kill(self) -> None:
        """Take the power away, and return when nothing runs in it any more."""
        if self._process is not None:
            for pid in self._children():
                os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def _children(self) -> list[int]:
        """Of the process that made the namespaces: the first in them, or none when it has ended."""
        if self.pid is None:
            return []
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []

    def inside(self, *command: str) -> list[str]:
        """The command line by which a command runs in this machine, as long as it is not started anew."""
        entered = [program("nsenter"), f"--target={self.first}", *ENTER, "--", *command]
        return [*_joining(self.groups.later), *entered]

    def run(self, *command: str, text: str = "") -> str:
        """Run a command in this machine to its end, and return what it printed."""
        done = subprocess.run(
            self.inside(*command), input=text, capture_output=True, text=True, timeout=COMMAND_WITHIN_S, check=False
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise CommandFailed(f"`{' '.join(command)}` on {self.name} ended with exit code {done.returncode}: {said}")
        return done.stdout

    def service(self, name: str, command: Sequence[str], ready: Callable[[], bool]) -> Component:
        """A server that runs in this machine; it ends with it at the latest."""
        log = self.folder / f"{name}.log"
        return Component(f"{name} of {self.name}", self.inside(*command), log=log, ready=ready)


def _joining(files: list[Path]) -> list[str]:
    return [*PYTHON, str(JOIN), *map(str, files), "--"]


def program(name: str) -> str:
    """The path of a program of this system."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise ComponentFailed(f"{name} is not installed: run `make nodes`")
    return found
