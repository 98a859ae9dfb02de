"""When a training is good enough, to the epoch."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.reports import ProgressReport
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.trainingjob.decide.progress import apply_report, final_save_deadline, success_if_reached
from holdfast.trainingjob.decide.snapshot import TIMING
from tests.trainingjob.reports.reports import batch, checkpoint, ended, resumed, step
from tests.trainingjobs import at, stamp, training_job

LOSSES = (0.9, 0.5, 0.6, 0.7, 0.8, 0.1)
"""Of epochs 1 to 6: the best of the first five is epoch 2."""


def losses(*values: float, first: int = 1) -> list[ProgressReport]:
    return [ended(number, loss=value) for number, value in enumerate(values, start=first)]


def accuracies(*values: float) -> list[ProgressReport]:
    return [ended(number, accuracy=value) for number, value in enumerate(values, start=1)]


def job(policy: dict[str, Any] | None, **spec: Any) -> TrainingJob:
    return training_job({**({"successPolicy": policy} if policy else {}), **spec}, status={"state": "Running"})


def told(job: TrainingJob, *reports: list[ProgressReport], first_s: float = 0.0, **more: Any) -> TrainingJob:
    for number, entries in enumerate(reports):
        status = apply_report(
            job.spec, job.status or TrainingJobStatus(), batch(*entries, **more), at(first_s + number)
        )
        job = structs.replace(job, status=status)
    return job


def goal(job: TrainingJob) -> tuple[str | None, int]:
    assert job.status is not None
    assert job.status.epochs is not None
    return job.status.epochs.goal, job.status.epochs.done


@pytest.mark.parametrize(
    ("policy", "entries", "reached"),
    [
        (None, losses(*LOSSES), (None, 6)),
        ({"targetAccuracy": 0.9}, accuracies(0.5, 0.89, 0.9, 0.95), ("TargetReached", 3)),
        ({"targetAccuracy": 0.9}, accuracies(0.5, 0.89), (None, 2)),
        ({"targetAccuracy": 0.9}, losses(0.95, 0.95), (None, 2)),
        ({"targetAccuracy": 0.0}, accuracies(0.0), ("TargetReached", 1)),
        ({"earlyStoppingPatience": 3}, losses(*LOSSES), ("EarlyStopped", 5)),
        ({"earlyStoppingPatience": 4}, losses(*LOSSES), (None, 6)),
        ({"earlyStoppingPatience": 1}, losses(*LOSSES), ("EarlyStopped", 3)),
        ({"earlyStoppingPatience": 1}, losses(0.5, 0.5), ("EarlyStopped", 2)),
        ({"earlyStoppingPatience": 2}, losses(0.9, 0.8, 0.7, 0.6), (None, 4)),
        ({"earlyStoppingPatience": 2}, accuracies(0.1, 0.1, 0.1, 0.1), (None, 4)),
        ({"earlyStoppingPatience": 2}, [ended(0, loss=0.3), *losses(0.4, 0.5)], ("EarlyStopped", 2)),
        (
            {"earlyStoppingPatience": 1, "targetAccuracy": 0.5},
            [ended(1, loss=1), ended(2, loss=1, accuracy=0.6)],
            ("TargetReached", 2),
        ),
    ],
)
@pytest.mark.parametrize("split", [False, True], ids=["in one report", "in one report each"])
def test_a_goal_is_reached_at_the_exact_epoch(
    policy: dict[str, Any] | None, entries: list[ProgressReport], reached: tuple[str | None, int], split: bool
) -> None:
    reports = [[entry] for entry in entries] if split else [entries]
    assert goal(told(job(policy), *reports)) == reached


def test_what_was_trained_beyond_the_goal_does_not_count() -> None:
    after = told(job({"targetAccuracy": 0.9}), accuracies(0.5, 0.9, 0.1, 0.2), accuracies(0.5, 0.9, 0.1, 0.2, 0.99))
    assert goal(after) == ("TargetReached", 2)
    assert after.status is not None
    assert (after.status.current_epoch, after.status.metrics) == (2, {"accuracy": 0.9})


def test_a_step_is_no_epoch() -> None:
    after = told(job({"targetAccuracy": 0.9, "earlyStoppingPatience": 1}), [step(1, 1, 2, accuracy=1.0, loss=0.1)])
    assert goal(after) == (None, 0)


def test_epochs_without_a_loss_are_not_judged_by_it() -> None:
    told_ = told(job({"earlyStoppingPatience": 2}), [ended(1, loss=0.5), ended(2), ended(3), ended(4)])
    assert goal(told_) == (None, 4)
    assert goal(told(told_, [ended(5, loss=0.6)])) == ("EarlyStopped", 5)


def test_a_restart_neither_forgets_the_best_epoch_nor_counts_epochs_twice() -> None:
    before = told(job({"earlyStoppingPatience": 3}), losses(0.9, 0.5, 0.6, 0.7))
    assert before.status is not None
    again = structs.replace(before, status=structs.replace(before.status, restart_count=1))
    again = told(again, [], first_s=100, attempt=1, sequence=1, resumed=resumed(1))
    again = told(again, losses(0.5, 0.6, 0.7, first=2), attempt=1)
    assert goal(again) == (None, 4)
    assert goal(told(again, losses(0.8, first=5), attempt=1)) == ("EarlyStopped", 5)


def test_a_goal_outlives_the_attempt_that_reached_it() -> None:
    reached = told(job({"targetAccuracy": 0.9}), accuracies(0.95))
    assert reached.status is not None
    lost = structs.replace(reached, status=structs.replace(reached.status, restart_count=1))
    lost = told(lost, [], attempt=1, sequence=1, resumed=resumed(0))
    assert goal(lost)[0] == "TargetReached"
    assert success_if_reached(lost, at(1), TIMING) is not None


_losses = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def _stops_at(values: list[float], patience: int) -> int | None:
    """By the definition: the first epoch that has `patience` epochs behind it since the best one."""
    best = 0
    for epoch in range(1, len(values)):
        if values[epoch] < values[best]:
            best = epoch
        if epoch - best >= patience:
            return epoch + 1
    return None


@given(_losses, st.integers(1, 5), st.lists(st.integers(1, 12), max_size=4))
def test_early_stopping_is_the_same_however_the_epochs_arrive(
    values: list[float], patience: int, cuts: list[int]
) -> None:
    entries = losses(*values)
    edges = [0, *sorted(min(cut, len(entries)) for cut in cuts), len(entries)]
    reports = [entries[start:end] for start, end in pairwise(edges)]
    stopped, done = goal(told(job({"earlyStoppingPatience": patience}), *reports))
    expected = _stops_at(values, patience)
    assert (stopped, done) == (("EarlyStopped", expected) if expected else (None, len(values)))


@given(_losses, st.integers(1, 5), st.integers(0, 12), st.integers(0, 12))
def test_early_stopping_is_the_same_with_a_restart_in_between(
    values: list[float], patience: int, lost_after: int, resumed_from: int
) -> None:
    policy = job({"earlyStoppingPatience": patience})
    undisturbed = goal(told(policy, losses(*values)))
    before = told(policy, losses(*values[:lost_after]))
    status = structs.replace(before.status or TrainingJobStatus(), restart_count=1)
    epoch = min(resumed_from, lost_after, len(values))
    again = told(structs.replace(before, status=status), [], attempt=1, sequence=1, resumed=resumed(epoch))
    if goal(again)[0] is None:
        again = told(again, losses(*values[epoch:], first=epoch + 1), attempt=1)
        assert goal(again) == undisturbed
    else:
        assert goal(before) == undisturbed


def saved(job: TrainingJob, epoch: int) -> TrainingJob:
    status = apply_report(job.spec, job.status or TrainingJobStatus(), batch(checkpoints=(checkpoint(epoch),)), at(1))
    return structs.replace(job, status=status)


def test_a_job_without_a_goal_does_not_end() -> None:
    assert success_if_reached(training_job(), at(0), TIMING) is None
    assert success_if_reached(told(job({"targetAccuracy": 0.9}), accuracies(0.5)), at(1e6), TIMING) is None


def test_a_job_without_checkpoints_ends_at_once() -> None:
    over = success_if_reached(told(job({"targetAccuracy": 0.9}), accuracies(0.5, 0.95)), at(0), TIMING)
    assert over is not None
    assert over.reason == "TargetReached"
    assert over.message == "the accuracy reached successPolicy.targetAccuracy 0.9 in epoch 2"


def test_a_last_checkpoint_is_waited_for_and_not_for_ever() -> None:
    reached = told(job({"targetAccuracy": 0.9}, checkpoint={}), accuracies(0.5, 0.95))
    early = saved(reached, 1)
    for waiting in (reached, early):
        assert final_save_deadline(waiting, TIMING) == at(60)
        assert success_if_reached(waiting, at(59), TIMING) is None
        assert success_if_reached(waiting, at(60), TIMING) is not None
    assert success_if_reached(saved(reached, 2), at(1), TIMING) is not None


@pytest.mark.parametrize("change", [{"state": "Pending"}, {"restart_count": 1}, {"state": "Suspended"}])
def test_nobody_waits_for_a_checkpoint_of_workers_that_are_gone(change: dict[str, Any]) -> None:
    reached = told(job({"earlyStoppingPatience": 1}, checkpoint={}), losses(0.5, 0.6))
    assert reached.status is not None
    broken = structs.replace(reached, status=structs.replace(reached.status, **change))
    assert success_if_reached(reached, at(0), TIMING) is None
    over = success_if_reached(broken, at(0), TIMING)
    assert over is not None
    assert over.reason == "EarlyStopped"
    assert "no better loss than 0.5 of epoch 1 came until epoch 2" in over.message


def test_the_time_of_the_goal_is_the_operators() -> None:
    reached = told(job({"targetAccuracy": 0.9}), accuracies(0.95), first_s=77)
    assert reached.status is not None
    assert reached.status.epochs is not None
    assert reached.status.epochs.goal_time == stamp(77)


@pytest.mark.parametrize("state", ["Initializing", "Running", "Restarting"])
def test_a_checkpoint_of_workers_that_are_not_all_seen_to_run_is_waited_for(state: Any) -> None:
    reached = told(job({"targetAccuracy": 0.9}, checkpoint={}), accuracies(0.95))
    assert reached.status is not None
    starting = structs.replace(reached, status=structs.replace(reached.status, state=state))
    assert final_save_deadline(starting, TIMING) == at(60)
    assert success_if_reached(starting, at(0), TIMING) is None
    assert success_if_reached(starting, at(0), TIMING, is_ending=True) is not None


def test_training_beyond_the_goal_needs_no_later_checkpoint() -> None:
    reached = told(job({"targetAccuracy": 0.9}, checkpoint={}), accuracies(0.5, 0.95, 0.96, 0.97))
    assert goal(reached) == ("TargetReached", 2)
    assert success_if_reached(saved(reached, 2), at(1), TIMING) is not None
    assert success_if_reached(saved(reached, 4), at(1), TIMING) is not None
