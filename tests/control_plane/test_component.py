"""A server process ends when told to, and never outlives the tests."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.control_plane.component import Component, ComponentFailed, spawn
from tests.control_plane.ports import free_ports
from tests.control_plane.probe import answers

ROOT = Path(__file__).parents[2]

# Starts a child of its own, notes both process ids, and lives on through SIGTERM.
STUBBORN = """
import os, pathlib, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
note = pathlib.Path("pids.new")
note.write_text(f"{os.getpid()} {child.pid}")
note.rename("pids")
child.wait()
"""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Component]:
    """A web server on a free port."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "http.server", "--bind=127.0.0.1", str(port)]
    component = Component("web", command, log=tmp_path / "web.log", ready=lambda: answers(port, "/"))
    yield component
    component.kill()


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[Component]:
    pids = tmp_path / "pids"
    component = Component("stubborn", [sys.executable, "-c", STUBBORN], log=tmp_path / "log", ready=pids.exists)
    yield component
    component.kill()


def until(condition: Callable[[], bool], *, what: str, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that has ended and is not yet collected does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_started_server_answers_and_a_stopped_one_does_not(web: Component) -> None:
    web.start()
    pid = web.pid
    assert pid is not None
    assert is_alive(pid)
    assert "GET / HTTP" in web.tail()
    web.stop()
    assert not is_alive(pid)
    with pytest.raises(ComponentFailed, match="web ended before it was ready"):
        web.await_ready()


def test_a_server_starts_again_on_its_port_after_a_stop_and_after_a_kill(web: Component) -> None:
    web.start()
    web.stop()
    web.start()
    web.kill()
    web.start()
    assert web.pid is not None


def test_a_running_server_is_not_started_twice(web: Component) -> None:
    web.start()
    with pytest.raises(ComponentFailed, match=f"web runs already, with process id {web.pid}: stop it first"):
        web.start()


def test_a_server_that_was_never_started_can_be_stopped_and_killed(web: Component) -> None:
    web.stop()
    web.kill()
    assert web.pid is None
    assert "was never written" in web.tail()


def test_a_server_that_dies_says_so_with_the_end_of_its_log(tmp_path: Path) -> None:
    script = "import sys; [print('line', n) for n in range(100)]; sys.exit(3)"
    component = Component("frail", [sys.executable, "-c", script], log=tmp_path / "log", ready=lambda: False)
    with pytest.raises(ComponentFailed) as failed:
        component.start()
    assert "frail ended before it was ready (exit code 3)" in str(failed.value)
    assert str(failed.value).endswith("line 98\nline 99")
    assert "line 1\n" not in str(failed.value)


def test_a_server_that_has_ended_is_not_ready_though_another_answers_on_its_port(
    web: Component, tmp_path: Path
) -> None:
    web.start()
    second = Component("second", web.command, log=tmp_path / "second.log", ready=lambda: True)
    second.launch()
    until(lambda: second.pid is None, what="the second server gives up")
    with pytest.raises(ComponentFailed, match="Address already in use"):
        second.await_ready()


def test_a_server_that_is_not_ready_in_time_says_so(stubborn: Component) -> None:
    stubborn.launch()
    never = Component("never", stubborn.command, log=stubborn.log, ready=lambda: False)
    never.launch()
    with pytest.raises(ComponentFailed, match=r"never was not ready within 0 s"):
        never.await_ready(within_s=0.1)
    never.kill()


def test_a_server_that_ignores_the_request_to_end_is_killed_with_its_children(
    stubborn: Component, tmp_path: Path
) -> None:
    stubborn.start()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(is_alive(pid) for pid in pids)
    stubborn.stop(within_s=0.2)
    until(lambda: not any(is_alive(pid) for pid in pids), what="both processes gone")


def test_a_log_is_read_from_where_the_test_began(web: Component) -> None:
    web.start()
    web.log.write_text("before\n")
    began = web.log_size
    with web.log.open("a") as log:
        log.write("after\n")
    assert web.tail(since=began).splitlines()[1:] == ["after"]
    assert web.tail().splitlines()[1:] == ["before", "after"]


def test_a_server_outlives_the_thread_that_started_it(web: Component) -> None:
    starter = Thread(target=web.start)
    starter.start()
    starter.join()
    web.await_ready()
    assert web.pid is not None


def test_a_server_dies_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    script = f"""
        import os, sys, time
        from pathlib import Path
        from tests.control_plane.component import spawn
        child = spawn([sys.executable, "-c", "import time; time.sleep(600)"], log=Path({str(tmp_path / "log")!r}))
        print(child.pid, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        assert is_alive(child)
        starter.kill()
    until(lambda: not is_alive(child), what="the server gone")


def test_a_command_whose_starter_is_gone_before_it_begins_does_not_begin(tmp_path: Path) -> None:
    launcher = Path(__file__).with_name("launch.py")
    orphan = [sys.executable, "-I", "-S", str(launcher), "1", sys.executable, "-c", "print('began')"]
    done = subprocess.run(orphan, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "is gone" in done.stderr
    assert "began" not in done.stdout


def test_a_spawned_command_leads_a_process_group_of_its_own(tmp_path: Path) -> None:
    process = spawn([sys.executable, "-c", "import time; time.sleep(600)"], log=tmp_path / "log")
    assert os.getpgid(process.pid) == process.pid
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_free_ports_are_distinct_and_below_those_that_clients_get() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
