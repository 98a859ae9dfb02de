"""A worker's pod without a kubelet: the sidecar and the training as processes, the probes asked by hand."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from tests.control_plane.ports import free_ports
from tests.sidecar.operators import WITHIN_S, OperatorDouble

UID = "uid-1"
TRAINING = {
    "MODEL": "linear",
    "DATASET": "synthetic",
    "PARAM_SAMPLES": "200",
    "EPOCHS": "6",
    "MIXED_PRECISION": "false",
}


class Pod:
    """`root` is the volume, `local` what dies with the pod."""

    def __init__(
        self,
        root: Path,
        local: Path,
        operator: OperatorDouble,
        *,
        attempt: int = 0,
        index: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.root, self.local = root, local
        local.mkdir(parents=True, exist_ok=True)
        self.port, self.progress_port, self.metrics_port = free_ports(3)
        self.checkpoint_dir, self.resume_from = root / f"attempt-{attempt}", root / f"attempt-{attempt}.resume"
        self.progress_file, self.notice_file = local / "progress.jsonl", local / "notice"
        self.heeded = local / "notice.heeded"
        self.message = local / "termination-log"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOLDFAST_JOB": "digits",
            "HOLDFAST_NAMESPACE": "ml",
            "HOLDFAST_JOB_UID": UID,
            "HOLDFAST_ATTEMPT": str(attempt),
            "HOLDFAST_INDEX": str(index),
            "CHECKPOINT_DIR": str(self.checkpoint_dir),
            "RESUME_FROM": str(self.resume_from),
            "PROGRESS_FILE": str(self.progress_file),
            "HOLDFAST_NOTICE_FILE": str(self.notice_file),
            "HOLDFAST_STATE_DIR": str(local / "state"),
            "HOLDFAST_REPORTS_FILE": str(operator.reports_file),
            "HOLDFAST_TOKEN_FILE": str(operator.token_file),
            "HOLDFAST_REPORT_SECONDS": "1",
            "HOLDFAST_GRACE_SECONDS": "30",
            "HOLDFAST_POD_IP": "127.0.0.1",
            "HOLDFAST_SIDECAR_PORT": str(self.port),
            "HOLDFAST_PROGRESS_PORT": str(self.progress_port),
            "TERMINATION_LOG": str(self.message),
            **(environ or {}),
        }
        self.running: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> "Pod":
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.running:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def sidecar(self, *options: str) -> asyncio.subprocess.Process:
        """`options` are the interpreter's."""
        return await self._start("sidecar", "-W", "error", *options, "-m", "holdfast", "sidecar")

    async def trainer(self, **environ: str) -> asyncio.subprocess.Process:
        return await self._start("trainer", "-m", "holdfast.trainer", **{**TRAINING, **environ})

    async def script(self, text: str, **environ: str) -> asyncio.subprocess.Process:
        return await self._start("script", "-c", text, **environ)

    def log(self, name: str) -> str:
        return (self.local / f"{name}.log").read_text()

    async def ask(self, path: str) -> tuple[int, str]:
        """As the kubelet does; 0 while nobody listens."""
        url = f"http://{self.environ['HOLDFAST_POD_IP']}:{self.port}/{UID}{path}"
        timeout = aiohttp.ClientTimeout(total=WITHIN_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                return response.status, await response.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def post(self, told: str, host: str = "") -> int:
        """As a training does."""
        url = f"http://{host or self.environ['HOLDFAST_POD_IP']}:{self.environ['HOLDFAST_PROGRESS_PORT']}/progress"
        async with aiohttp.ClientSession() as session, session.post(url, data=told) as response:
            return response.status

    async def answers(self, path: str, status: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while (await self.ask(path))[0] != status:
                assert self.running[-1].returncode is None, self.log("sidecar")
                await asyncio.sleep(0.05)

    async def _start(self, name: str, *arguments: str, **environ: str) -> asyncio.subprocess.Process:
        with (self.local / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, env={**self.environ, **environ}, stdout=log, stderr=log
            )
        self.running.append(process)
        return process


async def ended(process: asyncio.subprocess.Process, number: int = signal.SIGTERM) -> int:
    """Its exit code, after a signal."""
    if process.returncode is None:
        process.send_signal(number)
    async with asyncio.timeout(WITHIN_S):
        return await process.wait()


async def done(process: asyncio.subprocess.Process) -> int:
    """Its exit code, when it has ended by itself."""
    async with asyncio.timeout(WITHIN_S):
        return await process.wait()


def peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
