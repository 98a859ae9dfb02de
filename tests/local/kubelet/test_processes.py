"""One command and its supervisor; and what is known of processes."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.local.kubelet import processes as journal
from holdfast.local.kubelet import processes as orphans
from holdfast.local.kubelet.container import GracePeriod, background_task, wait_first
from holdfast.local.kubelet.processes import (
    Exit,
    Launch,
    Process,
    ProcessId,
    StartError,
    boot_id,
    environment,
    identify,
    processes,
    stat,
)
from holdfast.local.kubelet.supervisor import MessageBuffer, encode
from tests.control_plane.waiting import eventually

MARK = {"HOLDFAST_MACHINE": "test-processes"}


async def start(folder: Path, script: str, noted: list[ProcessId] | None = None, **more: Any) -> Process:
    launch = Launch(
        argv=("sh", "-c", script), env={"PATH": os.environ["PATH"], **MARK}, cwd=folder, log=folder / "0.log", **more
    )
    return await Process.start(launch, marker=MARK, record=(noted if noted is not None else []).append)


async def test_both_the_supervisor_and_the_command_are_noted_before_the_command_is_waited_for(tmp_path: Path) -> None:
    noted: list[ProcessId] = []
    process = await start(tmp_path, "sleep 1000", noted)
    supervisor, command = noted
    assert supervisor.is_alive()
    assert stat(command.pid).parent == supervisor.pid  # type: ignore[union-attr]  # it is there
    await process.close()
    assert not supervisor.is_alive()
    assert not command.is_alive()


async def test_closing_ends_a_command_that_ignores_everything(tmp_path: Path) -> None:
    noted: list[ProcessId] = []
    process = await start(tmp_path, "trap '' TERM INT HUP; while :; do sleep 0.1; done", noted)
    await process.close()
    assert not [one for one in noted if one.is_alive()]


async def test_a_signal_reaches_the_whole_group(tmp_path: Path) -> None:
    process = await start(tmp_path, "sleep 1000; echo after")
    process.signal(signal.SIGTERM)
    assert await process.wait() == Exit(143, 15)
    await process.close()


async def test_a_command_starts_with_default_signals_whatever_its_caller_ignores(tmp_path: Path) -> None:
    show = "import signal; print([int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN])"
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)
    }
    try:
        process = await start(tmp_path, f'exec {sys.executable} -c "{show}"')
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (await process.wait()).code == 0
    await process.close()
    ignored_by_python = [int(signal.SIGPIPE), int(signal.SIGXFSZ)]
    assert (tmp_path / "0.log").read_text() == f"{ignored_by_python}\n"


async def test_a_supervisor_that_does_not_answer_is_ended_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.local.kubelet.processes.END_TIMEOUT_S", 0.1)
    noted: list[ProcessId] = []
    process = await start(tmp_path, "exec sleep 1000", noted)
    noted[0].send(signal.SIGSTOP)
    await process.force()
    assert (await process.wait()).message == "the supervisor of the process was killed"
    await process.close()
    await eventually(lambda: _alive(noted), lambda alive: not alive, what="the command died with its supervisor")


async def _alive(noted: list[ProcessId]) -> list[ProcessId]:
    return [one for one in noted if one.is_alive()]


async def test_a_second_command_runs_beside_the_first_and_is_ended_when_nobody_waits(tmp_path: Path) -> None:
    process = await start(tmp_path, "sleep 1000")
    assert await process.exec(["sh", "-c", "exit 5"]) == 5
    assert await process.exec(["no-such-program"]) == 126
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.exec(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 1000"]), 1.5)
    pid = int((tmp_path / "pid").read_text())
    await eventually(lambda: _there(pid), lambda there: not there, what="the second command is ended")
    await process.close()
    assert await process.exec(["true"]) == 137


async def _there(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.state != "Z"


async def test_a_pipe_that_closes_ends_a_command_as_it_would_anywhere(tmp_path: Path) -> None:
    """Python ignores SIGPIPE; what it starts must not inherit that."""
    process = await start(tmp_path, "yes | head -n 1; echo done")
    assert (await process.wait()).code == 0
    assert (tmp_path / "0.log").read_text() == "y\ndone\n"
    await process.close()


async def test_a_value_that_no_environment_can_hold_is_a_start_error(tmp_path: Path) -> None:
    launch = Launch(argv=("true",), env={"X": "a\0b"}, cwd=tmp_path, log=tmp_path / "0.log")
    with pytest.raises(StartError, match="can't run true: embedded null byte"):
        await Process.start(launch, marker=MARK, record=lambda _: None)


async def test_a_log_that_can_not_be_opened_is_a_start_error(tmp_path: Path) -> None:
    (tmp_path / "0.log").mkdir()
    with pytest.raises(StartError, match="Is a directory"):
        await start(tmp_path, "true")


async def test_values_that_are_no_text_pass_unharmed(tmp_path: Path) -> None:
    launch = Launch(
        argv=("sh", "-c", 'printf %s "$X"'),
        env={"X": os.fsdecode(b"\xff\xfe"), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        log=tmp_path / "0.log",
    )
    process = await Process.start(launch, marker=MARK, record=lambda _: None)
    await process.wait()
    await process.close()
    assert (tmp_path / "0.log").read_bytes() == b"\xff\xfe"


def test_messages_arrive_whole_however_the_stream_is_cut() -> None:
    stream = encode({"do": "signal", "number": 15}) + encode({"do": "kill"})
    inbox = MessageBuffer()
    heard = [message for n in range(len(stream)) for message in inbox.feed(stream[n : n + 1])]
    assert heard == [{"do": "signal", "number": 15}, {"do": "kill"}]


def test_a_process_is_known_by_its_start_not_its_number() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert me.is_alive()
    assert not ProcessId(me.pid, me.start + 1, me.boot).is_alive()
    assert not ProcessId(me.pid, me.start, "another boot").is_alive()


async def test_a_stranger_that_has_been_given_a_number_is_not_signalled() -> None:
    child = await asyncio.create_subprocess_exec("sleep", "1000")
    found = identify(child.pid)
    assert found
    ProcessId(found.pid, found.start - 1, found.boot).send(signal.SIGKILL)
    assert found.is_alive()
    found.send(signal.SIGKILL)
    assert await child.wait() == -9
    found.send(signal.SIGKILL)


def test_a_name_with_parentheses_does_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "1000"]) as child:
        found = stat(child.pid)
        child.kill()
    assert found is not None
    assert found.parent == os.getpid()


def test_a_process_that_is_not_there_has_no_facts() -> None:
    assert stat(2**22 + 1) is None
    assert identify(2**22 + 1) is None
    assert environment(2**22 + 1) == {}


def test_the_journal_is_read_back_without_a_line_that_was_cut(tmp_path: Path) -> None:
    assert not journal.started(tmp_path)
    assert journal.read_processes(tmp_path) == []
    first_, second = ProcessId(1, 2, "b"), ProcessId(3, 4, "b")
    journal.record_process(tmp_path, first_)
    journal.record_process(tmp_path, second)
    with (tmp_path / journal.PROCESS_JOURNAL).open("ab") as file:
        file.write(b'{"pid": 5')
    assert journal.started(tmp_path)
    assert journal.read_processes(tmp_path) == [first_, second]


async def test_orphans_are_found_by_record_session_mark_and_descent() -> None:
    code = (
        "import subprocess, sys, time\n"
        "quiet = {'stdout': subprocess.DEVNULL, 'env': {}}\n"
        "sleep = ['sleep', '1000']\n"
        "marked = subprocess.Popen(sleep, **(quiet | {'env': {'MARK': sys.argv[1]}}), start_new_session=True)\n"
        "kept = subprocess.Popen(sleep, **quiet)\n"
        "below = subprocess.Popen(sleep, **quiet, start_new_session=True)\n"
        "print(marked.pid, kept.pid, below.pid, flush=True)\n"
        "time.sleep(1000)"
    )
    mark = f"orphans-of-{os.getpid()}"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, mark, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert child.stdout
    marked, kept, below = map(int, (await child.stdout.readline()).split())
    leader = identify(child.pid)
    assert leader

    def found(mark: str, *noted: ProcessId) -> set[int]:
        return {one.pid for one in orphans.find({"MARK": mark}, noted)}

    try:
        assert found(mark) == {marked}
        assert found("nobody", leader) == {child.pid, marked, kept, below}
        leader.send(signal.SIGKILL)
        await child.communicate()
        assert found("nobody", leader) == {kept}
    finally:
        for pid in (marked, kept, below):
            os.kill(pid, signal.SIGKILL)


async def test_a_record_of_another_boot_or_of_a_number_given_out_again_finds_nobody() -> None:
    child = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    found = identify(child.pid)
    assert found
    for stale in (ProcessId(found.pid, found.start, "another boot"), ProcessId(found.pid, found.start - 1, found.boot)):
        assert orphans.find({"MARK": "nobody"}, [stale]) == []
    child.kill()
    await child.wait()


def test_a_runner_never_ends_itself_or_what_started_it() -> None:
    me = identify(os.getpid())
    parent = identify(os.getppid())
    assert me
    assert parent
    found = {one.pid for one in orphans.find({"MARK": "nobody"}, [me, parent])}
    assert not found & {me.pid, parent.pid}


async def test_a_grace_period_becomes_shorter_and_never_longer() -> None:
    grace = GracePeriod()
    assert not grace.began
    grace.begin(1000)
    over = asyncio.create_task(grace.wait_expired())
    await asyncio.sleep(0)
    grace.begin(2000)
    assert grace.left is not None
    assert grace.left <= 1000
    grace.begin(0)
    await over


async def test_the_first_that_is_done_ends_the_others_but_not_a_callers_future() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended = []

    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("long")

    await wait_first(future, long(), asyncio.sleep(0))
    assert ended == ["long"]
    assert not future.done()
    future.cancel()


async def test_an_error_beside_a_block_is_raised_at_its_end() -> None:
    async def fails() -> None:
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        async with background_task(fails()):
            await asyncio.sleep(0)


def test_all_processes_are_seen() -> None:
    assert {os.getpid(), os.getppid()} <= processes().keys()
    assert boot_id()
