"""What a whole run of pytest does with the control plane, seen from outside."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_plane.build import HERE
from tests.control_plane.test_component import is_alive, until
from tests.control_plane.test_server import is_listening

ROOT = HERE.parents[1]

# Tells which processes and ports the control plane has, and then never ends.
ENDLESS = """
import time
from pathlib import Path

def test_endless(control_plane):
    note = Path("running.new")
    pids = [component.pid for component in control_plane.components]
    note.write_text(" ".join(map(str, [*pids, *control_plane.ports])))
    note.rename("running")
    time.sleep(600)
"""

FAILING = """
def test_first(control_plane):
    control_plane.kubectl("get", "nodes")
    with control_plane.kwok.log.open("a") as log:
        log.write("said before the test began\\n")

def test_failing(control_plane):
    with control_plane.kwok.log.open("a") as log:
        log.write("said during the test\\n")
    assert False

def test_failing_without_it():
    assert False
"""


def pytest_command(test: Path) -> list[str]:
    """Runs one file with the project's settings and fixtures, but apart from its tests."""
    settings = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={test.parent}"]
    return [sys.executable, "-m", "pytest", *settings, f"--basetemp={test.parent / 'tmp'}", str(test)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def run(folder: Path, source: str, **more: str) -> subprocess.CompletedProcess[str]:
    test = folder / "test_inner.py"
    test.write_text(source)
    command = pytest_command(test)
    return subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, text=True, check=False, timeout=240
    )


def test_a_killed_run_leaves_no_process_and_no_listening_port(tmp_path: Path) -> None:
    test = tmp_path / "test_inner.py"
    test.write_text(ENDLESS)
    with subprocess.Popen(
        pytest_command(test), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True
    ) as running:
        note = tmp_path / "running"
        until(lambda: note.exists() or running.poll() is not None, what="the control plane running", within_s=180)
        numbers = [int(number) for number in note.read_text().split()]
        pids, ports = numbers[:5], numbers[5:]
        assert all(is_alive(pid) for pid in pids)
        assert all(is_listening(port) for port in ports)
        running.send_signal(signal.SIGKILL)
    until(lambda: not any(is_alive(pid) for pid in pids), what="no server left")
    # The threads of a killed process, and with them its sockets, go a moment after it.
    until(lambda: not any(is_listening(port) for port in ports), what="no port left open")


def test_a_failed_test_shows_what_the_servers_logged_since_it_began(tmp_path: Path) -> None:
    done = run(tmp_path, FAILING)
    assert "2 failed, 1 passed" in done.stdout
    with_it, without_it = done.stdout.split("test_failing_without_it")[:2]
    for server in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"):
        assert f"log of {server}" in with_it
        assert f"log of {server}" not in without_it
    assert "said during the test" in with_it
    assert "said before the test began" not in done.stdout


def test_without_the_binaries_a_test_fails_with_the_command_that_builds_them(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_inner(control_plane): pass", HOLDFAST_CACHE=str(tmp_path / "empty"))
    assert done.returncode == 1
    assert "the control plane is not built (etcd, kube-apiserver," in done.stdout
    assert "run `make control-plane`" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_control_plane_run_by_hand_ends_on_a_signal_and_removes_its_files(ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.control_plane"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        export = next(line for line in running.stdout if "export" in line)
        running.send_signal(ending)
    found = re.search(r"KUBECONFIG=(\S+) PATH=(\S+):", export)
    assert found, "the command said where its kubeconfig is"
    assert running.returncode == 0
    assert not Path(found[1]).parent.exists()
