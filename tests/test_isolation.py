"""A whole run of pytest, seen from outside: tests that never end, lost processes, signals that the caller ignores."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.control_plane.test_component import is_alive, until
from tests.control_plane.test_fixtures import environment, pytest_command

SLEEPING = """
import asyncio
import time

async def test_coroutine():
    await asyncio.sleep(600)

def test_function():
    time.sleep(600)

async def test_after_them():
    await asyncio.sleep(0)
"""

# Shuts its eyes to cancellation and to SIGALRM.
STUBBORN = """
import signal
import time
from pathlib import Path

from tests.control_plane.component import spawn

def test_stubborn(tmp_path):
    Path("pid").write_text(str(spawn(["/bin/sleep", "600"], log=tmp_path / "log").pid))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(600)

def test_after_it():
    pass
"""

CHILD = """
import signal
import subprocess
import sys

def test_child():
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"True\\n"
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGHUP)
"""


def run(folder: Path, source: str, *options: str, ignoring: bool = False) -> subprocess.CompletedProcess[str]:
    test = folder / "test_inner.py"
    test.write_text(source)
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP) if ignoring]
    try:
        return subprocess.run(
            [*pytest_command(test), *options],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGHUP), before, strict=False):
            signal.signal(number, handler)


def test_tests_that_never_end_fail_alone(tmp_path: Path) -> None:
    done = run(tmp_path, SLEEPING, "--timeout=16")
    assert "2 failed, 1 passed" in done.stdout
    assert "Failed: The test was cancelled after 12 s" in done.stdout
    assert "Failed: Timeout (>16.0s)" in done.stdout


def test_a_lost_process_ends_the_run_with_its_report_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import tests.isolation\ntests.isolation.LAST_RESORT_S = 1.0\n")
    done = run(tmp_path, STUBBORN, "--timeout=1", "-n", "2", "--dist", "loadfile")
    assert done.returncode == 1
    assert "in test_stubborn" in done.stderr  # where it was
    assert "FAILED test_inner.py::test_stubborn" in done.stdout
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_alive(pid), what="the process that the test had started ended")


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_children_of_tests_have_default_signals_where_the_caller_ignores_them(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run(tmp_path, CHILD, *options, ignoring=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
