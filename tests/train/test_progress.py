"""Lines in PROGRESS_FILE: what is taken, what is left out, and that nothing of it ever ends a training."""

import errno
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast.train.progress import MAX_NUMBERS, ProgressFile


class Strange:
    def __float__(self) -> float:
        raise RuntimeError("the device is gone")

    def __str__(self) -> str:
        return "strange"  # the name of its test


@pytest.fixture
def progress(tmp_path: Path) -> ProgressFile:
    return ProgressFile(tmp_path / "progress")


def test_each_line_is_an_object_and_nothing_is_overwritten(progress: ProgressFile, tmp_path: Path) -> None:
    (tmp_path / "progress").write_text('{"epoch": 1}\n')
    progress.write({"epoch": 2, "loss": 0.5})
    progress.write({"epoch": 3})
    written = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert written == [{"epoch": 1}, {"epoch": 2, "loss": 0.5}, {"epoch": 3}]


def test_without_a_file_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressFile(None).write({"epoch": 1})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (0.25, 0.25),
        (3, 3),
        (True, 1),
        (-0.0, 0.0),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7.0),
        (np.array(0.125), 0.125),
        (np.array([[2.0]]).max(), 2.0),
        (1e300, 1e300),
    ],
)
def test_a_number_of_any_kind_is_taken(progress: ProgressFile, value: object, taken: float) -> None:
    number = progress.numbers({"loss": value})["loss"]
    assert number == taken
    assert type(number) in (int, float), "as JSON writes numbers"


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400, 2**53 + 1, "0.5", b"1", None, [1, 2], Strange(), 1j],
    ids=str,
)
def test_what_is_no_finite_number_is_left_out_with_one_warning(
    progress: ProgressFile, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        assert progress.numbers({"loss": value, "accuracy": 0.5}) == {"accuracy": 0.5}
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("holdfast: loss=")
    assert "is not reported" in warning
    assert len(warning) < 300


@pytest.mark.parametrize("name", ["", "x" * 64, "with space", "line\nbreak", "é", "1st"])
def test_a_name_that_no_metric_can_have_is_left_out(progress: ProgressFile, name: str) -> None:
    assert progress.numbers({name: 1.0, "val/loss": 2.0}) == {"val/loss": 2.0}


def test_no_more_numbers_are_taken_than_a_status_can_hold(progress: ProgressFile) -> None:
    assert len(progress.numbers({f"loss_{number}": 1.0 for number in range(1000)})) == MAX_NUMBERS


def test_a_folder_that_is_not_there_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressFile(tmp_path / "nowhere" / "progress")
    for epoch in range(3):
        progress.write({"epoch": epoch})
    (warning,) = capsys.readouterr().err.splitlines()
    reason = f"can't write progress to {tmp_path}/nowhere/progress: No such file or directory"
    assert warning == f"holdfast: {reason}; the training goes on"


def test_a_full_volume_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressFile(Path("/dev/full")).write({"epoch": 1})
    assert "No space left on device" in capsys.readouterr().err


def test_a_pipe_that_nobody_reads_does_not_hold_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "progress")
    ProgressFile(tmp_path / "progress").write({"epoch": 1})
    assert "can't write progress" in capsys.readouterr().err


def test_the_line_after_a_torn_one_is_whole(
    progress: ProgressFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        write = os.write
        full.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:5]))
        progress.write({"epoch": 1})
    progress.write({"epoch": 2})
    progress.write({"epoch": 3})
    assert (tmp_path / "progress").read_text() == '{"epo\n{"epoch": 2}\n{"epoch": 3}\n'


def test_a_closed_stderr_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, (tmp_path / "closed").open("w")):
        if stream is not None:
            stream.close()
        monkeypatch.setattr(sys, "stderr", stream)
        assert ProgressFile(None).numbers({"loss": math.nan}) == {}


def test_a_file_that_turns_read_only_is_no_error(
    progress: ProgressFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    progress.write({"epoch": 1})
    monkeypatch.undo()
    assert "Read-only file system; the training goes on" in capsys.readouterr().err
