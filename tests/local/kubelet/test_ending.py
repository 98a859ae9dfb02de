"""Stopping pods: nothing that they started survives them."""

import asyncio
import os
import signal
from pathlib import Path

from holdfast.local.kubelet.processes import processes
from tests.contract.kinds import Document
from tests.control_plane.waiting import eventually
from tests.local.kubelet.bench import Bench, condition, python, shell, terminated

STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.1; done"
# Leaves the session, drops its environment and lets its parent die: only its descent tells whose it is.
RUNAWAY = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execve('/bin/sh', ['sh', '-c', 'echo $$; trap \"\" TERM HUP; while :; do sleep 0.1; done'], {})\n"
    "    os._exit(0)\n"
    "time.sleep(60)"
).replace("$$", "$$$$")


async def is_gone(pid: int) -> bool:
    return pid not in processes()


async def none_left(bench: Bench, pod: Document) -> None:
    async def look() -> list[int]:
        return bench.processes(pod)

    await eventually(look, lambda pids: not pids, what=f"no process of pod {pod.metadata.name}")


async def test_a_deleted_pod_gets_sigterm_and_is_removed_with_its_folder(bench: Bench) -> None:
    key = await bench.start(shell("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    pod = await bench.phase(key, "Running")
    await bench.logged(key, "up")
    assert bench.folder(pod).exists()
    await bench.delete(key)
    await bench.gone(key)
    await none_left(bench, pod)

    async def look() -> bool:
        return bench.folder(pod).exists()

    await eventually(look, lambda there: not there, what="the folder is removed")


async def test_a_script_that_ignores_sigterm_is_killed_when_its_time_is_over(bench: Bench) -> None:
    key = await bench.start(shell(STUBBORN), metadata={"finalizers": ["holdfast.dev/look"]})
    await bench.logged(key, "up")
    await bench.delete(key, grace_s=1)
    pod = await bench.phase(key, "Failed")
    assert (terminated(pod)["exitCode"], terminated(pod)["signal"]) == (137, 9)
    await bench.release(key)
    await bench.gone(key)


async def test_a_second_deletion_shortens_the_time(bench: Bench) -> None:
    key = await bench.start(shell(STUBBORN), terminationGracePeriodSeconds=3600)
    await bench.logged(key, "up")
    await bench.delete(key)
    await bench.until(key, lambda pod: pod.metadata.deletion_timestamp, "it is being deleted")
    await bench.delete(key, grace_s=1)
    await bench.gone(key)


async def test_a_second_deletion_never_lengthens_the_time(bench: Bench) -> None:
    key = await bench.start(shell(STUBBORN), terminationGracePeriodSeconds=3600)
    await bench.logged(key, "up")
    await bench.delete(key, grace_s=1)
    await bench.delete(key, grace_s=3600)
    await bench.delete(key)
    await bench.gone(key)


async def test_a_pod_deleted_without_waiting_is_ended_all_the_same(bench: Bench) -> None:
    key = await bench.start(shell(STUBBORN))
    pod = await bench.phase(key, "Running")
    await bench.delete(key, grace_s=0)
    await bench.gone(key)
    await none_left(bench, pod)


async def test_children_that_left_their_session_and_environment_end_with_the_container(bench: Bench) -> None:
    key = await bench.start(python(RUNAWAY))
    log = await bench.logged(key, "\n")
    pid = int(log.split()[0])
    assert pid in processes()
    await bench.delete(key)
    await bench.gone(key)
    assert await is_gone(pid)


async def test_what_a_finished_command_left_running_is_ended(bench: Bench) -> None:
    pod = await bench.ended(shell("sleep 1000 & setsid sleep 1000 & echo $!"))
    assert pod.status["phase"] == "Succeeded"
    assert await is_gone(int(await bench.log(pod.metadata.key)))
    await none_left(bench, pod)


async def test_a_killed_supervisor_takes_everything_with_it(bench: Bench) -> None:
    key = await bench.start(shell("setsid sleep 1000 & echo up; sleep 1000"))
    pod = await bench.phase(key, "Running")
    await bench.logged(key, "up")
    children = {pid for pid, found in processes().items() if found.parent == os.getpid()}
    [supervisor] = children.intersection(bench.processes(pod))
    os.kill(supervisor, signal.SIGKILL)
    pod = await bench.phase(key, "Failed")
    assert terminated(pod)["exitCode"] == 137
    assert terminated(pod)["message"] == "the supervisor of the process was killed"
    await none_left(bench, pod)


async def test_pre_stop_runs_before_sigterm(bench: Bench, tmp_path: Path) -> None:
    order = tmp_path / "order"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", f"echo hook >> {order}"]}}}
    main = shell(f"trap 'echo term >> {order}; exit 0' TERM; echo up; while :; do sleep 0.05; done", lifecycle=hook)
    key = await bench.start(main)
    await bench.logged(key, "up")
    await bench.delete(key)
    await bench.gone(key)
    assert order.read_text().split() == ["hook", "term"]


async def test_a_pre_stop_that_never_ends_uses_up_the_grace_period_and_no_more(bench: Bench) -> None:
    hook = {"preStop": {"exec": {"command": ["sleep", "1000"]}}}
    key = await bench.start(shell("sleep 1000", lifecycle=hook))
    pod = await bench.phase(key, "Running")
    await bench.delete(key, grace_s=1)
    await bench.gone(key)
    await none_left(bench, pod)


async def test_a_stopped_machine_ends_its_pods_as_disrupted(bench: Bench) -> None:
    key = await bench.start(shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    await bench.logged(key, "up")
    await bench.machine.stop()
    pod = await bench.phase(key, "Failed")
    assert pod.status["reason"] == "Terminated"
    assert condition(pod, "DisruptionTarget")["status"] == "True"
    await none_left(bench, pod)


async def test_many_short_pods_leave_no_descriptor_process_or_folder(bench: Bench) -> None:
    await bench.ended(shell("true"), name="warm-up")
    before = len(descriptors_in_use())
    pods = await asyncio.gather(*(bench.ended(shell("sleep 0.1"), name=f"p{n}") for n in range(40)))
    assert {pod.status["phase"] for pod in pods} == {"Succeeded"}
    for pod in pods:
        await bench.delete(pod.metadata.key)
        await bench.gone(pod.metadata.key)

    async def folders() -> int:
        return len(list((bench.data / "pods").iterdir()))

    await eventually(folders, lambda count: count == 1, what="one folder is left, of the pod that is still there")

    assert len(descriptors_in_use()) <= before
    assert not [pid for pid, found in processes().items() if found.parent == os.getpid() and found.state == "Z"]


def descriptors_in_use() -> list[str]:
    """All but connections: those to the API server are kept open for the next request."""
    connections = {line.split()[9] for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]}
    targets = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in targets if target.removeprefix("socket:[").removesuffix("]") not in connections]
