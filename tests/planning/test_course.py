"""What is done about a TrainingJob next: what is seen, and when → one course."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.planning.trainingjob.classes import Loss
from holdfast.planning.trainingjob.course import Again, Finding, Finish, Go, Over, Park, Remake
from holdfast.planning.trainingjob.observed import Observed
from tests.planning.courses import BOTH, HERE, LOST, course, ended, held, seen
from tests.trainingjobs import at, deleted, failed, owned, running, stamp, workers

# The end


@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_an_ended_job_is_over_whatever_is_seen_of_it(state: str) -> None:
    crashed = (failed(0, 1, at=stamp(50)),)
    for more in (
        {},
        {"workers": workers(), "pods": crashed, "outdated": True},
        {"refusal": "no"},
        {"spec": {"suspend": True}, "queued": True},
    ):
        assert course(seen(state, **more)) == Over()


def test_what_is_refused_fails_at_once() -> None:
    assert ended(seen("Pending", refusal="no such field")) == Finding("Failed", "Refused", "no such field")


@pytest.mark.parametrize("more", [{}, {"outdated": True}, {"spec": {"suspend": True}}, {"fewest": 1}])
def test_a_complete_job_is_completed_even_if_the_spec_changed_at_the_last_moment(more: dict[str, Any]) -> None:
    job = workers(conditions={"Complete": "CompletionsReached"})
    assert ended(seen("Running", workers=job, **more)).state == "Completed"


LIMITED = {"failurePolicy": {"activeDeadlineSeconds": 100}}


@pytest.mark.parametrize("state", ["Running", "Restarting", "Pending", "Initializing", "Suspended"])
def test_a_job_fails_at_its_deadline_in_every_state(state: str) -> None:
    observed = seen(state, spec=LIMITED, status={"startTime": stamp(0)}, workers=workers(), pods=BOTH)
    assert not isinstance(course(observed, 99), Finish)
    assert ended(observed, 100) == Finding(
        "Failed",
        "DeadlineExceeded",
        "the job was not done within activeDeadlineSeconds (100), counted over all attempts",
    )


def test_a_deadline_that_passes_while_the_job_is_suspended_waits_until_it_goes_on() -> None:
    status = {"startTime": stamp(0)}
    asleep = seen("Running", spec={**LIMITED, "suspend": True}, status=status, workers=workers(), pods=BOTH)
    assert course(asleep, 10**6) == Go(suspended=True)


def test_a_deadline_that_was_raised_at_once_holds() -> None:
    spec = {"failurePolicy": {"activeDeadlineSeconds": 200}}
    observed = seen("Running", spec=spec, status={"startTime": stamp(0)}, workers=workers(), pods=BOTH)
    assert course(observed, 150) == Go(suspended=False)


# Broken attempts


def test_a_broken_gang_is_tried_again_at_once_the_first_time_and_after_a_wait_then() -> None:
    broken = seen("Running", workers=workers(), pods=(failed(0, 1, at=stamp(50)), running(1)))
    first = course(broken)
    assert isinstance(first, Again)
    assert first.retry is not None
    assert (first.retry.loss.cause, first.retry.at, first.retry.in_a_row) == ("application", None, 1)
    more = seen("Running", status={"quickRestarts": 2}, workers=workers(), pods=broken.pods)
    later = course(more)
    assert isinstance(later, Again)
    assert later.retry is not None
    assert later.retry.at == at(60 + 20)


def test_a_gang_that_may_not_be_tried_again_ends_the_job() -> None:
    spec = {"failurePolicy": {"restartPolicy": "Never"}}
    broken = seen("Running", spec=spec, workers=workers(), pods=(failed(0, 3, at=stamp(50)),))
    assert ended(broken).reason == "RestartPolicyNever"


def test_a_loss_is_found_in_every_state_in_which_workers_run() -> None:
    for state in ("", "Pending", "Initializing", "Running", "Restarting", "Suspended"):
        broken = seen(state, workers=workers(), pods=(failed(0, 1, at=stamp(50)),))
        assert isinstance(course(broken), Again)


def test_an_elastic_gang_loses_workers_and_goes_on() -> None:
    pods = (failed(0, 1, at=stamp(50)), deleted(running(1), asked=50))
    assert course(seen("Running", fewest=1, workers=workers(), pods=pods)) == Go(suspended=False)
    # Its Job says first that it will fail.
    ending = workers(conditions={"FailureTarget": "BackoffLimitExceeded"})
    assert course(seen("Running", fewest=1, workers=ending, pods=pods)) == Go(suspended=False)


def test_an_elastic_job_that_failed_ends_with_its_own_reason_and_the_worker_that_broke() -> None:
    job = workers(conditions={"Failed": "BackoffLimitExceeded"})
    found = ended(seen("Running", fewest=1, workers=job, pods=(failed(1, 7, at=stamp(50)),)))
    assert found == Finding("Failed", "BackoffLimitExceeded", "worker 1 on gpu-3 exited with code 7 (as told)")


def test_an_elastic_job_that_was_deleted_is_made_again_in_the_same_attempt() -> None:
    assert course(seen("Running", fewest=1)) == Go(suspended=False)


def test_a_changed_spec_makes_a_new_attempt_of_what_has_run() -> None:
    outdated = seen("Running", status={"startTime": stamp(0)}, workers=workers(), pods=BOTH, outdated=True)
    assert course(outdated) == Again(None)


def test_a_changed_spec_makes_the_job_anew_if_it_never_started() -> None:
    assert course(seen("Pending", workers=workers(suspend=True), outdated=True)) == Remake()


def test_a_loss_counts_although_the_spec_was_changed() -> None:
    broken = seen(
        "Running",
        status={"startTime": stamp(0)},
        workers=workers(),
        pods=(failed(0, 1, at=stamp(50)),),
        outdated=True,
    )
    found = course(broken)
    assert isinstance(found, Again)
    assert found.retry is not None


# The attempt before

OLD = workers(name="bert-training", conditions={"FailureTarget": "BackoffLimitExceeded"})
STOPPING = owned(deleted(running(0), asked=50, grace_s=5), OLD)


def test_the_next_attempt_waits_for_the_workers_of_the_one_before_and_goes_on_saying_why_it_restarts() -> None:
    status = {"message": "worker 1 broke; starting again at once"}
    pods = (STOPPING, owned(running(1), OLD))
    found = held(seen("Restarting", earlier=(OLD,), other_pods=pods, nodes=HERE, status=status))
    assert found == Finding("Restarting", "StoppingWorkers", "worker 1 broke; starting again at once")


def test_who_can_not_be_reached_is_named() -> None:
    found = held(seen("Restarting", earlier=(OLD,), other_pods=(STOPPING, owned(running(1), OLD)), nodes=LOST))
    assert found == Finding(
        "Restarting",
        "StoppingWorkers",
        "worker 0 on gpu-3 can't be reached: waiting a while in case it is still running",
    )


def test_a_long_list_of_workers_is_cut_and_goes_by_number() -> None:
    pods = tuple(owned(deleted(running(index), asked=50, grace_s=5), OLD) for index in reversed(range(12)))
    found = held(seen("Restarting", other_pods=pods, nodes=LOST))
    assert found.message.startswith(
        "worker 0 on gpu-3, worker 1 on gpu-3, worker 2 on gpu-3 and 9 more can't be reached"
    )


def test_a_worker_that_can_not_be_reached_is_given_up_at_its_time() -> None:
    observed = seen("Restarting", earlier=(OLD,), other_pods=(STOPPING,), nodes=LOST)
    assert held(observed, 114).reason == "StoppingWorkers"
    assert course(observed, 115) == Go(suspended=False)


def test_an_old_job_that_may_still_make_pods_is_waited_for() -> None:
    observed = seen("Restarting", earlier=(workers(),), other_pods=())
    assert held(observed).reason == "StoppingWorkers"
    all_made = tuple(owned(failed(index, 1, at=stamp(50)), workers()) for index in range(2))
    assert course(structs.replace(observed, other_pods=all_made)) == Go(suspended=False)


def test_the_wait_between_two_tries_is_kept_and_told() -> None:
    status = {"nextRetryTime": stamp(80), "failureReason": "worker 0 broke"}
    observed = seen("Restarting", status=status)
    assert held(seen("Restarting", status={"nextRetryTime": stamp(120), "quickRestarts": 4})).message == (
        f"next try at {stamp(120)} (in 40 s)"
    )
    assert held(observed, 79) == Finding("Restarting", "BackingOff", f"worker 0 broke; next try at {stamp(80)}")
    assert course(observed, 80) == Go(suspended=False)
    assert held(seen("Restarting", status={"nextRetryTime": stamp(80)})).message == f"next try at {stamp(80)}"


def test_a_job_that_is_suspended_meanwhile_does_not_wait_for_its_next_try() -> None:
    status = {"nextRetryTime": stamp(10**6)}
    assert course(seen("Restarting", spec={"suspend": True}, status=status)) == Go(suspended=True)
    assert course(seen("Restarting", spec={"suspend": True}, status=status, queued=True)) == Park()


def test_a_suspended_job_starts_nobody_and_so_waits_for_nobody() -> None:
    for more in ({"other_pods": (STOPPING,)}, {"earlier": (workers(),)}, {"other_pods": (running(0),), "nodes": LOST}):
        assert course(seen("Restarting", spec={"suspend": True}, **more)) == Go(suspended=True)


def test_what_has_started_is_not_stopped_by_a_worker_that_comes_back() -> None:
    observed = seen("Running", workers=workers(name="bert-training-1"), pods=BOTH, other_pods=(running(0),))
    assert course(observed) == Go(suspended=False)


# What the workers tell, and what their silence means

TARGET = {"successPolicy": {"targetAccuracy": 0.9}, "checkpoint": {"storage": {"type": "pvc"}}}
REACHED = {"attempt": 0, "done": 3, "position": 3.0, "goal": "TargetReached", "goalTime": stamp(0)}
HANG = Loss(cause="hang", message="no progress was reported")
SILENT = Loss(cause="infrastructure", message="worker 0 was lost")


def reached(
    state: str = "Running", *, saved: int | None = None, spec: dict[str, Any] | None = None, **more: Any
) -> Observed:
    checkpoint = {"checkpoint": {"last": f"checkpoint-epoch-{saved}", "lastEpoch": saved}} if saved else {}
    status = {"epochs": REACHED, "startTime": stamp(0), **checkpoint, **more.pop("status", {})}
    observed = {"workers": workers(), "pods": BOTH, **more}
    return seen(state, spec={**TARGET, **(spec or {})}, status=status, **observed)


@pytest.mark.parametrize(
    ("observed", "now"),
    [
        (reached(saved=3), 1),
        (reached(workers=workers(conditions={"Complete": "CompletionsReached"})), 1),
        (reached(pods=(running(0), failed(1, 1, at=stamp(1)))), 1),
        (reached(pods=(running(0), deleted(running(1), asked=1))), 1),
        (reached(workers=None, pods=()), 1),
        (reached(unheard=SILENT), 1),
        (reached(unheard=HANG), 1),
        (reached(fewest=1, workers=workers(conditions={"Failed": "BackoffLimitExceeded"})), 1),
        (reached(spec={"failurePolicy": {"activeDeadlineSeconds": 10}}), 10),
        (reached("Suspended", spec={"suspend": True}, workers=workers(suspend=True), pods=()), 1),
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
def test_a_goal_is_a_success_once_the_model_is_saved_or_is_not_going_to_be(observed: Observed, now: float) -> None:
    finding = ended(observed, now)
    assert (finding.state, finding.reason) == ("Completed", "TargetReached")
    assert finding.message == "the accuracy reached successPolicy.targetAccuracy 0.9 in epoch 3"


@pytest.mark.parametrize(
    ("observed", "now"),
    [(reached(), 59), (reached(saved=2), 59), (reached("Initializing"), 59), (reached(fewest=1), 1)],
    ids=["not-saved", "an-earlier-one", "not-all-seen-to-run", "elastic"],
)
def test_a_training_that_has_reached_its_goal_goes_on_until_it_is_saved(observed: Observed, now: float) -> None:
    assert course(observed, now) == Go(suspended=False)


@pytest.mark.parametrize("loss", [SILENT, HANG], ids=["silent", "hung"])
def test_what_is_not_heard_breaks_an_attempt_like_what_is_seen(loss: Loss) -> None:
    again = course(seen("Running", workers=workers(), pods=BOTH, unheard=loss))
    assert isinstance(again, Again)
    assert again.retry is not None
    assert again.retry.loss == loss


@pytest.mark.parametrize(("loss", "is_charged"), [(SILENT, False), (HANG, True)], ids=["silent", "hung"])
def test_a_hang_is_charged_and_a_silent_death_is_free(loss: Loss, is_charged: bool) -> None:
    spec = {"failurePolicy": {"backoffLimit": 1, "restartPolicy": "OnFailure"}}
    status = {"restarts": {"application": 1}}
    observed = seen("Running", spec=spec, status=status, workers=workers(), pods=BOTH, unheard=loss)
    if is_charged:
        assert ended(observed).reason == "BackoffLimitExceeded"
    else:
        assert isinstance(course(observed), Again)


def test_what_is_seen_explains_more_than_what_is_not_heard() -> None:
    crashed = (running(0), failed(1, 7, at=stamp(50)))
    again = course(seen("Running", workers=workers(), pods=crashed, unheard=SILENT))
    assert isinstance(again, Again)
    assert again.retry is not None
    assert again.retry.loss.exit_code == 7


def test_a_hang_breaks_an_elastic_attempt_too() -> None:
    assert isinstance(course(seen("Running", workers=workers(), pods=BOTH, fewest=1, unheard=HANG)), Again)


def test_workers_that_have_not_started_are_made_anew_when_they_would_go_where_a_node_was_lost() -> None:
    waiting = workers(suspend=True)
    assert course(seen("Restarting", workers=waiting, misplaced=True)) == Remake()
    assert course(seen("Restarting", workers=waiting, misplaced=False)) == Go(suspended=False)


def test_a_worker_given_up_with_its_node_holds_up_nobody() -> None:
    alone = structs.replace(running(0), metadata=structs.replace(running(0).metadata, uid="a"))
    observed = seen("Restarting", status={"restartCount": 1}, other_pods=(alone,))
    assert held(observed).reason == "StoppingWorkers"
    assert course(structs.replace(observed, given_up=frozenset(("a",)))) == Go(suspended=False)
