"""A runner that is killed: what it started is ended, and its pods are given back to be replaced."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.meta import Key
from holdfast.local.kubelet.kubelet import identity_of
from holdfast.local.kubelet.processes import environment, processes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.local.kubelet.bench import Bench, MakeBench, condition, shell, terminated

# A second process can reach only the API server.
pytestmark = pytest.mark.parametrize("engine", ["kubernetes"], indirect=True)


class Runner:
    """A runner on the bench's node and data folder, while the bench's own is stopped."""

    def __init__(self, bench: Bench, kubeconfig: Path) -> None:
        self.bench = bench
        self._arguments = (str(kubeconfig), bench.node, str(bench.data))
        self.process: Process | None = None

    async def start(self) -> None:
        command = (sys.executable, "-m", "tests.local.kubelet.runner", *self._arguments)
        self.process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        assert self.process.stdout
        assert await self.process.stdout.readline() == b"running\n"

    async def kill(self) -> None:
        assert self.process
        self.process.kill()
        await self.process.communicate()

    async def logged(self, key: Key) -> list[int]:
        """The process numbers that the pod has written."""
        pod = await self.bench.phase(key, "Running")
        log = self.bench.folder(pod) / "logs/main/0.log"

        async def look() -> list[int]:
            return [int(word) for word in log.read_text().split()]

        return await eventually(look, bool, what="it has written a number")

    def marked(self) -> list[int]:
        """The processes of its pods, by the mark that they bear."""
        mark = identity_of(self.bench.data)
        return [pid for pid, one in processes().items() if one.state != "Z" and has_mark(pid, mark)]


def has_mark(pid: int, mark: str) -> bool:
    return environment(pid).get("HOLDFAST_MACHINE") == mark


@pytest.fixture
async def runner(bench: Bench, control_plane: ControlPlane) -> AsyncIterator[Runner]:
    await bench.machine.stop()
    runner = Runner(bench, control_plane.kubeconfig)
    await runner.start()
    yield runner
    assert runner.process
    if runner.process.returncode is None:
        await runner.kill()


async def test_processes_end_when_their_runner_is_killed(runner: Runner) -> None:
    key = await runner.bench.start(shell("trap '' TERM; setsid sleep 1000 & sleep 1000"))
    await runner.bench.phase(key, "Running")
    assert runner.marked()
    await runner.kill()

    async def look() -> list[int]:
        return runner.marked()

    await eventually(look, lambda pids: not pids, what="no process is left")


async def test_a_pod_that_ran_when_its_runner_was_killed_is_reported_as_disrupted(
    runner: Runner, make_bench: MakeBench
) -> None:
    key = await runner.bench.start(shell("sleep 1000"))
    await runner.bench.phase(key, "Running")
    await runner.kill()
    await make_bench()
    pod = await runner.bench.phase(key, "Failed")
    assert pod.status["reason"] == "NodeLost"
    assert condition(pod, "DisruptionTarget")["status"] == "True"
    assert terminated(pod)["exitCode"] == 137


async def test_processes_whose_supervisor_was_killed_too_are_ended_before_anything_is_started(
    runner: Runner, make_bench: MakeBench
) -> None:
    """By the record, the session or the mark: whichever of them is left."""
    key = await runner.bench.start(shell("env -i sleep 1000 & echo $!; setsid sleep 1000 & sleep 1000"))
    await runner.bench.phase(key, "Running")
    [unmarked] = await runner.logged(key)
    assert runner.process
    runner.process.send_signal(signal.SIGSTOP)
    for pid, one in processes().items():
        if one.parent == runner.process.pid:
            os.kill(pid, signal.SIGKILL)
    runner.process.kill()
    await runner.process.communicate()
    bench = await make_bench()
    assert not runner.marked()
    assert unmarked not in [pid for pid, one in processes().items() if one.state != "Z"]
    await bench.phase(key, "Failed")


async def test_a_pod_that_had_not_begun_runs_after_the_restart(runner: Runner, make_bench: MakeBench) -> None:
    await runner.kill()
    key = await runner.bench.start(shell("true"))
    await make_bench()
    await runner.bench.phase(key, "Succeeded")


async def test_a_pod_deleted_while_no_runner_was_there_is_removed_with_its_folder(
    runner: Runner, make_bench: MakeBench
) -> None:
    key = await runner.bench.start(shell("sleep 1000"))
    pod = await runner.bench.phase(key, "Running")
    await runner.kill()
    await runner.bench.delete(key)
    await make_bench()
    await runner.bench.gone(key)

    async def look() -> bool:
        return runner.bench.folder(pod).exists()

    await eventually(look, lambda there: not there, what="its folder is removed")


async def test_folders_of_pods_that_are_no_more_are_removed_at_the_start(runner: Runner, make_bench: MakeBench) -> None:
    key = await runner.bench.start(shell("true"))
    pod = await runner.bench.phase(key, "Succeeded")
    await runner.kill()
    await runner.bench.delete(key, grace_s=0)
    await runner.bench.gone(key)
    assert runner.bench.folder(pod).exists()
    await make_bench()
    assert not runner.bench.folder(pod).exists()


async def test_a_pod_that_ended_well_before_the_crash_stays_as_it_is(runner: Runner, make_bench: MakeBench) -> None:
    pod = await runner.bench.ended(shell("echo done"))
    await runner.kill()
    bench = await make_bench()
    assert await bench.log(pod.metadata.key) == "done\n"
    assert (await bench.phase(pod.metadata.key, "Succeeded", "Failed")).status["phase"] == "Succeeded"
