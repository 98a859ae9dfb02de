"""What a training leaves for people and programs."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.trainer.report import Report, Score
from holdfast.trainer.settings import settings
from tests.trainer.workers import lines


def report(
    folder: Path, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic, **variables: str
) -> Report:
    environ = {"EPOCHS": "5", "PROGRESS_FILE": str(folder / "progress"), "TERMINATION_LOG": str(folder / "last")}
    return Report(settings({**environ, **variables}), quiet=quiet, clock=clock)


def test_an_epoch_is_a_line_for_people_and_one_for_programs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report(tmp_path).epoch(2, Score(0.5, 0.875), train_loss=0.25)
    assert capfd.readouterr().out == "epoch 2/5  loss 0.5000  accuracy 0.8750  train loss 0.2500\n"
    assert lines(tmp_path / "progress") == [
        {"epoch": 2, "epochs": 5, "loss": 0.5, "accuracy": 0.875, "trainLoss": 0.25}
    ]


def test_steps_of_a_long_epoch_are_lines_for_programs_once_a_second(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 0.9, 1.0, 1.0, 1.5])
    steps = report(tmp_path, clock=lambda: next(times), BATCH_SIZE="10", GRADIENT_ACCUMULATION_STEPS="2")
    for samples in (20, 40, 60):
        steps.step(1, samples, 90)
    assert lines(tmp_path / "progress") == [{"epoch": 1, "epochs": 5, "step": 2, "steps": 5}]
    assert capfd.readouterr().out == ""


def test_lines_are_added_after_those_of_an_earlier_attempt(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text('{"epoch": 1}\n')
    report(tmp_path).epoch(2, Score(0.5, 0.8))
    assert [line["epoch"] for line in lines(tmp_path / "progress")] == [1, 2]


def test_the_end_is_a_summary_on_the_last_line_and_in_the_termination_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report(tmp_path).finish(5, 2.5, Score(0.125, 0.96))
    expected = {"epochs": 5, "lossBefore": 2.5, "lossAfter": 0.125, "accuracy": 0.96}
    assert json.loads(capfd.readouterr().out) == expected
    assert json.loads((tmp_path / "last").read_text()) == expected


def test_a_quiet_worker_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quiet = report(tmp_path, quiet=True)
    quiet.log("hello")
    quiet.epoch(1, Score(0.5, 0.5))
    quiet.finish(1, 1.0, Score(0.5, 0.5))
    assert capfd.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_can_t_be_written_is_said_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = report(tmp_path / "gone")
    gone.epoch(1, Score(0.5, 0.5))
    gone.finish(1, 1.0, Score(0.5, 0.5))
    said = capfd.readouterr()
    assert "epoch 1/5" in said.out
    assert "can't write progress to" in said.err
    assert "can't leave the summary in" in said.err
