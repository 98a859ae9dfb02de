"""A credential that a test prints, or that a process is given as an argument, is found."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.leaks import ARCHIVE_MARK, PASSWORD, command_line_leaks, file_leaks, leaks

pytest_plugins = ["pytester"]


def test_what_must_not_be_shown_is_found_in_texts_and_files(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"fine\nAuthorization: {PASSWORD}\n")
    assert leaks(["fine", f"a {ARCHIVE_MARK} b\nfine"]) == [f"a {ARCHIVE_MARK} b"]
    assert file_leaks([tmp_path / "log", tmp_path / "none"]) == [f"Authorization: {PASSWORD}"]


def test_a_password_on_a_command_line_is_found() -> None:
    assert command_line_leaks() == []
    program = [sys.executable, "-c", "print(flush=True); input()", "holdfast", PASSWORD]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # a process that begins has no command line yet
            assert len(command_line_leaks()) == 1
        finally:
            process.kill()


def test_a_test_that_prints_a_password_fails(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    pytester.makepyfile(f"def test_prints():\n    print('{PASSWORD}')\n\ndef test_does_not():\n    print('fine')\n")
    done = pytester.runpytest_inprocess(
        "-p", "tests.leaks", "-p", "no:xdist", "-p", "no:asyncio", "--rootdir", str(pytester.path)
    )
    capsys.readouterr()  # it shows the password, and is not to fail this test
    done.assert_outcomes(passed=1, failed=1)
