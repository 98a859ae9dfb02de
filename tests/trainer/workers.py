"""Real workers: processes of this interpreter, alone or several on a loopback address of their own."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 120
PORT = 29500
_addresses = itertools.count(1)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        found = json.loads(self.out.splitlines()[-1])
        assert isinstance(found, dict)
        return found


class Processes:
    """Starts workers in a folder of their own, and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, **environ: object) -> subprocess.Popen[str]:
        own = {"PATH": os.environ["PATH"], "TERMINATION_LOG": str(self._folder / "termination-log")}
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "holdfast.trainer"],
            env=own | {name: str(value) for name, value in environ.items()},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, **environ: object) -> Ended:
        return end(self.start(**environ))

    def start_group(self, size: int, **environ: object) -> list[subprocess.Popen[str]]:
        address = loopback()
        group = {"MASTER_ADDR": address, "MASTER_PORT": PORT, "WORLD_SIZE": size, "PARAM_JOIN_TIMEOUT": WAIT_S}
        return [self.start(**(group | {"RANK": rank} | environ)) for rank in range(size)]

    def run_group(self, size: int, **environ: object) -> list[Ended]:
        return [end(process) for process in self.start_group(size, **environ)]

    def stop(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.communicate()


def loopback() -> str:
    """An address that no other test uses, in this run or another, so that the same port is free on each."""
    run = os.getpid()
    return f"127.{1 + run % 250}.{run // 250 % 250}.{next(_addresses) % 250}"


def end(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=WAIT_S)
    return Ended(process.returncode, out, err)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def epochs(file: Path) -> list[dict[str, Any]]:
    """The lines about whole epochs. One that takes longer than a second has lines about its steps as well."""
    return [line for line in lines(file) if "step" not in line]


def wait_for_epochs(file: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until the progress file tells of so many epochs."""
    deadline = time.monotonic() + WAIT_S
    while len(epochs(file)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{file} tells of {len(epochs(file))} epochs"
        time.sleep(0.02)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.stop()
