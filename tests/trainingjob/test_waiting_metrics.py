"""What jobs wait for, how old their checkpoints are, and what a loss would cost, as their status says."""

from typing import Any

import pytest
from msgspec import structs
from prometheus_client.core import Metric

from holdfast.api.trainingjob import TrainingJob
from holdfast.trainingjob.waiting_metrics import waiting_metrics
from tests.trainingjobs import at, stamp, training_job

NOW_S = 3600.0
Labels = tuple[str, ...]


def condition(kind: str, status: str, since_s: float, reason: str = "AsTold") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": stamp(since_s)}


def job(
    *conditions: dict[str, Any], state: str | None = "Running", spec: dict[str, Any] | None = None, **status: Any
) -> TrainingJob:
    """Made an hour ago."""
    shown = {"state": state, "conditions": list(conditions), **status} if state else None
    made = training_job(spec, status=shown)
    return structs.replace(made, metadata=structs.replace(made.metadata, creation_timestamp=stamp(0)))


def series(name: str, *jobs: TrainingJob, per_job: bool = True) -> dict[Labels, float]:
    families: dict[str, Metric] = {each.name: each for each in waiting_metrics(jobs, at(NOW_S), per_job=per_job)}
    found = families.get(f"trainingjob_{name}")
    return {tuple(sample.labels.values()): sample.value for sample in found.samples} if found is not None else {}


RUNNING = condition("Running", "True", 600, "WorkersReady")


def test_jobs_are_counted_by_state_and_reason() -> None:
    waiting = job(condition("Running", "False", 0, "WaitingForGpus"), state="Pending")
    assert series("jobs", job(RUNNING), job(RUNNING), waiting, job(state=None)) == {
        ("ml", "Running", "WorkersReady"): 2,
        ("ml", "Pending", "WaitingForGpus"): 1,
        ("ml", "Pending", "NotSeenYet"): 1,
    }


@pytest.mark.parametrize(
    ("shown", "reason", "seconds"),
    [
        (job(state=None), "NotSeenYet", 3600),
        (job(condition("Running", "False", 60, "Queued"), state="Pending"), "Queued", 3540),
        (job(condition("Running", "False", 1800, "Preempted"), state="Restarting"), "Preempted", 1800),
        (
            job(condition("Running", "False", 60), condition("Suspended", "False", 3000), state="Pending"),
            "AsTold",
            600,
        ),
    ],
)
def test_a_job_waits_since_its_workers_do_not_all_run(shown: TrainingJob, reason: str, seconds: float) -> None:
    assert series("waiting_seconds", shown) == {("ml", "bert", reason): seconds}


@pytest.mark.parametrize(
    "shown",
    [
        job(RUNNING),
        job(condition("Running", "False", 0), condition("Suspended", "True", 60), state="Suspended"),
        job(condition("Running", "False", 0), state="Completed"),
        job(condition("Running", "False", 0), state="Failed"),
    ],
)
def test_what_runs_or_is_not_to_run_does_not_wait(shown: TrainingJob) -> None:
    assert series("waiting_seconds", shown) == {}


def test_without_jobs_names_the_longest_wait_of_each_reason_is_left() -> None:
    first, second = (job(condition("Running", "False", since, "Queued"), state="Pending") for since in (60, 1800))
    assert series("waiting_seconds", first, second, per_job=False) == {("ml", "", "Queued"): 3540}
    for name in ("checkpoint_age_seconds", "unsaved_seconds", "checkpoint_interval_seconds", "failed_attempts"):
        assert series(name, job(RUNNING, checkpoint={"lastTime": stamp(0)}), per_job=False) == {}


@pytest.mark.parametrize(("saved_s", "unsaved_s"), [(None, 3000), (60, 3000), (900, 2700)])
def test_what_a_loss_would_cost_counts_from_the_checkpoint_or_from_the_start(
    saved_s: float | None, unsaved_s: float
) -> None:
    checkpoint = {"lastTime": stamp(saved_s)} if saved_s is not None else {}
    shown = job(RUNNING, checkpoint=checkpoint)
    assert series("unsaved_seconds", shown) == {("ml", "bert"): unsaved_s}
    age = {("ml", "bert"): NOW_S - saved_s} if saved_s is not None else {}
    assert series("checkpoint_age_seconds", shown) == age


def test_a_job_that_waits_has_nothing_to_lose() -> None:
    shown = job(condition("Running", "False", 600), state="Restarting", checkpoint={"lastTime": stamp(60)})
    assert series("unsaved_seconds", shown) == {}
    assert series("checkpoint_age_seconds", shown) == {("ml", "bert"): 3540}


def test_an_ended_job_has_no_checkpoint_to_wait_for() -> None:
    shown = job(RUNNING, state="Completed", checkpoint={"lastTime": stamp(60)}, spec={"checkpoint": {"interval": "1h"}})
    for name in ("checkpoint_age_seconds", "unsaved_seconds", "checkpoint_interval_seconds"):
        assert series(name, shown) == {}


@pytest.mark.parametrize(
    ("checkpoint", "epoch_s", "seconds"),
    [
        ({"interval": "1h30m"}, None, 5400),
        ({"interval": "1h30m", "frequency": 2}, 600, 1200),
        ({"interval": "10m"}, 3600, 600),
        ({"frequency": 2}, 600, 1200),
        ({}, None, None),
        ({"interval": "1h", "enabled": False}, 600, None),
    ],
)
def test_a_job_is_to_save_after_its_interval_or_its_epochs(
    checkpoint: dict[str, Any], epoch_s: float | None, seconds: float | None
) -> None:
    epochs = {"secondsEach": epoch_s} if epoch_s is not None else {}
    expected = {("ml", "bert"): seconds} if seconds is not None else {}
    shown = job(RUNNING, spec={"checkpoint": checkpoint}, epochs=epochs)
    assert series("checkpoint_interval_seconds", shown) == expected


def test_failed_attempts_of_all_classes_are_summed() -> None:
    assert series("failed_attempts", job(RUNNING)) == {("ml", "bert"): 0}
    assert series("failed_attempts", job(RUNNING, restarts={"preemption": 2, "hang": 1})) == {("ml", "bert"): 3}


def test_a_time_that_cannot_be_read_hides_one_series_and_not_all() -> None:
    leap = job(RUNNING, checkpoint={"lastTime": "2016-12-31T23:59:60Z"})
    assert series("checkpoint_age_seconds", leap) == {}
    assert series("unsaved_seconds", leap) == {("ml", "bert"): 3000}
