"""A script's loops: where they go on, what they report, and when it is time to save."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import train
from holdfast.train.environment import TrainError
from holdfast.train.run import Run
from tests.train.runs import Clock, lines, models, resume_from, save, worker


class Stream:
    """As a loader of a stream: it has a length that can't be asked for."""

    def __len__(self) -> int:
        raise TypeError("a stream has no length")

    def __iter__(self) -> Iterator[str]:
        yield from "abc"


def trained(run: Run, epochs: int, batches: int) -> list[tuple[int, int]]:
    return [(epoch, batch) for epoch in run.epochs(epochs) for batch in run.batches(range(batches))]


# Where a training goes on


def test_a_new_training_begins_with_epoch_1(tmp_path: Path) -> None:
    run = worker(tmp_path)
    assert run.resumed is None
    assert list(run.epochs(3)) == [1, 2, 3]


def test_a_resumed_one_goes_on_after_the_epoch_that_was_saved(tmp_path: Path) -> None:
    save(worker(tmp_path), "m", epoch=3)
    resume_from(tmp_path, "checkpoint-epoch-3")
    run = worker(tmp_path, HOLDFAST_ATTEMPT="1")
    assert run.resumed == tmp_path / "attempt-0" / "checkpoint-epoch-3"
    assert list(run.epochs(5)) == [4, 5]


def test_a_checkpoint_without_a_marker_is_resumed_from_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "attempt-0" / "checkpoint-epoch-7").mkdir(parents=True)
    resume_from(tmp_path, "checkpoint-epoch-7")
    assert list(worker(tmp_path).epochs(9)) == [8, 9]


def test_a_link_that_leads_nowhere_is_nothing_to_resume_from(tmp_path: Path) -> None:
    resume_from(tmp_path, "checkpoint-epoch-7")
    assert worker(tmp_path).resumed is None


def test_a_training_that_was_done_trains_nothing(tmp_path: Path) -> None:
    save(worker(tmp_path), "m", epoch=3)
    resume_from(tmp_path, "checkpoint-epoch-3")
    assert list(worker(tmp_path).epochs(3)) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(epochs=st.integers(1, 4), batches=st.integers(1, 5), data=st.data())
def test_wherever_it_was_saved_every_batch_is_trained_once(
    tmp_path_factory: pytest.TempPathFactory, epochs: int, batches: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    everything = [(epoch, batch) for epoch in range(1, epochs + 1) for batch in range(batches)]
    stop_after = data.draw(st.sampled_from(everything))
    before = []
    run = worker(folder)
    for epoch in run.epochs(epochs):
        for batch in run.batches(range(batches)):
            before.append((epoch, batch))
            if before[-1] == stop_after:
                save(run, "m")
                break
        if before[-1] == stop_after:
            break
    resume_from(folder, f"checkpoint-epoch-{epoch}")
    assert before + trained(worker(folder), epochs, batches) == everything


def test_only_the_epoch_that_was_broken_off_is_shortened(tmp_path: Path) -> None:
    run = worker(tmp_path)
    for _ in run.epochs(1):
        for batch in run.batches(range(9)):
            if batch == 6:
                save(run, "m")
                break
    resume_from(tmp_path, "checkpoint-epoch-1")
    resumed = worker(tmp_path)
    assert list(resumed.epochs(2)) == [1, 2], "a script that has changed, without batches in its first epoch"
    assert list(resumed.batches(range(3))) == [0, 1, 2]


def test_a_launcher_s_restart_goes_on_from_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    first = worker(tmp_path)
    save(first, "m", epoch=1)
    resume_from(tmp_path, "checkpoint-epoch-1")
    save(first, "m", epoch=10)
    save(first, "m", epoch=9)
    (tmp_path / "attempt-0" / "checkpoint-epoch-11").mkdir()  # by whom, nobody knows
    with worker(tmp_path, rank=1, world=2, shards=True).checkpoint(12) as folder:
        (folder / "one of two").touch()
    assert list(worker(tmp_path).epochs(3)) == [2, 3], "the first start of an attempt"
    assert list(worker(tmp_path, TORCHELASTIC_RESTART_COUNT="1").epochs(12)) == [11, 12]


def test_a_launcher_s_restart_before_the_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    assert worker(tmp_path, TORCHELASTIC_RESTART_COUNT="1").resumed is None


# How many epochs


@pytest.mark.parametrize(
    ("variable", "total", "default", "expected"),
    [("4", 2, 3, 2), ("4", None, 3, 4), ("", None, 3, 3), ("0", None, 3, 0)],
)
def test_the_script_s_number_counts_then_the_job_s_then_the_default(
    tmp_path: Path, variable: str, total: int | None, default: int, expected: int
) -> None:
    run = worker(tmp_path, EPOCHS=variable)
    assert len(list(run.epochs(total, default=default))) == expected


def test_a_training_without_a_number_of_epochs_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"how many epochs\? write run.epochs\(10\)"):
        next(worker(tmp_path).epochs())


def test_the_position_can_be_asked_for(tmp_path: Path) -> None:
    run = worker(tmp_path, rank=1, world=2, HOLDFAST_ATTEMPT="3")
    assert (run.rank, run.world, run.attempt, run.epoch, run.step) == (1, 2, 3, 0, None)
    for _ in run.epochs(1):
        for _ in run.batches(Stream()):
            pass
        assert (run.epoch, run.step) == (1, None)
        assert [run.step for _ in run.batches("ab")] == [1, 2]


# What is reported


def test_an_epoch_s_numbers_are_one_line(tmp_path: Path) -> None:
    run = worker(tmp_path)
    for epoch in run.epochs(2):
        run.report(loss=1 / epoch, accuracy=np.float32(0.5))
    assert lines(tmp_path) == [
        {"epoch": 1, "epochs": 2, "loss": 1.0, "accuracy": 0.5},
        {"epoch": 2, "epochs": 2, "loss": 0.5, "accuracy": 0.5},
    ]


def test_an_epoch_without_a_report_is_reported_at_its_end(tmp_path: Path) -> None:
    list(worker(tmp_path).epochs(2))
    assert lines(tmp_path) == [{"epoch": 1, "epochs": 2}, {"epoch": 2, "epochs": 2}]


def test_a_second_report_of_an_epoch_adds_to_the_first(tmp_path: Path) -> None:
    run = worker(tmp_path)
    for _ in run.epochs(1):
        run.report(loss=1.0)
        run.report(accuracy=0.5)
    assert lines(tmp_path)[-1] == {"epoch": 1, "epochs": 1, "loss": 1.0, "accuracy": 0.5}


def test_a_long_epoch_whose_steps_report_nothing_still_shows_them(tmp_path: Path) -> None:
    clock = Clock()
    run = worker(tmp_path, clock=clock)
    for _ in run.epochs(1):
        for _ in run.batches(range(4)):
            clock.now_s += 0.6
    assert lines(tmp_path) == [{"epoch": 1, "epochs": 1, "step": 2, "steps": 4}, {"epoch": 1, "epochs": 1}]


def test_steps_are_reported_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    clock = Clock()
    run = worker(tmp_path, clock=clock)
    for _ in run.epochs(1):
        for batch in run.batches(range(20)):
            clock.now_s += 0.125
            run.report(loss=float(batch))
    steps = [line["step"] for line in lines(tmp_path)[:-1]]
    assert steps == [8, 16, 20]
    assert lines(tmp_path)[0] == {"epoch": 1, "epochs": 1, "step": 8, "steps": 20, "loss": 7.0}
    assert lines(tmp_path)[-1] == {"epoch": 1, "epochs": 1, "loss": 19.0}, "the epoch is done: no step"


def test_a_number_that_is_no_longer_one_does_not_keep_its_old_value(tmp_path: Path) -> None:
    run = worker(tmp_path)
    for _ in run.epochs(1):
        run.report(loss=1.0, accuracy=0.5)
        run.report(loss=math.nan)
    assert lines(tmp_path)[-1] == {"epoch": 1, "epochs": 1, "accuracy": 0.5}


def test_a_metric_of_one_epoch_is_not_reported_for_the_next(tmp_path: Path) -> None:
    run = worker(tmp_path)
    for epoch in run.epochs(2):
        if epoch == 1:
            run.report(loss=1.0)
    assert lines(tmp_path)[-1] == {"epoch": 2, "epochs": 2}


def test_a_framework_with_a_loop_of_its_own_names_the_epoch(tmp_path: Path) -> None:
    clock = Clock()
    run = worker(tmp_path, EPOCHS="9", clock=clock)
    clock.now_s += 2
    run.report(epoch=1, step=5, loss=1.0)
    run.report(epoch=1, step=6, loss=0.9)
    run.report(epoch=1, loss=0.8)
    run.report(epoch=2, epochs=7, accuracy=0.5)
    assert lines(tmp_path) == [
        {"epoch": 1, "epochs": 9, "step": 5, "loss": 1.0},
        {"epoch": 1, "epochs": 9, "loss": 0.8},
        {"epoch": 2, "epochs": 7, "accuracy": 0.5},
    ]


class OnDevice:
    """A number that is dear to look at."""

    def __float__(self) -> float:
        pytest.fail("nobody needs it")


def test_only_rank_0_reports_and_others_do_not_even_look_at_the_numbers(tmp_path: Path) -> None:
    for run in (worker(tmp_path, rank=1, world=2), worker(tmp_path, PROGRESS_FILE="")):
        for _ in run.epochs(1):
            run.report(loss=OnDevice())
    assert lines(tmp_path) == []


def test_numbers_that_are_not_written_yet_are_not_looked_at(tmp_path: Path) -> None:
    run = worker(tmp_path)
    for _ in run.epochs(1):
        for batch in run.batches(range(3)):
            run.report(loss=OnDevice() if batch < 2 else 0.5)
    assert [line["loss"] for line in lines(tmp_path)] == [0.5, 0.5]


# When to save


def due(run: Run, epochs: int) -> list[int]:
    return [epoch for epoch in run.epochs(epochs) if run.due()]


def test_it_is_time_every_so_many_epochs_and_after_the_last(tmp_path: Path) -> None:
    assert due(worker(tmp_path, CHECKPOINT_FREQUENCY="3"), 8) == [3, 6, 8]
    assert due(worker(tmp_path), 2) == [1, 2]


def test_a_framework_with_a_loop_of_its_own_asks_by_the_epoch(tmp_path: Path) -> None:
    run = worker(tmp_path, CHECKPOINT_FREQUENCY="3", EPOCHS="7")
    assert [epoch for epoch in range(1, 8) if run.due(epoch)] == [3, 6, 7]


def test_it_is_time_when_the_interval_has_passed_since_the_last_save(tmp_path: Path) -> None:
    clock = Clock()
    run = worker(tmp_path, clock=clock, CHECKPOINT_INTERVAL_SECONDS="60", CHECKPOINT_FREQUENCY="1000")
    saved = []
    for _ in run.epochs(1):
        for batch in run.batches(range(10)):
            clock.now_s += 25
            if run.due():
                saved.append(batch)
                save(run, str(batch))
    assert saved == [2, 5, 8]


def test_a_notice_makes_it_time_until_it_is_answered(tmp_path: Path) -> None:
    run = worker(tmp_path, CHECKPOINT_FREQUENCY="1000")
    for epoch in run.epochs(2):
        for batch in run.batches(range(5)):
            if (epoch, batch) == (1, 1):
                (tmp_path / "notice").touch()
            assert run.due() == (epoch == 1 and batch in (1, 2))
            if batch == 2 and run.due():
                save(run, "m")


def test_the_last_step_leaves_the_save_to_the_end_of_the_epoch(tmp_path: Path) -> None:
    run = worker(tmp_path, CHECKPOINT_FREQUENCY="1000")
    (tmp_path / "notice").touch()
    asked: list[bool] = []
    for _ in run.epochs(9):
        asked.extend(run.due() for _ in run.batches(range(3)))
        asked.append(run.due())
        break
    assert asked == [True, True, False, True]


def test_it_is_never_time_where_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "notice").touch()
    assert due(worker(tmp_path, CHECKPOINT_DIR=""), 3) == []
    assert due(worker(tmp_path, rank=1, world=2), 3) == []
    assert due(worker(tmp_path, rank=1, world=2, shards=True), 3) == [1, 2, 3]


def test_a_save_before_the_first_epoch_must_say_of_which(tmp_path: Path) -> None:
    run = worker(tmp_path)
    for ask in (run.due, lambda: save(run, "m")):
        with pytest.raises(TrainError, match=r"which epoch\? loop over run.epochs\(\)"):
            ask()
    save(run, "untrained", epoch=0)
    assert models(tmp_path) == {"checkpoint-epoch-0": "untrained"}


def test_an_epoch_before_the_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="there is no epoch -1"):
        save(worker(tmp_path), "m", epoch=-1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("epoch", ["1", 1.5])
def test_an_epoch_that_is_no_whole_number_is_refused(tmp_path: Path, epoch: object) -> None:
    with pytest.raises(TypeError):
        save(worker(tmp_path), "m", epoch)  # type: ignore[arg-type]  # that is the mistake


# Together


def agreeing(votes: list[bool]) -> Callable[[bool], bool]:
    """The other ranks' wishes, of which each call takes one."""
    return lambda wish: wish or votes.pop(0)


def test_ranks_that_agree_save_when_any_of_them_is_asked_to(tmp_path: Path) -> None:
    first = worker(tmp_path, world=2, agree=agreeing([False, True, False]), CHECKPOINT_FREQUENCY="1000")
    assert [first.due(epoch) for epoch in (1, 2, 3)] == [False, True, False]


def test_a_rank_that_does_not_save_takes_part_in_the_decision_and_not_in_the_save(tmp_path: Path) -> None:
    asked: list[bool] = []

    def agree(wish: bool) -> bool:
        asked.append(wish)
        return wish

    second = worker(tmp_path, rank=1, world=2, agree=agree, CHECKPOINT_FREQUENCY="1000")
    (tmp_path / "notice").touch()
    assert [second.due(epoch) for epoch in (1, 2)] == [False, False]
    assert asked == [True, False], "rank 0 has answered the notice"
    assert second.notice() is None


# Outside


def test_outside_holdfast_a_script_runs_as_it_is_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = train.start()
    assert (run.rank, run.world, run.attempt, run.resumed, run.notice()) == (0, 1, 0, None, None)
    run.on_notice(lambda _: pytest.fail("nobody asks"))
    for _ in run.epochs(2):
        for _ in run.batches(range(2)):
            run.report(loss=0.5)
        assert not run.due()
        save(run, "m")
    assert run.epoch == 2
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
