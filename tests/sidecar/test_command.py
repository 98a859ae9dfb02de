"""`holdfast restore`, as the kubelet runs it."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli import restore as command
from tests.sidecar.volumes import MODEL, checkpoint, tree

WITHIN_S = 60


def environment(root: Path, attempt: int, index: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "CHECKPOINT_DIR": str(root / f"attempt-{attempt}"),
        "RESUME_FROM": str(root / f"attempt-{attempt}.resume"),
        "HOLDFAST_INDEX": str(index),
    }


def run(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *options, "-m", "holdfast", "restore"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


@contextmanager
def running(environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "restore"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_says_in_one_line_what_there_is(tmp_path: Path) -> None:
    first = run(**environment(tmp_path, 0, 0))
    assert (first.returncode, first.stdout, first.stderr) == (0, "nothing to resume from\n", "")
    checkpoint(tmp_path, 0, "checkpoint-epoch-7")
    second = run(**environment(tmp_path, 1, 0))
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout == "resuming from checkpoint-epoch-7 of attempt 0\n"
    assert tree(tmp_path / "attempt-1.resume") == MODEL


def test_it_loads_nothing_that_is_not_pythons_or_its_own(tmp_path: Path) -> None:
    done = run("-X", "importtime", **environment(tmp_path, 0, 0))
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "holdfast" in loaded
    own = {"holdfast", "imported package", "site", "sitecustomize", "usercustomize", "encodings"}
    foreign = {name for name in loaded - own - sys.stdlib_module_names if not name.startswith("_")}
    assert foreign == set()


def test_workers_started_in_any_order_resume_from_the_same(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-7")
    with running(environment(tmp_path, 1, 1)) as other, running(environment(tmp_path, 1, 2)) as third:
        until((tmp_path / "attempt-1").is_dir, other)
        worker_0 = run(**environment(tmp_path, 1, 0))
        said = [process.communicate(timeout=WITHIN_S)[0] for process in (other, third)]
    assert said == [worker_0.stdout] * 2
    assert worker_0.stdout == "resuming from checkpoint-epoch-7 of attempt 0\n"


def test_sigterm_ends_a_worker_that_waits(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-7")
    with running(environment(tmp_path, 1, 1)) as process:
        until((tmp_path / "attempt-1").is_dir, process)
        process.terminate()
        out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out, err) == (128 + signal.SIGTERM, "", "")


def test_sigterm_ends_a_copy_and_the_next_one_is_whole(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, 0, "checkpoint-epoch-7") / "model.bin"
    with model.open("r+b") as file:
        file.truncate(40 << 30)  # takes no space here, and more time to copy than a test has
    with running(environment(tmp_path, 1, 0)) as process:
        until(lambda: bool(list((tmp_path / "attempt-1").glob(".*/model.bin"))), process)
        process.terminate()
        out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out, err) == (128 + signal.SIGTERM, "", "")
    assert not os.path.lexists(tmp_path / "attempt-1.resume")
    model.write_text("weights")
    assert run(**environment(tmp_path, 1, 0)).returncode == 0
    assert [path.name for path in (tmp_path / "attempt-1").iterdir()] == ["checkpoint-epoch-7"]
    assert tree(tmp_path / "attempt-1.resume") == MODEL


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"CHECKPOINT_DIR": ""}, "CHECKPOINT_DIR not set: the operator runs this command"),
        ({"RESUME_FROM": "", "HOLDFAST_INDEX": ""}, "RESUME_FROM, HOLDFAST_INDEX not set"),
        ({"HOLDFAST_INDEX": "one"}, "HOLDFAST_INDEX is 'one': it should be the number of the worker"),
        ({"HOLDFAST_INDEX": "-1"}, "HOLDFAST_INDEX is '-1'"),
        ({"HOLDFAST_INDEX": "٣"}, "HOLDFAST_INDEX is '٣'"),
        ({"CHECKPOINT_DIR": "/checkpoints"}, "CHECKPOINT_DIR is /checkpoints: its last part should be attempt-N"),
        (
            {"CHECKPOINT_DIR": "/dev/null/attempt-0"},
            "can't restore a checkpoint into /dev/null/attempt-0: Not a directory; a file is in the place of a folder",
        ),
    ],
)
def test_what_can_t_be_done_is_one_line_and_exit_code_1(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    done = run(**(environment(tmp_path, 0, 0) | changed))
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
    assert done.stderr.startswith(f"holdfast: {said}")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "the volume is full: remove old checkpoints, or give it more space"),
        (errno.EDQUOT, "the volume is full: remove old checkpoints, or give it more space"),
        (errno.EROFS, "the volume is read-only: mount one that can be written to"),
        (errno.EACCES, f"let user {os.getuid()} or group {os.getgid()} read and write the volume, or set podTemplate"),
        (errno.EEXIST, "a file is in the place of a folder: remove it"),
        (errno.EIO, ""),
    ],
)
def test_a_disk_that_does_not_play_along_is_named_with_what_to_do(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> str:
        raise OSError(number, os.strerror(number), "/checkpoints/attempt-1/x")

    monkeypatch.setattr(command, "restored", failing)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name, value in environment(tmp_path, 1, 0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        command.restore()
    said = str(ended.value.code)
    start = f"holdfast: can't restore a checkpoint into {tmp_path}/attempt-1: {os.strerror(number)}"
    assert said.startswith(f"{start} (/checkpoints/attempt-1/x)")
    assert said.partition("; ")[2].startswith(hint)
    assert bool(hint) == (";" in said)


def test_the_list_of_commands_has_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--help"], capture_output=True, text=True, timeout=WITHIN_S, check=True
    )
    assert "restore" in done.stdout
