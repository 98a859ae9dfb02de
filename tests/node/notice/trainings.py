"""A worker's pod in virtual time: the real sidecar, and a training with the SDK that saves on notice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from holdfast.sidecar.settings import settings
from holdfast.sidecar.sidecar import Clocks, Sidecar
from holdfast.train import environment
from holdfast.train.run import Run
from tests.control_plane.ports import free_ports
from tests.node.notice.agents import now
from tests.runtime.virtual import now_s

STEP_S = 1.5
SAVE_S = 4.0
UID = "uid-a"


class TrainingPod:
    def __init__(self, folder: Path) -> None:
        self.port, progress_port = free_ports(2)
        self.saved_at_s: list[float] = []
        self.reasons: list[str | None] = []
        local, volume = folder / "pod", folder / "volume"
        for path in (local, volume / "attempt-0"):
            path.mkdir(parents=True)
        self.environ = {
            "HOLDFAST_JOB": "digits",
            "HOLDFAST_NAMESPACE": "default",
            "HOLDFAST_JOB_UID": UID,
            "HOLDFAST_ATTEMPT": "0",
            "HOLDFAST_INDEX": "0",
            "CHECKPOINT_DIR": str(volume / "attempt-0"),
            "RESUME_FROM": str(volume / "attempt-0.resume"),
            "CHECKPOINT_FREQUENCY": "1000",
            "EPOCHS": "1000",
            "PROGRESS_FILE": str(local / "progress.jsonl"),
            "HOLDFAST_NOTICE_FILE": str(local / "notice"),
            "HOLDFAST_STATE_DIR": str(local / "state"),
            "HOLDFAST_POD_IP": "127.0.0.1",
            "HOLDFAST_SIDECAR_PORT": str(self.port),
            "HOLDFAST_PROGRESS_PORT": str(progress_port),
            "TERMINATION_LOG": str(local / "termination-log"),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator["TrainingPod"]:
        """The sidecar and the training inside the block; then both are gone, as with their node."""
        sidecar = Sidecar(
            settings(self.environ), self.environ, clocks=Clocks(lambda: now().timestamp()), run_id="a-run"
        )
        tasks = [asyncio.create_task(sidecar.run(asyncio.Event())), asyncio.create_task(self._train())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def _train(self) -> None:
        run = Run(environment.read(self.environ), clock=now_s)
        for _epoch in run.epochs():
            await asyncio.sleep(STEP_S)
            reason = run.notice()
            if run.due():
                with run.checkpoint() as folder:
                    await asyncio.sleep(SAVE_S)
                    (folder / "model.bin").write_bytes(b"weights")
                self.saved_at_s.append(now_s())
                self.reasons.append(reason)
