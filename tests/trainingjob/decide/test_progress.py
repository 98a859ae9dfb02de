"""What a job shows of its progress, report by report."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.reports import MOST_METRICS, ProgressReport, WorkerReport
from holdfast.api.trainingjob_status import EpochProgress, TrainingJobStatus
from holdfast.times import parse_time
from holdfast.trainingjob.decide.progress import (
    WRITE_EVERY_S,
    apply_report,
    next_write_at,
    percent,
    total_epochs,
    with_gpu_utilization,
)
from tests.trainingjob.reports.reports import SENT_AT, batch, checkpoint, ended, resumed, step
from tests.trainingjobs import at, stamp, training_job

SPEC = training_job({"hyperparameters": {"epochs": 10}}).spec


def told(
    status: TrainingJobStatus, *batches: WorkerReport, received: float = 0.0, spec: Any = SPEC
) -> TrainingJobStatus:
    """After these batches, a second apart."""
    for number, each in enumerate(batches):
        status = apply_report(spec, status, each, at(received + number))
    return status


def running(**fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus(state="Running", **fields)


def epochs_of(status: TrainingJobStatus) -> EpochProgress:
    assert status.epochs is not None
    return status.epochs


@pytest.mark.parametrize(
    ("entries", "progress", "current"),
    [
        ((ended(0),), "0%", 0),
        ((ended(1),), "10%", 1),
        ((ended(1), ended(2), ended(3)), "30%", 3),
        ((ended(10),), "100%", 10),
        ((ended(12),), "100%", 12),
        ((step(1, 50, 100),), "5%", 1),
        ((ended(4), step(5, 99, 100)), "49%", 5),
        ((ended(4), step(5, 100, 100)), "50%", 5),
        ((ended(4), step(5, 7)), "40%", 5),
        ((ended(2, of=4),), "50%", 2),
        ((ended(3, of=4), ended(4, of=8)), "50%", 4),
    ],
)
def test_progress_is_of_the_epochs_with_the_part_of_the_one_under_way(
    entries: tuple[ProgressReport, ...], progress: str, current: int
) -> None:
    status = told(running(), batch(*entries))
    assert (status.progress, status.current_epoch) == (progress, current)


def test_without_a_number_of_epochs_only_the_current_one_is_shown() -> None:
    status = told(running(), batch(ended(7, loss=0.5)), spec=training_job().spec)
    assert (status.progress, status.total_epochs, status.current_epoch) == (None, None, 7)
    assert status.estimated_completion_time is None


def test_the_training_knows_its_number_of_epochs_better_than_the_spec() -> None:
    status = told(running(), batch(ended(1, of=20)))
    assert (status.total_epochs, status.progress) == (20, "5%")
    assert total_epochs(SPEC, status) == 20
    assert told(status, batch(ended(2))).total_epochs == 20
    assert total_epochs(SPEC, structs.replace(status, restart_count=1)) == 10


def test_the_gpu_utilization_of_worker_0_is_not_that_of_the_job() -> None:
    before = running(metrics={"gpu_utilization_percent": 40.0})
    status = told(before, batch(ended(1, loss=0.5, gpu_utilization_percent=90.0)))
    assert status.metrics == {"gpu_utilization_percent": 40.0, "loss": 0.5}


@pytest.mark.parametrize("percent", [None, 0.0, 55.0])
@pytest.mark.parametrize("before", [{}, {"gpu_utilization_percent": 40.0}])
def test_the_gpu_utilization_is_shown_while_it_is_known(before: dict[str, float], percent: float | None) -> None:
    status = with_gpu_utilization(running(metrics={"loss": 0.5, **before}), percent)
    known = {} if percent is None else {"gpu_utilization_percent": percent}
    assert status.metrics == {"loss": 0.5, **known}


def test_the_gpu_utilization_takes_the_place_of_no_metric() -> None:
    full = running(metrics={f"m{number}": 1.0 for number in range(MOST_METRICS)})
    assert with_gpu_utilization(full, 50.0) == full


def test_what_is_behind_changes_nothing() -> None:
    status = told(running(), batch(ended(5, loss=0.2)), batch(step(6, 50, 100, loss=0.1)))
    assert told(status, batch(ended(4, loss=9.0))) == status
    assert told(status, batch(step(6, 49, 100, loss=9.0))) == status
    assert told(status, batch(step(3, 99, 100, loss=9.0))) == status
    assert epochs_of(status).done == 5


def test_a_report_that_comes_twice_counts_once() -> None:
    once = told(running(), batch(ended(1, loss=0.5), ended(2, loss=0.4), checkpoints=(checkpoint(2, valid_count=1),)))
    twice = told(once, batch(ended(1, loss=0.5), ended(2, loss=0.4), checkpoints=(checkpoint(2, valid_count=1),)))
    assert twice == once


def test_an_epochs_end_may_be_told_in_two_lines() -> None:
    status = told(running(), batch(ended(3, loss=0.4)), batch(ended(3, accuracy=0.9)))
    assert status.metrics == {"loss": 0.4, "accuracy": 0.9}
    assert (epochs_of(status).done, status.progress) == (3, "30%")


@pytest.mark.parametrize("stray", [{"attempt": 1}, {"index": 1}, {"attempt": 1, "index": 1}])
def test_only_worker_0_of_the_current_attempt_tells_of_progress(stray: dict[str, int]) -> None:
    status = told(running(), batch(ended(1)))
    assert told(status, batch(ended(5), checkpoints=(checkpoint(5),), **stray)) == status


def test_a_heartbeat_changes_nothing() -> None:
    assert told(running(), batch()) == running()
    status = told(running(), batch(ended(1)))
    assert told(status, batch(), batch(sequence=1)) == status


def test_the_last_values_of_all_metrics_are_shown() -> None:
    status = told(running(), batch(ended(1, loss=0.5, accuracy=0.8)), batch(step(2, 1, 10, loss=0.45)))
    assert status.metrics == {"loss": 0.45, "accuracy": 0.8}


def test_of_too_many_metrics_those_that_are_told_now_are_shown() -> None:
    old = {f"old{n}": 1.0 for n in range(MOST_METRICS)}
    new = {f"new{n}": 2.0 for n in range(10)}
    status = told(running(metrics=old), batch(structs.replace(ended(1), metrics=new)))
    assert len(status.metrics) == MOST_METRICS
    assert new.items() <= status.metrics.items()


def test_a_new_attempt_stands_where_it_resumed() -> None:
    before = told(running(), batch(ended(7, loss=0.2), step(8, 90, 100)))
    status = told(structs.replace(before, restart_count=1), batch(attempt=1, sequence=1, resumed=resumed(5)))
    assert (status.progress, status.current_epoch) == ("50%", 5)
    assert epochs_of(status) == EpochProgress(attempt=1, done=5, position=5.0, best_loss=0.2, best_epoch=7)
    assert told(status, batch(ended(6), attempt=1)).progress == "60%"


def test_a_new_attempt_without_a_checkpoint_begins_anew() -> None:
    before = told(running(), batch(ended(7)))
    status = told(structs.replace(before, restart_count=1), batch(step(1, 1, 100), attempt=1))
    assert (status.progress, status.current_epoch, epochs_of(status).done) == ("0%", 1, 0)


def test_a_sign_of_life_of_a_new_attempt_leaves_the_old_position_on_show() -> None:
    before = structs.replace(told(running(), batch(ended(7))), restart_count=1)
    assert told(before, batch(attempt=1)) == before


def test_a_training_that_was_suspended_shows_its_position_until_it_has_come_so_far_again() -> None:
    status = told(running(), batch(ended(6)), batch(sequence=1, resumed=resumed(4)))
    assert (status.progress, epochs_of(status).done) == ("60%", 6)
    assert told(status, batch(ended(5))).progress == "60%"
    assert told(status, batch(ended(5), ended(6), ended(7))).progress == "70%"


def paced(*seconds: float, of: int = 10, status: TrainingJobStatus | None = None, **more: Any) -> TrainingJobStatus:
    """Epochs that ended at these moments, each told at once."""
    status = status or running()
    begun = status.epochs.done if status.epochs is not None else 0
    for number, second in enumerate(seconds, start=begun + 1):
        status = apply_report(SPEC, status, batch(ended(number, of=of), **more), at(second))
    return status


def test_the_end_is_estimated_from_the_pace() -> None:
    status = paced(100, 130, 160, 190)
    assert epochs_of(status).seconds_each == 30.0
    assert status.estimated_completion_time == stamp(190 + 6 * 30)


def test_the_first_epoch_alone_tells_no_pace() -> None:
    """Its beginning was not told: data are loaded and programs compiled before it."""
    status = paced(100)
    assert epochs_of(status).seconds_each is None
    assert status.estimated_completion_time is None


def test_several_epochs_in_one_report_tell_the_pace_too() -> None:
    entries = (ended(n, at=SENT_AT + 20 * n) for n in (1, 2, 3))
    status = apply_report(SPEC, running(), batch(*entries, age_s=100.0), at(500))
    assert epochs_of(status).seconds_each == 20.0
    # The third ended 40 s before the report was sent, whatever the sidecar's clock says.
    assert status.estimated_completion_time == stamp(460 + 7 * 20)


def test_steps_tell_the_pace_of_a_single_long_epoch() -> None:
    spec = training_job({"hyperparameters": {"epochs": 1}}).spec
    status = running()
    for number in range(6):
        status = apply_report(spec, status, batch(step(1, 10 * number, 1000)), at(60.0 * number))
    assert status.progress == "5%"
    assert status.estimated_completion_time == stamp(300 + 95 * 60)


def test_the_pace_follows_the_last_epochs() -> None:
    fast = [10.0 * n for n in range(1, 5)]
    slow = [40.0 + 50.0 * n for n in range(1, 16)]
    pace_s = epochs_of(paced(*fast, *slow, of=100)).seconds_each
    assert pace_s is not None
    assert 45 < pace_s <= 50


def test_a_restart_keeps_the_pace_and_does_not_count_as_training() -> None:
    before = structs.replace(paced(100, 130, 160), restart_count=1)
    status = apply_report(SPEC, before, batch(attempt=1, sequence=1, resumed=resumed(2)), at(1000))
    assert status.estimated_completion_time == stamp(1000 + 8 * 30)
    after = paced(1090, 1120, status=status, attempt=1)
    assert epochs_of(after).seconds_each == 30.0
    assert after.estimated_completion_time == stamp(1120 + 6 * 30)


def test_a_pause_of_the_sidecar_does_not_count_as_training() -> None:
    status = paced(100, 130)
    status = apply_report(SPEC, status, batch(ended(3), sequence=1), at(9000))
    assert epochs_of(status).seconds_each == 30.0
    assert status.estimated_completion_time == stamp(9000 + 7 * 30)


def test_an_operator_that_was_away_for_a_day_finds_the_right_pace() -> None:
    status = paced(100, 130)
    day = 86_400.0
    entries = tuple(ended(n, at=SENT_AT + 30.0 * n) for n in (3, 4, 5))
    late = batch(*entries, age_s=day)
    status = apply_report(SPEC, status, late, at(130 + day - 60))
    assert epochs_of(status).seconds_each == 30.0
    assert status.progress == "50%"


def test_a_clock_that_jumps_does_not_spoil_the_estimate() -> None:
    status = paced(100, 130, 160)
    late = ProgressReport(epoch=4, at=SENT_AT + 3600)
    status = apply_report(SPEC, status, structs.replace(batch(late), sent_at=SENT_AT + 3600), at(190))
    assert status.estimated_completion_time == stamp(190 + 6 * 30)


def test_time_that_runs_backwards_tells_no_pace() -> None:
    status = apply_report(SPEC, paced(100, 130), batch(ended(3)), at(120))
    assert epochs_of(status).seconds_each == 30.0
    assert epochs_of(apply_report(SPEC, status, batch(ended(4)), at(150))).seconds_each == 30.0


def test_an_end_that_nobody_will_see_is_not_told() -> None:
    status = paced(0, 1e8, of=10**15)
    assert status.estimated_completion_time is None
    assert status.progress == "0%"


def test_what_is_folded_can_be_written_and_read() -> None:
    status = told(paced(100, 130.5), batch(step(3, 1, 7, loss=1.5), checkpoints=(checkpoint(2),)))
    text = msgspec.json.encode(status)
    assert msgspec.json.decode(text, type=TrainingJobStatus) == status


_entries = st.builds(
    lambda epoch, within, steps: ended(epoch) if within is None else step(epoch, within, steps),
    st.integers(0, 12),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(1, 20),
)
_batches = st.lists(st.lists(_entries, max_size=5), max_size=8)


def _percent(status: TrainingJobStatus) -> int:
    return int((status.progress or "0%").removesuffix("%"))


@given(_batches)
def test_nothing_goes_backwards_within_an_attempt(reports: list[list[ProgressReport]]) -> None:
    status = running()
    for number, entries in enumerate(reports):
        new = apply_report(SPEC, status, batch(*entries), at(10.0 * number))
        assert _percent(new) >= _percent(status)
        assert (new.current_epoch or 0) >= (status.current_epoch or 0)
        assert new.epochs is None or new.epochs.done >= (status.epochs.done if status.epochs else 0)
        status = new


@given(st.lists(_entries, max_size=10), st.integers(0, 10))
def test_it_makes_no_difference_how_entries_are_put_into_batches(entries: list[ProgressReport], cut: int) -> None:
    whole = told(running(), batch(*entries))
    parts = apply_report(
        SPEC, apply_report(SPEC, running(), batch(*entries[:cut]), at(0)), batch(*entries[cut:]), at(0)
    )
    for field in ("progress", "current_epoch", "metrics", "total_epochs"):
        assert getattr(whole, field) == getattr(parts, field)
    if whole.epochs is not None:
        assert (whole.epochs.done, whole.epochs.position) == (epochs_of(parts).done, epochs_of(parts).position)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_percents_are_rounded_down_and_whole_numbers_exact(done: int, total: int) -> None:
    assert percent(float(done), total) == f"{min(100, 100 * done // total)}%"


@pytest.mark.parametrize(
    ("last", "now", "due"), [(None, 100, 100), (100, 100, 105), (100, 103, 105), (100, 105, 105), (100, 900, 900)]
)
def test_progress_is_written_at_most_every_five_seconds(last: float | None, now: float, due: float) -> None:
    assert next_write_at(None if last is None else at(last), at(now)) == at(due)


def test_a_clock_that_was_set_back_holds_up_no_write() -> None:
    assert next_write_at(at(1e6), at(0)) == at(0)


@given(st.lists(st.floats(0, 100), max_size=30))
def test_writes_that_wait_for_their_time_keep_their_distance(news: list[float]) -> None:
    written: list[Any] = []
    for second in sorted(news):
        now = at(second)
        if written and written[-1] > now:
            continue  # the write that is waiting tells this too
        written.append(next_write_at(written[-1] if written else None, now))
    gaps = [after - before for before, after in pairwise(written)]
    assert all(gap >= timedelta(seconds=WRITE_EVERY_S) for gap in gaps)


def test_timestamps_are_read_as_they_are_written() -> None:
    assert parse_time(epochs_of(paced(100.25)).position_time or "") == at(100.25)


def test_an_attempt_that_starts_from_scratch_goes_on_from_nothing() -> None:
    first = told(running(), batch(ended(3), resumed=resumed(2)))
    assert first.checkpoint is not None
    assert first.checkpoint.resumed_from == resumed(2).path
    again = structs.replace(first, restart_count=1)
    fresh = told(again, batch(ended(1), attempt=1))
    assert fresh.checkpoint is not None
    assert fresh.checkpoint.resumed_from is None
    # A suspension is no new attempt: what it went on from before stays until it tells otherwise.
    assert told(first, batch(ended(4), sequence=1, run="another")).checkpoint == first.checkpoint


@given(st.floats(0, 2.0**53), st.floats(0, 2.0**53))
def test_no_clock_is_so_wrong_that_a_report_can_not_be_written(made: float, sent: float) -> None:
    report = structs.replace(
        batch(ended(1, at=made), ended(2, at=sent), checkpoints=(checkpoint(1, at=made),)), sent_at=sent
    )
    status = told(running(), report, batch(ended(3, at=0.0)))
    assert (status.current_epoch, status.progress) == (3, "30%")
