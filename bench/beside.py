"""A training and its sidecar as processes, the sidecar and the store on one core and the training on another."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.steps import Step, Stretch, steps
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.sidecar.storage import UPLOADED
from tests.checkpoints.making import await_tick
from tests.control_plane.component import spawn
from tests.control_plane.ports import free_ports
from tests.sidecar.pods import peak_mib

LOOK_S = 1.0
# Short: how fast a core is changes from minute to minute, with whatever else the machine's owner runs on it.
STRETCH_S = 1.0
IDLE_STRETCHES = 10
WITHIN_S = 600


class Beside:
    """One worker's pod. `volume` is its own, and `source` what it saves, again and again."""

    def __init__(self, folder: Path, source: Path, store: str, environ: Mapping[str, str], cores: list[int]) -> None:
        self._folder = folder
        self._source = source
        self._cores = cores
        self._environ = {**os.environ, **environ, "HOLDFAST_STORE": store, "HOLDFAST_RETENTION": "1"}
        self.stretches: list[Stretch] = []
        self.peaks_mib: dict[str, float] = {}

    def run(self, rounds: int) -> list[Step]:
        """A sidecar that has nothing to do, and one that uploads: each in turns with one that is stopped."""
        notes = self._folder / "steps"
        with self._sidecar(0) as sidecar, self._training(notes):
            self._until((self._folder / "attempt-0").exists)
            for epoch in range(1, rounds + 1):
                for _ in range(IDLE_STRETCHES):
                    self._turn(sidecar, "idle")
                self._upload(checkpoint_name(epoch, 0).folder, sidecar)
            self.peaks_mib["upload"] = peak_mib(sidecar.pid)
        self._restore()
        return steps(notes)

    def _turn(self, sidecar: subprocess.Popen[bytes], what: str) -> None:
        sidecar.send_signal(signal.SIGSTOP)
        self._stretch("without")
        sidecar.send_signal(signal.SIGCONT)
        self._stretch(what)

    def _upload(self, leaf: str, sidecar: subprocess.Popen[bytes]) -> None:
        """Linked, not written: what is measured is the sidecar alone."""
        target = self._folder / leaf
        partial = target.with_name(".partial")
        partial.mkdir()
        for file in self._source.iterdir():
            (partial / file.name).hardlink_to(file)
        await_tick(partial)
        partial.rename(target)
        time.sleep(LOOK_S)
        while not (target / UPLOADED).exists():
            self._turn(sidecar, "upload")
        self.stretches = self.stretches[:-2]  # it was over within these
        shutil.rmtree(target)
        time.sleep(LOOK_S)

    def _restore(self) -> None:
        with self._sidecar(1) as sidecar:
            self._until((self._folder / "attempt-1.resume").exists)
            self.peaks_mib["restore"] = peak_mib(sidecar.pid)

    def _stretch(self, what: str) -> None:
        began_s = time.monotonic()
        time.sleep(STRETCH_S)
        self.stretches.append(Stretch(what, began_s, time.monotonic()))

    @contextlib.contextmanager
    def _sidecar(self, attempt: int) -> Iterator[subprocess.Popen[bytes]]:
        port, progress_port = free_ports(2)
        environ = {
            "HOLDFAST_JOB": "bench",
            "HOLDFAST_NAMESPACE": "default",
            "HOLDFAST_JOB_UID": "bench",
            "HOLDFAST_ATTEMPT": str(attempt),
            "HOLDFAST_INDEX": "0",
            "CHECKPOINT_DIR": str(self._folder / f"attempt-{attempt}"),
            "RESUME_FROM": str(self._folder / f"attempt-{attempt}.resume"),
            "HOLDFAST_STATE_DIR": str(self._folder / f"state-{attempt}"),
            "HOLDFAST_POD_IP": "127.0.0.1",
            "HOLDFAST_SIDECAR_PORT": str(port),
            "HOLDFAST_PROGRESS_PORT": str(progress_port),
            "TERMINATION_LOG": str(self._folder / "termination-log"),
        }
        with self._process("sidecar", [sys.executable, "-m", "holdfast", "sidecar"], environ) as sidecar:
            yield sidecar

    @contextlib.contextmanager
    def _training(self, notes: Path) -> Iterator[None]:
        environ = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "MKL", "OMP")}
        argv = [sys.executable, "-m", "bench.steps", str(self._cores[0]), str(notes)]
        with self._process("training", argv, environ):
            yield

    @contextlib.contextmanager
    def _process(self, name: str, argv: list[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        log = self._folder / f"{name}.log"
        child = spawn(argv, log=log, environment={**self._environ, **environ})
        os.sched_setaffinity(child.pid, {self._cores[-1]})
        try:
            yield child
        finally:
            child.kill()
            child.wait()

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise TimeoutError((self._folder / "sidecar.log").read_text()[-2000:])
            time.sleep(0.05)
