"""The status of a TrainingJob: what is seen → what is shown."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.trainingjob import TrainingJobStatus
from holdfast.planning.conditions import holds
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.status import CONDITION_OF, next_status
from tests.trainingjobs import failed, training_job, unschedulable, worker, workers

NOW = datetime(2026, 1, 1, 3, tzinfo=UTC)


def shown(observed: Observed) -> TrainingJobStatus:
    return next_status(observed, NOW)


def after(status: TrainingJobStatus, observed: Observed) -> TrainingJobStatus:
    """The status that follows `status` when this is seen next."""
    return shown(structs.replace(observed, job=structs.replace(observed.job, status=status)))


@pytest.mark.parametrize(
    ("observed", "state", "reason"),
    [
        (Observed(job=training_job()), "Pending", "CreatingWorkers"),
        (Observed(job=training_job(), obstacle="Service bert-master is taken"), "Pending", "ChildNotMade"),
        (Observed(job=training_job(), refusal="no such field"), "Failed", "Refused"),
        (Observed(job=training_job(), workers=workers()), "Initializing", "WorkersStarting"),
        (
            Observed(job=training_job(), workers=workers(status={"active": 2, "ready": 1})),
            "Initializing",
            "WorkersStarting",
        ),
        (Observed(job=training_job(), workers=workers(status={"active": 2, "ready": 2})), "Running", "WorkersReady"),
        (
            Observed(job=training_job(), workers=workers(status={"active": 1, "ready": 1, "succeeded": 1})),
            "Running",
            "WorkersReady",
        ),
        (
            Observed(
                job=training_job(),
                workers=workers(
                    status={"active": 1, "ready": 1, "uncountedTerminatedPods": {"succeeded": ["uid-of-worker-0"]}}
                ),
            ),
            "Running",
            "WorkersReady",
        ),
        (
            Observed(job=training_job(), workers=workers(status={"active": 2, "ready": 1, "failed": 1})),
            "Restarting",
            "WorkersLost",
        ),
        (
            Observed(job=training_job(status={"state": "Running"}), workers=workers(status={"active": 2, "ready": 1})),
            "Restarting",
            "WorkersLost",
        ),
        # A worker that is ending is no longer ready, and not counted as succeeded yet.
        (
            Observed(
                job=training_job(status={"state": "Running"}),
                workers=workers(status={"active": 2, "ready": 1}),
                pods=(worker(0, {"phase": "Running"}), worker(1, {"phase": "Succeeded"})),
            ),
            "Running",
            "WorkersReady",
        ),
        (
            Observed(
                job=training_job(status={"state": "Running"}),
                workers=workers(status={"active": 2, "ready": 1}),
                pods=(worker(0, {"phase": "Running"}), worker(1, {"phase": "Pending"})),
            ),
            "Restarting",
            "WorkersLost",
        ),
        # Before the first time that all are ready, running is not enough.
        (
            Observed(
                job=training_job(status={"state": "Initializing"}),
                workers=workers(status={"active": 2, "ready": 1}),
                pods=(worker(0, {"phase": "Running"}), worker(1, {"phase": "Running"})),
            ),
            "Initializing",
            "WorkersStarting",
        ),
        (
            Observed(job=training_job({"suspend": True}), workers=workers(status={"active": 1})),
            "Suspended",
            "StoppingWorkers",
        ),
        (Observed(job=training_job({"suspend": True}), workers=workers()), "Suspended", "Suspended"),
        (
            Observed(job=training_job(status={"state": "Running"}), workers=workers(), outdated=True),
            "Restarting",
            "SpecChanged",
        ),
        (
            Observed(job=training_job(status={"state": "Restarting"}), earlier=(workers(),)),
            "Restarting",
            "StoppingWorkers",
        ),
        (
            Observed(job=training_job(), workers=workers(conditions={"Complete": "CompletionsReached"})),
            "Completed",
            "WorkersSucceeded",
        ),
        (
            Observed(job=training_job(), workers=workers(conditions={"Failed": "BackoffLimitExceeded"})),
            "Failed",
            "BackoffLimitExceeded",
        ),
        # The end counts even when the spec was changed at the last moment.
        (
            Observed(job=training_job(), workers=workers(conditions={"Complete": "CompletionsReached"}), outdated=True),
            "Completed",
            "WorkersSucceeded",
        ),
        # The Job controller says first that it will fail, and ends the other workers before it has.
        (
            Observed(
                job=training_job(status={"state": "Running"}),
                workers=workers(status={"active": 1}, conditions={"FailureTarget": "PodFailurePolicy"}),
            ),
            "Running",
            "PodFailurePolicy",
        ),
    ],
)
def test_what_is_seen_decides_the_state(observed: Observed, state: str, reason: str) -> None:
    status = shown(observed)
    assert status.state == state
    told = {condition.type: condition for condition in status.conditions}
    assert told[CONDITION_OF.get(state, "Running")].reason == reason


def test_a_condition_holds_exactly_in_its_state() -> None:
    running = shown(Observed(job=training_job(), workers=workers(status={"active": 2, "ready": 2})))
    ended = after(running, Observed(job=training_job(), workers=workers(conditions={"Complete": "CompletionsReached"})))
    assert holds(running.conditions, "Running")
    assert not holds(ended.conditions, "Running")
    assert holds(ended.conditions, "Succeeded")
    assert holds(ended.conditions, "Created")
    assert not holds(ended.conditions, "Failed")


def test_created_is_false_while_a_name_is_taken_and_stays_true_once_the_workers_were_made() -> None:
    blocked = shown(Observed(job=training_job(), obstacle="taken"))
    still_blocked = after(blocked, Observed(job=training_job(), obstacle="taken"))
    made = after(blocked, Observed(job=training_job(), workers=workers()))
    restarting = after(made, Observed(job=training_job(), earlier=(workers(),)))
    assert [holds(status.conditions, "Created") for status in (blocked, still_blocked, made, restarting)] == [
        False,
        False,
        True,
        True,
    ]


def test_a_second_look_at_the_same_facts_changes_nothing() -> None:
    observed = Observed(job=training_job(), workers=workers(status={"active": 2, "ready": 1}))
    first = shown(observed)
    later = structs.replace(observed, job=structs.replace(observed.job, status=first))
    assert next_status(later, datetime(2027, 1, 1, tzinfo=UTC)) == first


def test_the_time_of_a_transition_stays_while_the_status_of_the_condition_does() -> None:
    first = shown(Observed(job=training_job(), workers=workers()))
    second = next_status(
        Observed(
            job=structs.replace(training_job(), status=first),
            workers=workers(status={"active": 2}),
            pods=(unschedulable(0, "0/1 nodes are available"),),
        ),
        datetime(2026, 1, 2, tzinfo=UTC),
    )
    times = {condition.type: condition.last_transition_time for condition in second.conditions}
    assert times["Running"] == "2026-01-01T03:00:00Z"


def test_an_ended_job_stays_as_it_ended() -> None:
    ended = shown(Observed(job=training_job(), workers=workers(conditions={"Complete": "CompletionsReached"})))
    assert after(ended, Observed(job=training_job())) == ended


def test_times_of_a_completed_job_are_its_jobs() -> None:
    job = workers(status={"completionTime": "2026-01-01T02:13:20Z"}, conditions={"Complete": "CompletionsReached"})
    status = shown(Observed(job=training_job(), workers=job))
    assert (status.start_time, status.completion_time, status.duration) == (
        "2026-01-01T00:00:00Z",
        "2026-01-01T02:13:20Z",
        "2h13m",
    )


def test_the_start_of_a_resumed_job_is_its_first_start() -> None:
    first = shown(Observed(job=training_job(), workers=workers()))
    resumed = after(first, Observed(job=training_job(), workers=workers(status={"startTime": "2026-01-01T01:00:00Z"})))
    assert resumed.start_time == "2026-01-01T00:00:00Z"


def test_a_failed_job_says_which_worker_failed_first_and_where_and_with_what() -> None:
    status = shown(
        Observed(
            job=training_job(),
            workers=workers(conditions={"Failed": "BackoffLimitExceeded"}),
            pods=(
                failed(1, 1, at="2026-01-01T02:00:01Z", message="connection lost\n"),
                failed(0, 137, at="2026-01-01T02:00:00Z", reason="OOMKilled"),
            ),
        )
    )
    assert status.failure_reason == (
        "BackoffLimitExceeded: as told; worker 0 on gpu-3 exited with code 137 (OOMKilled)"
    )
    assert status.completion_time == "2026-01-01T02:13:20Z"


def test_workers_that_were_stopped_because_of_another_are_not_blamed() -> None:
    same_second = "2026-01-01T02:00:00Z"
    stopped = failed(0, 143, at=same_second)
    stopped = structs.replace(stopped, metadata=structs.replace(stopped.metadata, deletion_timestamp=same_second))
    job = workers(conditions={"Failed": "BackoffLimitExceeded"})
    status = shown(Observed(job=training_job(), workers=job, pods=(stopped, failed(1, 7, at=same_second))))
    assert "worker 1 on gpu-3 exited with code 7" in (status.failure_reason or "")


def test_a_failed_jobs_last_words_are_kept_short() -> None:
    pods = (failed(0, 1, at="2026-01-01T02:00:00Z", message="x" * 5000 + "the end"),)
    job = workers(conditions={"Failed": "BackoffLimitExceeded"})
    status = shown(Observed(job=training_job(), workers=job, pods=pods))
    assert status.failure_reason is not None
    assert status.failure_reason.endswith("the end")
    assert len(status.failure_reason) < 1000


def test_a_waiting_job_says_for_how_many_and_why() -> None:
    pods = (unschedulable(0, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), unschedulable(1, "rare"))
    more = (*pods, unschedulable(2, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    observed = Observed(
        job=training_job({"numWorkers": 4}), workers=workers(status={"active": 4, "ready": 1}), pods=more
    )
    assert shown(observed).message == (
        "waiting for 3 of 4 workers: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )


def test_a_job_that_waits_for_nothing_in_particular_says_just_that() -> None:
    status = shown(Observed(job=training_job(), workers=workers(status={"active": 2})))
    assert status.message == "waiting for 2 of 2 workers to start"


def test_a_changed_spec_numbers_the_next_attempt_once() -> None:
    running = training_job(status={"state": "Running", "restartCount": 1})
    bumped = shown(Observed(job=running, workers=workers(), outdated=True))
    # The next look goes by the new number: the old Job is an earlier attempt's now.
    later = after(bumped, Observed(job=running, earlier=(workers(),)))
    assert (bumped.restart_count, later.restart_count) == (2, 2)


def test_workers_are_counted_as_the_job_controller_counts_them() -> None:
    status = shown(
        Observed(
            job=training_job({"numWorkers": 5}),
            workers=workers(status={"active": 3, "ready": 3, "succeeded": 1, "failed": 1}),
        )
    )
    assert msgspec.to_builtins(status.workers) == {"desired": 5, "active": 3, "succeeded": 1, "failed": 1}


job_statuses: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "active": st.integers(0, 4),
        "ready": st.integers(0, 4),
        "succeeded": st.integers(0, 4),
        "failed": st.integers(0, 4),
        "terminating": st.integers(0, 4),
    }
)
ends = st.sampled_from(
    [{}, {"Complete": "CompletionsReached"}, {"Failed": "DeadlineExceeded"}, {"Suspended": "JobSuspended"}]
)
sights = st.builds(
    lambda spec, status, conditions, there, flags: Observed(
        job=training_job({"numWorkers": 3, **spec}),
        workers=workers(status=status, conditions=conditions) if there else None,
        earlier=(workers(name="bert-training-9"),) if flags[0] else (),
        outdated=there and flags[1],
        obstacle="something is in the way" if flags[2] else "",
    ),
    st.fixed_dictionaries({}, optional={"suspend": st.booleans()}),
    job_statuses,
    ends,
    st.booleans(),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)


@given(st.lists(sights, min_size=1, max_size=6))
def test_whatever_is_seen_one_state_holds_its_condition_alone_and_a_second_look_is_quiet(seen: list[Observed]) -> None:
    status: TrainingJobStatus | None = None
    for observed in seen:
        job = structs.replace(observed.job, status=status)
        status = next_status(structs.replace(observed, job=job), NOW)
        held = {c.type for c in status.conditions if c.status == "True"} - {"Created"}
        assert held == ({CONDITION_OF[status.state]} if status.state in CONDITION_OF else set())
        settled = structs.replace(observed, job=structs.replace(observed.job, status=status), outdated=False)
        if not observed.outdated:
            assert next_status(settled, NOW) == next_status(
                structs.replace(settled, job=structs.replace(settled.job, status=next_status(settled, NOW))), NOW
            )
