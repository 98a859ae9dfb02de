"""What is told to the operator, and when it is told again."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api import reports
from holdfast.api.reports import CheckpointReport, ProgressReport, ReportReply, Resumed, WorkerReport
from holdfast.sidecar import outbox as backlogs
from holdfast.sidecar.outbox import RESEND_AFTER_S, ReportOutbox

EMPTY = WorkerReport(job="j", namespace="n", uid="u", attempt=1, index=0, run="r", sequence=1, sent_at=0.0)


def new() -> ReportOutbox:
    return ReportOutbox(EMPTY)


def end(epoch: int, **metrics: float) -> ProgressReport:
    return ProgressReport(epoch=epoch, metrics=metrics, at=float(epoch))


def step(epoch: int, number: int, **metrics: float) -> ProgressReport:
    return ProgressReport(epoch=epoch, step=number, metrics=metrics, at=float(epoch))


def checkpoint(epoch: int, outcome: reports.Outcome = "completed", at: float = 0.0) -> CheckpointReport:
    return CheckpointReport(path=f"/checkpoints/checkpoint-epoch-{epoch}", epoch=epoch, outcome=outcome, at=at)


def answer(kept_epoch: int = 0) -> ReportReply:
    return ReportReply(attempt=1, attempt_over=False, recorded_epoch=kept_epoch)


def told(backlog: ReportOutbox, now_s: float = 0.0, kept_epoch: int = 0) -> tuple[ProgressReport, ...]:
    batch = backlog.batch(now_s, now_s)
    backlog.acknowledged(answer(kept_epoch), now_s)
    return batch.progress


def test_with_nothing_to_tell_a_batch_says_that_we_live() -> None:
    backlog = new()
    assert backlog.is_empty
    assert backlog.batch(0.0, 5.0) == msgspec.structs.replace(EMPTY, sent_at=5.0)


def test_the_end_of_an_epoch_is_urgent_and_a_step_is_not() -> None:
    backlog = new()
    assert not backlog.add_progress(step(1, 5))
    assert backlog.add_progress(end(1))
    assert not backlog.add_progress(end(1)), "the same once more is no news"


def test_of_the_steps_of_an_epoch_the_last_values_are_told() -> None:
    backlog = new()
    backlog.add_progress(step(1, 5, loss=0.5, lr=0.1))
    backlog.add_progress(step(1, 6, loss=0.4))
    assert told(backlog) == (step(1, 6, loss=0.4, lr=0.1),)
    assert told(backlog) == ()


def test_epochs_are_told_in_order_with_where_the_training_is_now_at_the_end() -> None:
    backlog = new()
    for entry in (step(1, 3), end(1), end(2), step(3, 7)):
        backlog.add_progress(entry)
    assert told(backlog) == (end(1), end(2), step(3, 7))


def test_the_steps_of_an_epoch_that_has_ended_are_not_told() -> None:
    backlog = new()
    backlog.add_progress(step(1, 3))
    backlog.add_progress(end(1))
    assert told(backlog) == (end(1),)


def test_a_batch_that_was_not_taken_comes_again_as_it_was_under_its_number() -> None:
    backlog = new()
    backlog.add_progress(end(1))
    first = backlog.batch(0.0, 10.0)
    backlog.add_progress(end(2))
    assert backlog.batch(5.0, 15.0) == msgspec.structs.replace(first, sent_at=15.0)
    backlog.acknowledged(answer(), 5.0)
    second = backlog.batch(6.0, 16.0)
    assert (second.sequence, second.progress) == (2, (end(1), end(2)))


def test_an_epoch_is_told_again_until_it_is_written_down() -> None:
    backlog = new()
    backlog.add_progress(end(1))
    assert told(backlog, 0.0) == (end(1),)
    assert told(backlog, RESEND_AFTER_S - 1) == ()
    assert told(backlog, RESEND_AFTER_S) == (end(1),)
    assert told(backlog, RESEND_AFTER_S + 1, kept_epoch=1) == ()
    assert told(backlog, 10 * RESEND_AFTER_S) == ()


def test_an_epoch_that_is_told_again_is_followed_by_where_the_training_is() -> None:
    backlog = new()
    backlog.add_progress(end(1))
    backlog.add_progress(step(2, 5))
    told(backlog, 0.0)
    assert told(backlog, RESEND_AFTER_S) == (end(1), step(2, 5))


def test_new_values_of_an_epoch_are_told_even_if_it_was_written_down() -> None:
    backlog = new()
    backlog.add_progress(end(1, loss=0.5))
    backlog.batch(0.0, 0.0)
    backlog.add_progress(end(1, accuracy=0.9))
    backlog.acknowledged(answer(kept_epoch=1), 0.0)
    assert told(backlog, 1.0, kept_epoch=1) == (end(1, loss=0.5, accuracy=0.9),)
    assert told(backlog, RESEND_AFTER_S * 2) == ()


def test_what_was_resumed_from_is_told_once() -> None:
    backlog = new()
    backlog.resumed(Resumed(path="/x", epoch=3))
    assert backlog.batch(0.0, 0.0).resumed == Resumed(path="/x", epoch=3)
    backlog.acknowledged(answer(), 0.0)
    assert backlog.batch(1.0, 1.0).resumed is None


def test_checkpoints_are_told_once_and_the_last_word_about_each_counts() -> None:
    backlog = new()
    for entry in (checkpoint(1), checkpoint(1, "failed", 1.0), checkpoint(1, "failed", 2.0)):
        backlog.add_checkpoint(entry)
    assert backlog.batch(0.0, 0.0).checkpoints == (checkpoint(1), checkpoint(1, "failed", 2.0))
    backlog.add_checkpoint(checkpoint(1, "failed", 3.0))
    backlog.acknowledged(answer(), 0.0)
    assert backlog.batch(1.0, 1.0).checkpoints == (checkpoint(1, "failed", 3.0),)


def test_a_batch_that_is_refused_for_good_is_not_sent_again() -> None:
    backlog = new()
    backlog.add_progress(end(1))
    backlog.add_checkpoint(checkpoint(1))
    backlog.batch(0.0, 0.0)
    backlog.add_progress(end(2))
    backlog.add_checkpoint(checkpoint(2))
    backlog.drop_rejected()
    batch = backlog.batch(1.0, 1.0)
    assert (batch.sequence, batch.progress, batch.checkpoints) == (2, (end(2),), (checkpoint(2),))


def test_an_epoch_that_is_not_written_down_goes_before_every_newer_one() -> None:
    backlog = new()
    for epoch in (1, 2):
        backlog.add_progress(end(epoch))
        assert told(backlog) == tuple(end(before) for before in range(1, epoch + 1))
    backlog.add_progress(end(3))
    assert told(backlog, kept_epoch=2) == (end(1), end(2), end(3))
    backlog.add_progress(end(4))
    assert told(backlog) == (end(3), end(4))


def test_what_does_not_fit_into_a_batch_waits_until_that_is_written_down() -> None:
    backlog = new()
    for epoch in range(1, 301):
        backlog.add_progress(end(epoch))
    backlog.add_progress(step(301, 5))
    first = told(backlog)
    assert [entry.epoch for entry in first] == list(range(1, 257))
    assert told(backlog, 1.0) == ()
    assert not backlog.is_empty
    assert told(backlog, RESEND_AFTER_S) == first
    assert told(backlog, RESEND_AFTER_S + 1.0, kept_epoch=256) == ()
    assert told(backlog, RESEND_AFTER_S + 2.0) == (*(end(epoch) for epoch in range(257, 301)), step(301, 5))


def test_a_day_without_the_operator_loses_no_epoch_and_goes_out_in_batches_that_it_takes() -> None:
    backlog = new()
    for epoch in range(1, 8641):
        backlog.add_progress(step(epoch, 1, loss=0.5))
        backlog.add_progress(end(epoch, loss=0.123456789, accuracy=0.987654321))
        backlog.add_checkpoint(checkpoint(epoch))
    heard: list[int] = []
    now_s, written = 0.0, 0
    while not backlog.is_empty:
        batch = reports.decode(msgspec.json.encode(backlog.batch(now_s, now_s)))
        heard += [entry.epoch for entry in batch.progress]
        backlog.acknowledged(answer(written), now_s)
        now_s += 1.0
        if now_s % 5 == 0:  # that often a status is written
            written = max(heard)
    assert heard == list(range(1, 8641))
    assert now_s < 300
    assert backlog.dropped_epochs == 0


def test_beyond_its_bound_the_oldest_epochs_go() -> None:
    backlog = new()
    metrics = {f"a_metric_with_quite_a_long_name_{number}": 1 / (number + 1) for number in range(64)}
    for epoch in range(1, 2001):
        backlog.add_progress(end(epoch, **metrics))
    size = len(msgspec.json.encode(end(2000, **metrics)))
    held = backlogs.MOST_BYTES // size
    assert abs(2000 - backlog.dropped_epochs - held) <= 1
    first = backlog.batch(0.0, 0.0).progress[0].epoch
    assert first == backlog.dropped_epochs + 1


told_entries = st.one_of(
    st.builds(end, st.integers(0, 30)),
    st.builds(step, st.integers(0, 30), st.integers(0, 99)),
)
sends = st.sampled_from(["taken", "lost", "answer lost"])


@settings(deadline=None)
@given(st.lists(st.one_of(told_entries, sends), max_size=60))
def test_the_operator_hears_the_end_of_every_epoch_whatever_is_lost(events: list[ProgressReport | str]) -> None:
    backlog, heard, now_s = new(), set[int](), 0.0
    for event in events:
        now_s += 1.0
        if isinstance(event, ProgressReport):
            backlog.add_progress(event)
            continue
        batch = reports.decode(msgspec.json.encode(backlog.batch(now_s, now_s)))
        if event != "lost":
            heard |= {entry.epoch for entry in batch.progress if entry.step is None}
        if event == "taken":
            backlog.acknowledged(answer(), now_s)
    while not backlog.is_empty:
        heard |= {entry.epoch for entry in backlog.batch(now_s, now_s).progress if entry.step is None}
        backlog.acknowledged(answer(kept_epoch=99), now_s)
    assert heard == {event.epoch for event in events if isinstance(event, ProgressReport) and event.step is None}


operators_day = st.lists(st.sampled_from(["epoch", "send", "write", "crash"]), max_size=80)


@settings(deadline=None)
@given(operators_day)
def test_an_operator_that_forgets_before_it_writes_passes_over_no_epoch(events: list[str]) -> None:
    """It counts epochs one after the other, and what it has only heard dies with it."""
    backlog, epoch, heard, written, now_s = new(), 0, 0, 0, 0.0
    for event in [*events, "send", "write", "send"]:
        now_s += RESEND_AFTER_S
        if event == "epoch":
            epoch += 1
            backlog.add_progress(end(epoch))
        elif event == "write":
            written = heard
        elif event == "crash":
            heard = written
        else:
            ends = [entry.epoch for entry in told(backlog, now_s, kept_epoch=written)]
            new_ones = [number for number in ends if number > heard]
            assert new_ones == list(range(heard + 1, heard + 1 + len(new_ones))), "in order, and none is missing"
            heard += len(new_ones)
    assert written == epoch


def test_the_metrics_of_recent_epochs_are_known_whether_they_were_told_or_not() -> None:
    backlog = new()
    backlog.add_progress(end(1, loss=0.5))
    backlog.add_progress(end(1, accuracy=0.9))
    backlog.add_progress(step(2, 5, loss=0.1))
    told(backlog, kept_epoch=1)
    assert backlog.metrics_of(1) == {"loss": 0.5, "accuracy": 0.9}
    assert backlog.metrics_of(2) == {}, "an epoch that has not ended has none"
    for epoch in range(2, 2 + backlogs.MOST_REMEMBERED):
        backlog.add_progress(end(epoch, loss=0.4))
    assert backlog.metrics_of(1) == {}
    assert backlog.metrics_of(2) == {"loss": 0.4}
