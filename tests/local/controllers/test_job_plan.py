"""A Job and its pods in, what to do next out."""

from collections.abc import Iterable

import pytest

from holdfast.api.core.objects import Pod
from holdfast.cluster.protocol import JSON
from holdfast.local.controllers.job_policies import MAX_PODS_PER_STEP, NewPod
from holdfast.local.controllers.jobs import Plan, plan
from holdfast.local.controllers.objects import TemplatedJob
from tests.local.controllers.things import NOW, ago, indexed_job, job, worker


def planned(job: TemplatedJob, *pods: Pod) -> Plan:
    return plan(job, pods, NOW)


def made(it: Plan) -> list[int | None]:
    return [replica.index for replica in it.create]


def uids(pods: Iterable[Pod]) -> set[str]:
    return {pod.metadata.uid for pod in pods}


def conditions(it: Plan) -> dict[str, str]:
    return {each.type: each.reason for each in it.status.conditions if each.status == "True"}


@pytest.mark.parametrize(
    ("wanted", "pods", "expected"),
    [
        (indexed_job(3), [], [0, 1, 2]),
        (indexed_job(3, parallelism=2), [], [0, 1]),
        (indexed_job(3), [worker(index=1)], [0, 2]),
        (indexed_job(3, status={"completedIndexes": "0,1"}), [], [2]),
        (indexed_job(3), [worker("Succeeded", index=0)], [1, 2]),
        (indexed_job(2), [worker("Failed", index=0, ended=ago(11)), worker(index=1)], [0]),
        (indexed_job(2), [worker("Failed", index=0, ended=ago(9)), worker(index=1)], []),
        (indexed_job(1), [worker("Running", index=0, deleted=ago(-25))], []),
        (indexed_job(1), [worker("Running", index=0, deleted=ago(0))], [0]),
        (indexed_job(1, podReplacementPolicy="Failed"), [worker(index=0, deleted=ago(0))], []),
        (indexed_job(0), [], []),
        (indexed_job(2, suspend=True), [], []),
        (job(completions=4, parallelism=2), [], [None, None]),
        (job(completions=4, parallelism=2), [worker()], [None]),
        (job(completions=2, parallelism=2), [worker("Succeeded")], [None]),
        (job(completions=2, parallelism=5, status={"succeeded": 1}), [], [None]),
        (job(parallelism=2), [], [None, None]),
        (job(parallelism=2), [worker("Succeeded"), worker()], []),
        (job(parallelism=0, completions=3), [], []),
        (job(completions=2, parallelism=2, podReplacementPolicy="Failed"), [worker(deleted=ago(0))], [None]),
        (job(completions=2, parallelism=2), [worker(deleted=ago(0))], [None, None]),
        (job(parallelism=MAX_PODS_PER_STEP + 5, completions=1000), [], [None] * MAX_PODS_PER_STEP),
    ],
)
def test_missing_pods_are_made(wanted: TemplatedJob, pods: list[Pod], expected: list[int | None]) -> None:
    it = planned(wanted, *pods)
    assert made(it) == expected
    assert it.status.active == len(expected) + sum(p.status.phase == "Running" and not p.is_terminating for p in pods)


def test_a_failed_pod_is_waited_for_by_its_end() -> None:
    it = planned(indexed_job(1), worker("Failed", index=0, ended=ago(4)))
    assert it.again_s == 6
    assert it.create == ()


def test_every_failure_doubles_the_wait_and_a_success_ends_the_series() -> None:
    failures = [worker("Failed", index=0, ended=ago(second), tracked=False) for second in (300, 200, 5)]
    assert planned(indexed_job(2), *failures).again_s == 35
    success = worker("Succeeded", index=1, ended=ago(100), tracked=False)
    assert planned(indexed_job(2, status={"completedIndexes": "1"}), *failures, success).again_s == 5


def test_the_wait_has_an_upper_bound() -> None:
    failures = [worker("Failed", index=0, ended=ago(1), tracked=False) for _ in range(40)]
    assert planned(indexed_job(1, backoffLimit=100), *failures).again_s == 599


def test_a_pod_that_was_taken_away_is_no_failure_to_wait_for() -> None:
    leaving = worker("Failed", index=0, deleted=ago(1), tracked=False)
    assert made(planned(indexed_job(1), leaving)) == [0]


def test_a_job_starts_its_clock_once() -> None:
    assert planned(indexed_job(1)).status.start_time == ago(0)
    assert planned(indexed_job(1, status={"startTime": ago(50)})).status.start_time == ago(50)


def test_suspending_stops_the_clock_and_the_pods_which_count_for_nothing() -> None:
    running, done = worker(index=0), worker("Succeeded", index=1)
    it = planned(indexed_job(2, suspend=True, status={"startTime": ago(50)}), running, done)
    assert uids(it.surplus) == uids([running])
    assert it.stop == ()
    assert uids(it.release) == uids([done])
    status = it.status
    assert (status.start_time, status.active, status.terminating, status.failed) == ("", 0, 1, 0)
    assert conditions(it) == {"Suspended": "JobSuspended"}


def test_resuming_starts_the_clock_anew_and_says_so() -> None:
    suspended = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "lastTransitionTime": ago(60)}
    it = planned(indexed_job(1, status={"conditions": [suspended]}))
    (condition,) = it.status.conditions
    assert (condition.status, condition.reason, condition.last_transition_time) == ("False", "JobResumed", ago(0))
    assert (it.status.start_time, made(it)) == (ago(0), [0])


@pytest.mark.parametrize("replaces", ["TerminatingOrFailed", "Failed"])
def test_a_settled_job_changes_nothing(replaces: str) -> None:
    pods = [worker(index=index, conditions={"Ready": "True"}) for index in range(2)]
    status = {"startTime": ago(50), "active": 2, "ready": 2}
    before = indexed_job(2, status=status, podReplacementPolicy=replaces)
    it = planned(before, *pods)
    assert it.status == before.status
    assert (it.create, it.release, it.stop, it.surplus, it.again_s) == ((), (), (), (), None)


def test_a_smaller_job_drops_its_highest_indexes() -> None:
    pods = [worker(index=index) for index in range(4)]
    it = planned(indexed_job(1), *pods)
    assert uids(it.surplus) == uids(pods[1:])
    assert it.create == ()


def test_less_parallelism_drops_those_that_are_not_ready_first() -> None:
    ready, unready = worker(index=1, conditions={"Ready": "True"}), worker(index=0)
    assert uids(planned(indexed_job(2, parallelism=1), ready, unready).surplus) == uids([unready])


def test_of_two_pods_with_one_index_the_older_stays() -> None:
    older, younger = worker(index=0, made=ago(20)), worker(index=0, made=ago(10))
    it = planned(indexed_job(2), younger, older)
    assert uids(it.surplus) == uids([younger])
    assert it.create == (), "either pods go or pods come"


def test_without_indexes_the_newest_goes_first() -> None:
    older, younger = worker(made=ago(20)), worker(made=ago(10))
    assert uids(planned(job(completions=2, parallelism=1), older, younger).surplus) == uids([younger])


ENDINGS: list[tuple[str, TemplatedJob, list[Pod], str]] = [
    ("all indexes", indexed_job(2), [worker("Succeeded", index=0), worker("Succeeded", index=1)], "CompletionsReached"),
    ("no index at all", indexed_job(0), [], "CompletionsReached"),
    ("a work queue", job(parallelism=2), [worker("Succeeded")], "CompletionsReached"),
    ("one failure too many", indexed_job(1, backoffLimit=0), [worker("Failed", index=0)], "BackoffLimitExceeded"),
    (
        "old and new failures together",
        indexed_job(1, backoffLimit=2, status={"failed": 1, "uncountedTerminatedPods": {"failed": ["x"]}}),
        [worker("Failed", index=0)],
        "BackoffLimitExceeded",
    ),
    (
        "restarts in place",
        indexed_job(1, backoffLimit=3),
        [worker(index=0, restarts=3, restart_policy="OnFailure")],
        "BackoffLimitExceeded",
    ),
    ("its deadline", indexed_job(1, activeDeadlineSeconds=50, status={"startTime": ago(50)}), [], "DeadlineExceeded"),
    (
        "a rule for successes",
        indexed_job(
            3, successPolicy={"rules": [{"succeededCount": 3}, {"succeededIndexes": "0-1", "succeededCount": 1}]}
        ),
        [worker("Succeeded", index=1), worker(index=2)],
        "SuccessPolicy",
    ),
    (
        "failed indexes",
        indexed_job(2, backoffLimitPerIndex=0, status={"completedIndexes": "0"}),
        [worker("Failed", index=1)],
        "FailedIndexes",
    ),
]


@pytest.mark.parametrize(
    ("wanted", "pods", "reason"), [case[1:] for case in ENDINGS], ids=[case[0] for case in ENDINGS]
)
def test_a_job_is_over(wanted: TemplatedJob, pods: list[Pod], reason: str) -> None:
    it = planned(wanted, *pods)
    first = "SuccessCriteriaMet" if reason in ("CompletionsReached", "SuccessPolicy") else "FailureTarget"
    assert conditions(it)[first] == reason
    assert it.create == ()
    active = [pod for pod in pods if pod.status.phase == "Running"]
    assert uids(it.stop) == uids(active)
    assert uids(it.release) == uids(pods)


GOING_ON: list[tuple[str, TemplatedJob, list[Pod]]] = [
    ("one index is missing", indexed_job(2), [worker("Succeeded", index=0), worker(index=1)]),
    ("others of a work queue run", job(parallelism=2), [worker("Succeeded"), worker()]),
    ("the limit is only reached", indexed_job(1, backoffLimit=1), [worker("Failed", index=0)]),
    ("its deadline is not there", indexed_job(1, activeDeadlineSeconds=51, status={"startTime": ago(50)}), []),
    ("it rests", indexed_job(1, suspend=True, activeDeadlineSeconds=5, status={"startTime": ago(50)}), []),
    ("restarts are below the limit", job(backoffLimit=3), [worker(restarts=2, restart_policy="OnFailure")]),
    ("nothing has restarted", job(backoffLimit=0), [worker(restart_policy="OnFailure")]),
    (
        "no rule holds",
        indexed_job(2, successPolicy={"rules": [{"succeededIndexes": "0-1"}]}),
        [worker("Succeeded", index=0), worker(index=1)],
    ),
    (
        "an old pod is of no index any more",
        indexed_job(1, backoffLimit=0),
        [worker("Failed", index=4), worker(index=0)],
    ),
]


@pytest.mark.parametrize(("wanted", "pods"), [case[1:] for case in GOING_ON], ids=[case[0] for case in GOING_ON])
def test_a_job_goes_on(wanted: TemplatedJob, pods: list[Pod]) -> None:
    it = planned(wanted, *pods)
    assert not {"SuccessCriteriaMet", "FailureTarget", "Complete", "Failed"} & conditions(it).keys()
    assert it.stop == ()


def test_a_deadline_is_looked_at_again_when_it_is_due() -> None:
    it = planned(indexed_job(1, activeDeadlineSeconds=60, status={"startTime": ago(50)}), worker(index=0))
    assert it.again_s == 10


def over(kind: str, reason: str = "Why") -> JSON:
    return {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": ago(5)}


def test_the_final_condition_waits_until_everything_has_stopped_and_is_counted() -> None:
    status = {"startTime": ago(50), "conditions": [over("FailureTarget")]}
    leaving = worker(index=0, deleted=ago(0), tracked=False)
    assert "Failed" not in conditions(planned(indexed_job(1, status=status), leaving))
    held = worker("Failed", index=0)
    assert "Failed" not in conditions(planned(indexed_job(1, status=status), held))
    uncounted = status | {"uncountedTerminatedPods": {"failed": [held.metadata.uid]}}
    assert "Failed" not in conditions(planned(indexed_job(1, status=uncounted), held))
    let_go = planned(indexed_job(1, status=uncounted))
    assert conditions(let_go) == {"FailureTarget": "Why", "Failed": "Why"}
    assert (let_go.status.failed, let_go.status.completion_time) == (1, "")


def test_a_complete_job_has_a_time_of_completion() -> None:
    it = planned(indexed_job(1, status={"startTime": ago(50), "completedIndexes": "0"}))
    assert conditions(it) == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
    assert it.status.completion_time == ago(0)


def test_what_was_decided_is_not_decided_again() -> None:
    """Neither a later failure nor a later success changes why a Job ended."""
    status = {"startTime": ago(500), "conditions": [over("FailureTarget", "DeadlineExceeded")]}
    it = planned(indexed_job(1, backoffLimit=0, status=status), worker("Succeeded", index=0))
    assert conditions(it) == {"FailureTarget": "DeadlineExceeded"}


def test_what_still_runs_fails_with_its_job_but_not_when_the_job_succeeds() -> None:
    running = worker(index=1)
    failing = planned(indexed_job(2, status={"conditions": [over("FailureTarget")]}), running)
    assert failing.status.uncounted_terminated_pods.failed == (running.metadata.uid,)
    succeeding = planned(indexed_job(2, status={"conditions": [over("SuccessCriteriaMet")]}), running)
    assert succeeding.status.uncounted_terminated_pods.failed == ()
    assert uids(succeeding.release) == uids(succeeding.stop) == uids([running])


def test_the_last_failure_of_an_index_is_held_until_its_successor_knows_of_it() -> None:
    failed = worker("Failed", index=0, failures=1, ended=ago(30))
    limited = indexed_job(1, backoffLimitPerIndex=3)
    it = planned(limited, failed)
    assert it.create == (NewPod(0, 2),)
    assert it.release == ()
    replaced = planned(limited, failed, worker(index=0, failures=2))
    assert uids(replaced.release) == uids([failed])
    assert replaced.status.uncounted_terminated_pods.failed == (failed.metadata.uid,)


def test_each_index_waits_for_itself() -> None:
    fresh, older = worker("Failed", index=0, failures=0, ended=ago(4)), worker("Failed", index=1, ended=ago(30))
    it = planned(indexed_job(3, backoffLimitPerIndex=3), fresh, older)
    assert (made(it), it.again_s) == ([1, 2], 6)


def test_an_index_that_is_given_up_is_not_made_again() -> None:
    failed = worker("Failed", index=0, failures=1, ended=ago(100))
    it = planned(indexed_job(2, backoffLimitPerIndex=1), failed)
    assert (made(it), it.status.failed_indexes) == ([1], "0")
    assert uids(it.release) == uids([failed])


def test_an_ignored_failure_of_an_index_is_handed_down_as_ignored() -> None:
    rule = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}}
    failed = worker("Failed", index=0, failures=2, ended=ago(1000))
    it = planned(indexed_job(1, backoffLimitPerIndex=2, podFailurePolicy={"rules": [rule]}), failed)
    assert it.create == (NewPod(0, 2, 1),)
