"""Whatever is seen of a TrainingJob in whatever order: what always holds, and what a crash in between leaves."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import Job, Pod
from holdfast.api.schema.validation import validate_object
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.decisions import CleanUp, Finish, Wait
from holdfast.scheduling.gang import AdmissionDecision
from holdfast.trainingjob.decide.decision import (
    Action,
    DeleteQueuedJob,
    EnsureJob,
    RecreateJob,
    StartNewAttempt,
    decide,
    requeue_at,
)
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES, TIMING, TrainingJobSnapshot
from holdfast.trainingjob.decide.status import CONDITION_OF, next_status
from tests.trainingjobs import (
    at,
    deleted,
    disrupted,
    failed,
    node,
    owned,
    running,
    stamp,
    training_job,
    unschedulable,
    worker,
    workers,
)


def shapes(index: int) -> list[Pod]:
    """What one worker may look like."""
    return [
        worker(index, {"phase": "Pending"}),
        unschedulable(index, "0/3 nodes are available"),
        running(index),
        running(index, node="gpu-gone"),
        worker(index, {"phase": "Succeeded"}, node="gpu-3"),
        failed(index, 1, at=stamp(40), message="x" * 5000),
        failed(index, 137, at=stamp(40), reason="OOMKilled"),
        deleted(running(index), asked=30),
        deleted(running(index, node="gpu-silent"), asked=30),
        deleted(failed(index, 143, at=stamp(41), node="gpu-gone"), asked=30),
        disrupted(deleted(running(index), asked=30), "PreemptionByScheduler", "y" * 40_000),
        worker(index, {"phase": "Failed", "reason": "Evicted"}, node="gpu-spot"),
    ]


NODES = {
    "gpu-3": node(),
    "gpu-silent": node("gpu-silent", ready=False),
    "gpu-spot": node("gpu-spot", labels={"karpenter.sh/capacity-type": "spot"}),
}
SPECS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.booleans(),
        "numWorkers": st.integers(1, 3),
        "failurePolicy": st.fixed_dictionaries(
            {},
            optional={
                "restartPolicy": st.sampled_from(["OnFailure", "Always", "Never", "ExitCode"]),
                "backoffLimit": st.integers(0, 2),
                "activeDeadlineSeconds": st.integers(1, 2000),
            },
        ),
        "ttlSecondsAfterFinished": st.integers(0, 100),
        "hyperparameters": st.just({"epochs": 5}),
    },
)
PODS = [st.sampled_from(shapes(index)) for index in range(3)]
POD_SETS: st.SearchStrategy[tuple[Pod, ...]] = st.one_of(*(st.tuples(*PODS[:size]) for size in range(4)))
JOBS = st.builds(
    lambda status, conditions, suspend, gone: _job(status, conditions, suspend=suspend, gone=gone),
    st.fixed_dictionaries(
        {"active": st.integers(0, 3), "ready": st.integers(0, 3), "succeeded": st.integers(0, 3)},
        optional={"startTime": st.sampled_from(["", stamp(20)]), "completionTime": st.just(stamp(50))},
    ),
    st.sampled_from(
        [
            {},
            {},
            {},
            {"Complete": "CompletionsReached"},
            {"Failed": "BackoffLimitExceeded"},
            {"FailureTarget": "BackoffLimitExceeded"},
            {"Suspended": "JobSuspended"},
        ]
    ),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
VERDICTS = st.sampled_from(
    [
        None,
        AdmissionDecision(admitted=True),
        AdmissionDecision(admitted=False, message="needs 2 × 8 GPUs; 1 node has 8 free"),
    ]
)
SIGHTS = st.builds(
    lambda spec, job, earlier, pods, others, verdict, flags, obstacle, refusal: TrainingJobSnapshot(
        job=training_job(spec),
        current_job=job,
        old_jobs=earlier,
        pods=tuple(owned(pod, job) for pod in pods) if job is not None else (),
        old_pods=others,
        nodes=NODES,
        admission=verdict,
        gpus_per_worker=8,
        spec_changed=job is not None and flags[0],
        queued=flags[1],
        min_workers=int(flags[2]),
        blocked_by=obstacle,
        rejected_reason=refusal,
    ),
    SPECS,
    st.none() | JOBS,
    st.sampled_from([(), (), (workers(name="bert-training-old"),)]),
    POD_SETS,
    POD_SETS,
    VERDICTS,
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from(["", "", "Service bert-master is taken"]),
    st.sampled_from(["", "", "", "", "no such field " * 5000]),
)
# How long until the next look; a reconcile may come in the middle of a second.
STEPS = st.lists(st.tuples(SIGHTS, st.floats(0, 700)), min_size=1, max_size=8)


def _job(status: dict[str, Any], conditions: dict[str, str], *, suspend: bool, gone: bool) -> Job:
    job = workers(status=status, conditions=conditions, suspend=suspend)
    return deleted(job, asked=30, grace_s=0) if gone else job


def with_status(observed: TrainingJobSnapshot, status: TrainingJobStatus) -> TrainingJobSnapshot:
    """What is seen of the same children with this status: after a restart those of before are an old attempt's."""
    job = structs.replace(observed.job, status=status)
    if status.restart_count == observed.status.restart_count:
        return structs.replace(observed, job=job)
    old = (observed.current_job,) if observed.current_job is not None else ()
    return structs.replace(
        observed,
        job=job,
        current_job=None,
        pods=(),
        old_jobs=(*observed.old_jobs, *old),
        old_pods=(*observed.old_pods, *observed.pods),
        spec_changed=False,
        avoids_wrong_nodes=False,
        saving_pods=frozenset(),
        liveness_failure=None,
        pod_events={},
        job_event="",
    )


def taken(observed: TrainingJobSnapshot, course: Action) -> TrainingJobSnapshot:
    """What is seen once the course is taken: a Job that must go is seen no more, one that is held back is suspended."""
    job = observed.current_job
    match course:
        case RecreateJob() | DeleteQueuedJob():
            return structs.replace(observed, current_job=None)
        case EnsureJob(suspended=True) if job is not None and not observed.queued and not observed.blocked_by:
            return structs.replace(
                observed, current_job=structs.replace(job, spec=structs.replace(job.spec, suspend=True))
            )
    return observed


def look(observed: TrainingJobSnapshot, now: datetime) -> tuple[Action, TrainingJobStatus]:
    course = decide(observed, now, TIMING)
    return course, next_status(taken(observed, course), course, now)


def followed(observed: TrainingJobSnapshot, now: datetime) -> TrainingJobSnapshot:
    """What is seen after the course was taken and the status written."""
    course, status = look(observed, now)
    return with_status(taken(observed, course), status)


def lived(steps: Iterable[tuple[TrainingJobSnapshot, float]]) -> Iterable[tuple[TrainingJobSnapshot, datetime]]:
    """Each sight with the status that the ones before it have led to."""
    status: TrainingJobStatus | None = None
    now = at(20)
    for sight, passed in steps:
        now += timedelta(seconds=passed)
        observed = structs.replace(sight, job=structs.replace(sight.job, status=status))
        yield observed, now
        status = look(observed, now)[1]
        if status == TrainingJobStatus():
            status = None


@given(STEPS)
def test_a_second_look_at_the_same_moment_changes_nothing_more(steps: list[tuple[TrainingJobSnapshot, float]]) -> None:
    for observed, now in lived(steps):
        seen = followed(observed, now)
        if seen.status.restart_count != observed.status.restart_count:
            # The number is written first; then the course is taken that follows from it.
            assert not isinstance(decide(seen, now, TIMING), StartNewAttempt)
            seen = followed(seen, now)
        if seen.status.start_time != observed.status.start_time:
            seen = followed(seen, now)  # the start is learned with one look, and with the next that time is up
        assert look(seen, now)[1] == seen.status


@given(STEPS)
def test_restarts_are_only_ever_added_one_by_one_each_with_its_class(
    steps: list[tuple[TrainingJobSnapshot, float]],
) -> None:
    for observed, now in lived(steps):
        course, status = look(observed, now)
        old = observed.status
        assert status.restart_count - old.restart_count == isinstance(course, StartNewAttempt)
        by_class = sum(_counts(status)) - sum(_counts(old))
        assert by_class == (isinstance(course, StartNewAttempt) and course.retry is not None)
        assert all(new >= before for new, before in zip(_counts(status), _counts(old), strict=True))


def _counts(status: TrainingJobStatus) -> tuple[int, ...]:
    return structs.astuple(status.restarts) if status.restarts is not None else (0,) * 5


@given(STEPS)
def test_whoever_has_ended_stays_as_it_ended(steps: list[tuple[TrainingJobSnapshot, float]]) -> None:
    for observed, now in lived(steps):
        if observed.finished:
            assert look(observed, now) == (CleanUp(), observed.status)


@given(STEPS)
def test_a_moment_to_wake_at_is_always_ahead(steps: list[tuple[TrainingJobSnapshot, float]]) -> None:
    for observed, now in lived(steps):
        due = requeue_at(observed, now, TIMING)
        assert due is None or due > now


@given(STEPS)
def test_waking_at_the_told_moments_misses_no_change_that_time_alone_brings(
    steps: list[tuple[TrainingJobSnapshot, float]],
) -> None:
    observed, now = list(lived(steps))[-1]
    settled = followed(followed(followed(observed, now), now), now)
    due = requeue_at(settled, now, TIMING)
    until = due - timedelta(microseconds=1) if due is not None else now + timedelta(days=9)
    assert look(settled, until)[1] == settled.status


@given(STEPS)
def test_one_condition_holds_in_each_state_that_has_one(steps: list[tuple[TrainingJobSnapshot, float]]) -> None:
    for observed, now in lived(steps):
        status = look(observed, now)[1]
        held = {each.type for each in status.conditions if each.status == "True"} - {"Created"}
        assert held == ({CONDITION_OF[status.state]} if status.state in CONDITION_OF else set())
        assert len({each.type for each in status.conditions}) == len(status.conditions)


@given(STEPS)
@settings(max_examples=40)
def test_the_api_server_would_take_every_status(steps: list[tuple[TrainingJobSnapshot, float]]) -> None:
    for observed, now in lived(steps):
        before = document(observed.job)
        after = document(structs.replace(observed.job, status=look(observed, now)[1]))
        assert validate_object(after, before, status=True).get("status", {}) == after.get("status", {})


def document(job: TrainingJob) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(job))
    return {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob", **body}


@given(STEPS)
def test_what_an_ended_or_waiting_job_shows_agrees_with_its_state(
    steps: list[tuple[TrainingJobSnapshot, float]],
) -> None:
    for observed, now in lived(steps):
        status = look(observed, now)[1]
        assert (status.completion_time is not None) == (status.state in FINISHED_STATES)
        if status.state == "Failed":
            assert status.failure_reason == status.message
        if status.next_retry_time is not None:
            assert status.state in ("Restarting", "Pending")
        if status.state in FINISHED_STATES:
            assert status.resources is not None
            assert status.resources.gpus == 0


# Crashes


BREAKS: tuple[tuple[str, tuple[Pod, ...]], ...] = (
    ("a crash", (failed(0, 1, at=stamp(50)), running(1))),
    ("out of memory", (failed(0, 137, at=stamp(50), reason="OOMKilled"), running(1))),
    ("a preemption", (disrupted(deleted(running(0), asked=50), "PreemptionByScheduler"), running(1))),
    ("a dead node", (deleted(running(0, node="gpu-silent"), asked=30), running(1))),
    ("a deletion", (deleted(running(0), asked=50), running(1))),
)


def broken(pods: tuple[Pod, ...], **status: Any) -> TrainingJobSnapshot:
    job = workers(status={"active": 2, "ready": 2})
    body = {"state": "Running", "startTime": stamp(0), **status}
    return TrainingJobSnapshot(
        job=training_job(status=body),
        current_job=job,
        pods=tuple(owned(pod, job) for pod in pods),
        nodes=NODES,
        admission=AdmissionDecision(admitted=True),
    )


@pytest.mark.parametrize("pods", [pods for _, pods in BREAKS], ids=[name for name, _ in BREAKS])
@pytest.mark.parametrize("quick_restarts", [0, 3])
def test_a_crash_after_the_restart_was_written_never_counts_the_same_loss_twice(
    pods: tuple[Pod, ...], quick_restarts: int
) -> None:
    observed = broken(pods, quickRestarts=quick_restarts)
    course, status = look(observed, at(60))
    assert isinstance(course, StartNewAttempt)
    # The operator dies here and comes back at any time: the old Job and its pods are all still there.
    seen = with_status(observed, status)
    for later in (60, 61, 119, 120, 600, 10**6):
        following, shown = look(seen, at(later))
        assert not isinstance(following, StartNewAttempt | Finish)
        assert shown.restart_count == 1
        # Somebody of the old attempt still runs: nothing of the new one is made.
        assert isinstance(following, Wait)


@pytest.mark.parametrize("pods", [pods for _, pods in BREAKS], ids=[name for name, _ in BREAKS])
def test_a_crash_before_the_restart_was_written_finds_the_same_loss_again(pods: tuple[Pod, ...]) -> None:
    first, second = (look(broken(pods), at(when)) for when in (60, 70))
    assert isinstance(first[0], StartNewAttempt)
    assert first == second or first[1].failure_reason == second[1].failure_reason


def test_a_crash_in_the_middle_of_stopping_goes_on_with_stopping() -> None:
    """Some old pods are gone, the Job is being deleted, its last worker stops."""
    observed = broken(BREAKS[0][1])
    seen = with_status(observed, look(observed, at(60))[1])
    leaving = tuple(deleted(job, asked=60, grace_s=0) for job in seen.old_jobs)
    last = tuple(deleted(pod, asked=60, grace_s=5) for pod in seen.old_pods[1:])
    stopping = structs.replace(seen, old_jobs=leaving, old_pods=last)
    assert isinstance(look(stopping, at(61))[0], Wait)
    # The Job is the last to go; until then it might make the worker whose pod is gone.
    assert isinstance(look(structs.replace(stopping, old_pods=()), at(62))[0], Wait)
    assert look(structs.replace(stopping, old_pods=(), old_jobs=()), at(62))[0] == EnsureJob(suspended=False)


def test_a_crash_after_a_changed_spec_was_written_numbers_the_attempt_once() -> None:
    observed = structs.replace(broken((running(0), running(1))), spec_changed=True)
    course, status = look(observed, at(60))
    assert course == StartNewAttempt(None)
    following, shown = look(with_status(observed, status), at(61))
    assert isinstance(following, Wait)
    assert shown.restart_count == 1


def test_a_crash_after_a_queued_jobs_workers_were_deleted_for_its_suspension_is_no_loss() -> None:
    """The Job goes first and the status is written after it."""
    observed = broken((deleted(running(0), asked=50), deleted(running(1), asked=50)))
    job = training_job({"suspend": True}, status=msgspec.to_builtins(observed.job.status))
    for there in (deleted(workers(), asked=50, grace_s=0), None):
        seen = structs.replace(observed, job=job, current_job=there, pods=observed.pods if there else (), queued=True)
        course, status = look(seen, at(60))
        assert course == DeleteQueuedJob()
        assert (status.state, status.restart_count) == ("Suspended", 0)


def test_a_crash_after_a_gang_was_held_back_finds_it_held_back() -> None:
    half = (running(0), unschedulable(1, "no room"))
    observed = structs.replace(broken(half), job=training_job(status={"state": "Initializing"}))
    # The Job was suspended, and the status still says that it starts.
    seen = structs.replace(
        observed, current_job=workers(suspend=True), admission=AdmissionDecision(admitted=False, message="no room")
    )
    course, status = look(seen, at(601))
    assert isinstance(course, Wait)
    assert status.state == "Pending"
    stopped, status = look(with_status(structs.replace(seen, pods=()), status), at(602))
    assert isinstance(stopped, EnsureJob)
    assert stopped.suspended


@given(STEPS, st.lists(st.floats(0, 10**5), max_size=6))
def test_time_alone_never_makes_two_attempts_of_one_loss(
    steps: list[tuple[TrainingJobSnapshot, float]], waits: list[float]
) -> None:
    observed, now = list(lived(steps))[-1]
    course, status = look(observed, now)
    if not isinstance(course, StartNewAttempt):
        return
    seen = with_status(observed, status)
    for wait in waits:
        now += timedelta(seconds=wait)
        course, status = look(seen, now)
        assert not isinstance(course, StartNewAttempt)
        seen = with_status(seen, status)
