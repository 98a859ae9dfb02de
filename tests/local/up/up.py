"""`holdfast up` as a process, and what its users see of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.control_plane.component import Component

# Each worker holds a lock of its own while it runs: a second one at the same time would say so.
WORKER = """
import fcntl, os, sys, time
folder = sys.argv[1]
mine = os.path.join(folder, os.environ["TRAINING"] + "-" + os.environ["HOLDFAST_INDEX"])
lock = open(mine + ".lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(mine + ".twice", "w").close()
    sys.exit(1)
with open(mine + ".pids", "a+") as pids:
    pids.seek(0)
    first = not pids.read()
    pids.write(f"{os.getpid()}\\n")
time.sleep(600 if first else 1)  # the first time it is there to be killed
"""


class Up(Component):
    """Ready when its kubeconfig is there."""

    def __init__(self, data: Path, *options: str, log: Path) -> None:
        self.data = data
        self.kubeconfig = data / "kubeconfig"
        # Without control groups: one that is killed could not take its own away, and they are not the tests' to make.
        command = [sys.executable, "-m", "holdfast", "up", f"--data={data}", "--gpus=0", "--no-limits", *options]
        super().__init__("holdfast up", command, log=log, ready=self.kubeconfig.exists)

    def launch(self) -> None:
        # One that was killed could not take it away.
        self.kubeconfig.unlink(missing_ok=True)
        super().launch()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    @property
    def registry(self) -> str:
        """Where it serves images; written down before it is ready."""
        return f"127.0.0.1:{(self.data / 'registry/port').read_text().strip()}"

    @contextmanager
    def running(self) -> Iterator["Up"]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def holdfast(self, *args: str, given: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """One of the commands, on this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *args],
            input=given,
            cwd=cwd,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def processes(self) -> list[int]:
        """Every process that bears the mark of a pod of this cluster's machine."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                text = environ.read_bytes()
            except OSError:
                continue
            if b"HOLDFAST_POD_UID=" in text and str(self.data).encode() in text:
                found.append(int(environ.parent.name))
        return found


def training_job(name: str, command: list[str], *, workers: int = 1, **spec: Any) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "ml.example.com/v1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {
                "model": "script",
                "dataset": "none",
                "numWorkers": workers,
                "gpusPerWorker": 0,
                "command": command,
                "env": [{"name": "TRAINING", "value": name}],
                **spec,
            },
        }
    )
