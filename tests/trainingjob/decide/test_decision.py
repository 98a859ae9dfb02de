"""What is done about a TrainingJob next: what is seen, and when → one course."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.decisions import CleanUp, Finish, StateReason
from holdfast.pods.failure import WorkerFailure
from holdfast.trainingjob.decide.decision import DeleteQueuedJob, EnsureJob, RecreateJob, StartNewAttempt
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from tests.trainingjob.decide.decisions import BOTH, HERE, LOST, course, ended, held, seen
from tests.trainingjobs import at, deleted, failed, owned, running, stamp, workers

# The end


@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_an_ended_job_is_over_whatever_is_seen_of_it(state: str) -> None:
    crashed = (failed(0, 1, at=stamp(50)),)
    for more in (
        {},
        {"current_job": workers(), "pods": crashed, "spec_changed": True},
        {"rejected_reason": "no"},
        {"spec": {"suspend": True}, "queued": True},
    ):
        assert course(seen(state, **more)) == CleanUp()


def test_what_is_refused_fails_at_once() -> None:
    assert ended(seen("Pending", rejected_reason="no such field")) == StateReason("Failed", "Refused", "no such field")


@pytest.mark.parametrize("more", [{}, {"spec_changed": True}, {"spec": {"suspend": True}}, {"min_workers": 1}])
def test_a_complete_job_is_completed_even_if_the_spec_changed_at_the_last_moment(more: dict[str, Any]) -> None:
    job = workers(conditions={"Complete": "CompletionsReached"})
    assert ended(seen("Running", current_job=job, **more)).state == "Completed"


LIMITED = {"failurePolicy": {"activeDeadlineSeconds": 100}}


@pytest.mark.parametrize("state", ["Running", "Restarting", "Pending", "Initializing", "Suspended"])
def test_a_job_fails_at_its_deadline_in_every_state(state: str) -> None:
    observed = seen(state, spec=LIMITED, status={"startTime": stamp(0)}, current_job=workers(), pods=BOTH)
    assert not isinstance(course(observed, 99), Finish)
    assert ended(observed, 100) == StateReason(
        "Failed",
        "DeadlineExceeded",
        "the job was not done within activeDeadlineSeconds (100), counted over all attempts",
    )


def test_a_deadline_that_passes_while_the_job_is_suspended_waits_until_it_goes_on() -> None:
    status = {"startTime": stamp(0)}
    asleep = seen("Running", spec={**LIMITED, "suspend": True}, status=status, current_job=workers(), pods=BOTH)
    assert course(asleep, 10**6) == EnsureJob(suspended=True)


def test_a_deadline_that_was_raised_at_once_holds() -> None:
    spec = {"failurePolicy": {"activeDeadlineSeconds": 200}}
    observed = seen("Running", spec=spec, status={"startTime": stamp(0)}, current_job=workers(), pods=BOTH)
    assert course(observed, 150) == EnsureJob(suspended=False)


# Broken attempts


def test_a_broken_gang_is_tried_again_at_once_the_first_time_and_after_a_wait_then() -> None:
    broken = seen("Running", current_job=workers(), pods=(failed(0, 1, at=stamp(50)), running(1)))
    first = course(broken)
    assert isinstance(first, StartNewAttempt)
    assert first.retry is not None
    assert (first.retry.failure.cause, first.retry.at, first.retry.consecutive) == ("application", None, 1)
    more = seen("Running", status={"quickRestarts": 2}, current_job=workers(), pods=broken.pods)
    later = course(more)
    assert isinstance(later, StartNewAttempt)
    assert later.retry is not None
    assert later.retry.at == at(60 + 20)


def test_a_gang_that_may_not_be_tried_again_ends_the_job() -> None:
    spec = {"failurePolicy": {"restartPolicy": "Never"}}
    broken = seen("Running", spec=spec, current_job=workers(), pods=(failed(0, 3, at=stamp(50)),))
    assert ended(broken).reason == "RestartPolicyNever"


def test_a_loss_is_found_in_every_state_in_which_workers_run() -> None:
    for state in ("", "Pending", "Initializing", "Running", "Restarting", "Suspended"):
        broken = seen(state, current_job=workers(), pods=(failed(0, 1, at=stamp(50)),))
        assert isinstance(course(broken), StartNewAttempt)


def test_an_elastic_gang_loses_workers_and_goes_on() -> None:
    pods = (failed(0, 1, at=stamp(50)), deleted(running(1), asked=50))
    assert course(seen("Running", min_workers=1, current_job=workers(), pods=pods)) == EnsureJob(suspended=False)
    # Its Job says first that it will fail.
    ending = workers(conditions={"FailureTarget": "BackoffLimitExceeded"})
    assert course(seen("Running", min_workers=1, current_job=ending, pods=pods)) == EnsureJob(suspended=False)


def test_an_elastic_job_that_failed_ends_with_its_own_reason_and_the_worker_that_broke() -> None:
    job = workers(conditions={"Failed": "BackoffLimitExceeded"})
    found = ended(seen("Running", min_workers=1, current_job=job, pods=(failed(1, 7, at=stamp(50)),)))
    assert found == StateReason("Failed", "BackoffLimitExceeded", "worker 1 on gpu-3 exited with code 7 (as told)")


def test_an_elastic_job_that_was_deleted_is_made_again_in_the_same_attempt() -> None:
    assert course(seen("Running", min_workers=1)) == EnsureJob(suspended=False)


def test_a_changed_spec_makes_a_new_attempt_of_what_has_run() -> None:
    outdated = seen("Running", status={"startTime": stamp(0)}, current_job=workers(), pods=BOTH, spec_changed=True)
    assert course(outdated) == StartNewAttempt(None)


def test_workers_of_an_old_spec_have_run_even_if_the_status_does_not_show_it_yet() -> None:
    assert course(seen("Initializing", current_job=workers(), pods=BOTH, spec_changed=True)) == StartNewAttempt(None)


def test_a_changed_spec_makes_the_job_anew_if_it_never_started() -> None:
    assert course(seen("Pending", current_job=workers(suspend=True), spec_changed=True)) == RecreateJob()


def test_a_loss_counts_although_the_spec_was_changed() -> None:
    broken = seen(
        "Running",
        status={"startTime": stamp(0)},
        current_job=workers(),
        pods=(failed(0, 1, at=stamp(50)),),
        spec_changed=True,
    )
    found = course(broken)
    assert isinstance(found, StartNewAttempt)
    assert found.retry is not None


# The attempt before

OLD = workers(name="bert-training", conditions={"FailureTarget": "BackoffLimitExceeded"})
STOPPING = owned(deleted(running(0), asked=50, grace_s=5), OLD)


def test_the_next_attempt_waits_for_the_workers_of_the_one_before_and_goes_on_saying_why_it_restarts() -> None:
    status = {"message": "worker 1 broke; starting again at once"}
    pods = (STOPPING, owned(running(1), OLD))
    found = held(seen("Restarting", old_jobs=(OLD,), old_pods=pods, nodes=HERE, status=status))
    assert found == StateReason("Restarting", "StoppingWorkers", "worker 1 broke; starting again at once")


def test_who_can_not_be_reached_is_named() -> None:
    found = held(seen("Restarting", old_jobs=(OLD,), old_pods=(STOPPING, owned(running(1), OLD)), nodes=LOST))
    assert found == StateReason(
        "Restarting",
        "StoppingWorkers",
        "worker 0 on gpu-3 can't be reached: waiting a while in case it is still running",
    )


def test_a_long_list_of_workers_is_cut_and_goes_by_number() -> None:
    pods = tuple(owned(deleted(running(index), asked=50, grace_s=5), OLD) for index in reversed(range(12)))
    found = held(seen("Restarting", old_pods=pods, nodes=LOST))
    assert found.message.startswith(
        "worker 0 on gpu-3, worker 1 on gpu-3, worker 2 on gpu-3 and 9 more can't be reached"
    )


def test_a_worker_that_can_not_be_reached_is_given_up_at_its_time() -> None:
    observed = seen("Restarting", old_jobs=(OLD,), old_pods=(STOPPING,), nodes=LOST)
    assert held(observed, 114).reason == "StoppingWorkers"
    assert course(observed, 115) == EnsureJob(suspended=False)


def test_an_old_job_that_may_still_make_pods_is_waited_for() -> None:
    observed = seen("Restarting", old_jobs=(workers(),), old_pods=())
    assert held(observed).reason == "StoppingWorkers"
    all_made = tuple(owned(failed(index, 1, at=stamp(50)), workers()) for index in range(2))
    assert course(structs.replace(observed, old_pods=all_made)) == EnsureJob(suspended=False)


def test_the_wait_between_two_tries_is_kept_and_told() -> None:
    status = {"nextRetryTime": stamp(80), "failureReason": "worker 0 broke"}
    observed = seen("Restarting", status=status)
    assert held(seen("Restarting", status={"nextRetryTime": stamp(120), "quickRestarts": 4})).message == (
        f"next try at {stamp(120)} (in 40 s)"
    )
    assert held(observed, 79) == StateReason("Restarting", "BackingOff", f"worker 0 broke; next try at {stamp(80)}")
    assert course(observed, 80) == EnsureJob(suspended=False)
    assert held(seen("Restarting", status={"nextRetryTime": stamp(80)})).message == f"next try at {stamp(80)}"


def test_a_job_that_is_suspended_meanwhile_does_not_wait_for_its_next_try() -> None:
    status = {"nextRetryTime": stamp(10**6)}
    assert course(seen("Restarting", spec={"suspend": True}, status=status)) == EnsureJob(suspended=True)
    assert course(seen("Restarting", spec={"suspend": True}, status=status, queued=True)) == DeleteQueuedJob()


def test_a_suspended_job_starts_nobody_and_so_waits_for_nobody() -> None:
    for more in ({"old_pods": (STOPPING,)}, {"old_jobs": (workers(),)}, {"old_pods": (running(0),), "nodes": LOST}):
        assert course(seen("Restarting", spec={"suspend": True}, **more)) == EnsureJob(suspended=True)


def test_what_has_started_is_not_stopped_by_a_worker_that_comes_back() -> None:
    observed = seen("Running", current_job=workers(name="bert-training-1"), pods=BOTH, old_pods=(running(0),))
    assert course(observed) == EnsureJob(suspended=False)


# What the workers tell, and what their silence means

TARGET = {"successPolicy": {"targetAccuracy": 0.9}, "checkpoint": {"storage": {"type": "pvc"}}}
REACHED = {"attempt": 0, "done": 3, "position": 3.0, "goal": "TargetReached", "goalTime": stamp(0)}
HANG = WorkerFailure(cause="hang", message="no progress was reported")
SILENT = WorkerFailure(cause="infrastructure", message="worker 0 was lost")


def reached(
    state: str = "Running", *, saved: int | None = None, spec: dict[str, Any] | None = None, **more: Any
) -> TrainingJobSnapshot:
    checkpoint = {"checkpoint": {"last": f"checkpoint-epoch-{saved}", "lastEpoch": saved}} if saved else {}
    status = {"epochs": REACHED, "startTime": stamp(0), **checkpoint, **more.pop("status", {})}
    observed = {"current_job": workers(), "pods": BOTH, **more}
    return seen(state, spec={**TARGET, **(spec or {})}, status=status, **observed)


@pytest.mark.parametrize(
    ("observed", "now"),
    [
        (reached(saved=3), 1),
        (reached(current_job=workers(conditions={"Complete": "CompletionsReached"})), 1),
        (reached(pods=(running(0), failed(1, 1, at=stamp(1)))), 1),
        (reached(pods=(running(0), deleted(running(1), asked=1))), 1),
        (reached(current_job=None, pods=()), 1),
        (reached(liveness_failure=SILENT), 1),
        (reached(liveness_failure=HANG), 1),
        (reached(min_workers=1, current_job=workers(conditions={"Failed": "BackoffLimitExceeded"})), 1),
        (reached(spec={"failurePolicy": {"activeDeadlineSeconds": 10}}), 10),
        (reached("Suspended", spec={"suspend": True}, current_job=workers(suspend=True), pods=()), 1),
        (reached(spec={"checkpoint": {"enabled": False}}), 1),
        (reached(), 60),
        (reached(saved=2), 60),
    ],
    ids=[
        "saved",
        "succeeded",
        "failed",
        "deleted",
        "job-gone",
        "silent",
        "hung",
        "elastic-failed",
        "deadline",
        "suspended",
        "not-saving",
        "too-late",
        "too-late-for-another",
    ],
)
def test_a_goal_is_a_success_once_the_model_is_saved_or_is_not_going_to_be(
    observed: TrainingJobSnapshot, now: float
) -> None:
    finding = ended(observed, now)
    assert (finding.state, finding.reason) == ("Completed", "TargetReached")
    assert finding.message == "the accuracy reached successPolicy.targetAccuracy 0.9 in epoch 3"


@pytest.mark.parametrize(
    ("observed", "now"),
    [(reached(), 59), (reached(saved=2), 59), (reached("Initializing"), 59), (reached(min_workers=1), 1)],
    ids=["not-saved", "an-earlier-one", "not-all-seen-to-run", "elastic"],
)
def test_a_training_that_has_reached_its_goal_goes_on_until_it_is_saved(
    observed: TrainingJobSnapshot, now: float
) -> None:
    assert course(observed, now) == EnsureJob(suspended=False)


@pytest.mark.parametrize("loss", [SILENT, HANG], ids=["silent", "hung"])
def test_what_is_not_heard_breaks_an_attempt_like_what_is_seen(loss: WorkerFailure) -> None:
    again = course(seen("Running", current_job=workers(), pods=BOTH, liveness_failure=loss))
    assert isinstance(again, StartNewAttempt)
    assert again.retry is not None
    assert again.retry.failure == loss


@pytest.mark.parametrize(("loss", "is_charged"), [(SILENT, False), (HANG, True)], ids=["silent", "hung"])
def test_a_hang_is_charged_and_a_silent_death_is_free(loss: WorkerFailure, is_charged: bool) -> None:
    spec = {"failurePolicy": {"backoffLimit": 1, "restartPolicy": "OnFailure"}}
    status = {"restarts": {"application": 1}}
    observed = seen("Running", spec=spec, status=status, current_job=workers(), pods=BOTH, liveness_failure=loss)
    if is_charged:
        assert ended(observed).reason == "BackoffLimitExceeded"
    else:
        assert isinstance(course(observed), StartNewAttempt)


def test_what_is_seen_explains_more_than_what_is_not_heard() -> None:
    crashed = (running(0), failed(1, 7, at=stamp(50)))
    again = course(seen("Running", current_job=workers(), pods=crashed, liveness_failure=SILENT))
    assert isinstance(again, StartNewAttempt)
    assert again.retry is not None
    assert again.retry.failure.exit_code == 7


def test_a_hang_breaks_an_elastic_attempt_too() -> None:
    assert isinstance(
        course(seen("Running", current_job=workers(), pods=BOTH, min_workers=1, liveness_failure=HANG)), StartNewAttempt
    )


def test_workers_that_have_not_started_are_made_anew_when_they_would_go_where_a_node_was_lost() -> None:
    waiting = workers(suspend=True)
    assert course(seen("Restarting", current_job=waiting, avoids_wrong_nodes=True)) == RecreateJob()
    assert course(seen("Restarting", current_job=waiting, avoids_wrong_nodes=False)) == EnsureJob(suspended=False)


def test_a_worker_given_up_with_its_node_holds_up_nobody() -> None:
    alone = structs.replace(running(0), metadata=structs.replace(running(0).metadata, uid="a"))
    observed = seen("Restarting", status={"restartCount": 1}, old_pods=(alone,))
    assert held(observed).reason == "StoppingWorkers"
    assert course(structs.replace(observed, lost_pods=frozenset(("a",)))) == EnsureJob(suspended=False)
