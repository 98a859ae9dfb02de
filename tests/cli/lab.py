"""A cluster for the commands to work on, and the commands as users run them: processes of their own."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import PODS
from tests.contract.kinds import TRAINING_JOBS
from tests.control_plane.waiting import eventually

WITHIN_S = 120.0


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class CommandLab:
    """Everything happens in `namespace`."""

    def __init__(self, cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
        self.cluster = cluster
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    async def holdfast(self, *arguments: str, stdin: str = "") -> Done:
        return await holdfast(*arguments, "-n", self.namespace, stdin=stdin, KUBECONFIG=str(self.kubeconfig))

    async def good(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints that must succeed."""
        done = await self.holdfast(*arguments, stdin=stdin)
        assert done.code == 0, done
        return done.out

    async def refused(self, *arguments: str, code: int = 1, stdin: str = "") -> str:
        """The words of a command that must fail, without a traceback."""
        done = await self.holdfast(*arguments, stdin=stdin)
        assert done.code == code, done
        assert "Traceback" not in done.err
        assert all(line.startswith("holdfast: ") for line in done.err.splitlines()), done.err
        return done.err

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """A command that goes on."""
        environment = {**surroundings(), "KUBECONFIG": str(self.kubeconfig)}
        return await spawn(*arguments, "-n", self.namespace, environment=environment)

    async def job(self, name: str, status: JSON | None = None, **spec: object) -> None:
        body = {"model": "cnn", "dataset": "mnist", "numWorkers": 2, "gpusPerWorker": 0, **spec}
        await self.cluster.create(TRAINING_JOBS, {"metadata": {"name": name}, "spec": body}, namespace=self.namespace)
        if status:
            await self.say(name, status)

    async def say(self, name: str, status: JSON) -> None:
        await self.cluster.patch_status(TRAINING_JOBS, Key(self.namespace, name), {"status": status})

    async def pod(self, name: str, labels: Mapping[str, str]) -> None:
        """A pod that runs."""
        body = {
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": {
                "nodeName": await self.node(),
                "restartPolicy": "Never",
                "containers": [{"name": "trainer", "image": "registry.invalid/trainer:1"}],
            },
        }
        await self.cluster.create(PODS, body, namespace=self.namespace)
        await self.run_pod(Key(self.namespace, name))

        async def phase() -> str:
            return (await self.cluster.get(PODS, Key(self.namespace, name))).status.phase

        await eventually(phase, lambda seen: seen == "Running", what=f"{name} runs")

    async def node(self) -> str:
        """A node for the test's pods."""
        raise NotImplementedError

    async def run_pod(self, key: Key) -> None:
        """Where nobody else does: say that it runs."""


def condition(kind: str, *, status: str = "True", reason: str = "AsTold", message: str = "as told") -> JSON:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def holdfast(*arguments: str, stdin: str = "", **environment: str) -> Done:
    process = await spawn(*arguments, environment={**surroundings(), **environment})
    return await finished(process, stdin)


async def finished(process: asyncio.subprocess.Process, stdin: str = "") -> Done:
    try:
        async with asyncio.timeout(WITHIN_S):
            out, err = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def interrupted(process: asyncio.subprocess.Process) -> Done:
    """How a command ends on which somebody presses Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return await finished(process)


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        return (await process.stdout.readline()).decode()


async def spawn(*arguments: str, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment)
    )


def surroundings() -> dict[str, str]:
    """Nothing of the user's own: no cluster, no preferences."""
    return {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent", "COLUMNS": "200"}
