"""Workers of before: where they are and how long ago they were told to go → who holds up the next attempt."""

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import Job, JobStatus, Node, Pod
from holdfast.trainingjob.decide.old_pods import blocking_pods, give_up_times, jobs_that_may_create_pods
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobSnapshot, TrainingJobTiming
from tests.trainingjobs import at, deleted, failed, node, owned, running, stamp, training_job, worker, workers

READY = {"gpu-3": node()}
SILENT = {"gpu-3": node(ready=False)}
GONE: dict[str, Node] = {}
# Told to go at 100 with 30 s of grace: given up at 190.
STUCK = deleted(running(0), asked=100)


def held_up_by(pod: Pod, nodes: dict[str, Node], now: float, timing: TrainingJobTiming = TIMING) -> bool:
    observed = TrainingJobSnapshot(job=training_job(), old_pods=(pod,), nodes=nodes)
    return bool(blocking_pods(observed, at(now), timing, observed.running_old_pods))


@pytest.mark.parametrize("nodes", [SILENT, GONE])
def test_a_worker_out_of_reach_holds_up_for_its_grace_and_a_minute_more(nodes: dict[str, Node]) -> None:
    assert [held_up_by(STUCK, nodes, now) for now in (100, 130, 189.999, 190, 10**6)] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("nodes", [SILENT, GONE])
def test_that_minute_can_be_set(nodes: dict[str, Node]) -> None:
    assert [held_up_by(STUCK, nodes, now, TrainingJobTiming(lost_pod_timeout_s=5)) for now in (134, 135)] == [
        True,
        False,
    ]


def test_a_worker_within_reach_is_waited_for_however_long_it_takes() -> None:
    assert held_up_by(STUCK, READY, 10**6)


@pytest.mark.parametrize("nodes", [READY, SILENT, GONE])
def test_a_worker_that_nobody_told_to_go_is_waited_for(nodes: dict[str, Node]) -> None:
    assert held_up_by(running(0), nodes, 10**6)


@pytest.mark.parametrize("nodes", [READY, SILENT, GONE])
def test_a_worker_that_has_ended_holds_up_nobody(nodes: dict[str, Node]) -> None:
    assert not held_up_by(deleted(failed(0, 143, at=stamp(110)), asked=100), nodes, 111)


def test_a_worker_without_a_node_is_waited_for_since_it_goes_at_once() -> None:
    assert held_up_by(deleted(worker(0, {"phase": "Pending"}), asked=100), GONE, 10**6)


def test_a_node_that_comes_back_makes_its_worker_count_again() -> None:
    assert not held_up_by(STUCK, SILENT, 200)
    assert held_up_by(STUCK, READY, 200)


OLD = workers(name="bert-training")
FIRST, SECOND = owned(STUCK, OLD), owned(running(1), OLD)


def expected(job: Job, *pods: Pod, now: float = 200) -> bool:
    observed = TrainingJobSnapshot(job=training_job(), old_jobs=(job,), old_pods=pods)
    return bool(jobs_that_may_create_pods(observed, at(now), TIMING))


def test_an_old_job_may_make_pods_until_each_worker_has_had_one() -> None:
    assert expected(OLD)
    assert expected(OLD, FIRST)
    assert not expected(OLD, FIRST, SECOND)


def test_two_pods_of_one_worker_are_not_two_workers() -> None:
    assert expected(OLD, FIRST, owned(failed(0, 1, at=stamp(50)), OLD))


@pytest.mark.parametrize("counts", [{"active": 2}, {"active": 1, "terminating": 1}, {"succeeded": 1, "terminating": 1}])
def test_a_job_that_counts_a_pod_for_each_worker_makes_no_more_though_some_are_gone(counts: dict[str, int]) -> None:
    job = structs.replace(OLD, status=msgspec.convert(counts, JobStatus))
    assert not expected(with_backoff_limit(job, 0), FIRST)
    assert expected(with_backoff_limit(job, 3), FIRST)  # an elastic job's: a pod that has failed is replaced


def test_a_job_that_counts_too_few_pods_may_make_more() -> None:
    assert expected(with_backoff_limit(structs.replace(OLD, status=JobStatus(active=1)), 0), FIRST)


def with_backoff_limit(job: Job, limit: int) -> Job:
    return structs.replace(job, spec=structs.replace(job.spec, backoff_limit=limit))


def test_pods_of_another_job_of_that_name_do_not_count() -> None:
    assert expected(OLD, running(0), owned(running(1), workers(name="another")))


@pytest.mark.parametrize(
    "job",
    [
        workers(suspend=True),
        workers(conditions={"Failed": "BackoffLimitExceeded"}),
        workers(conditions={"FailureTarget": "BackoffLimitExceeded"}),
        workers(conditions={"Complete": "CompletionsReached"}),
    ],
)
def test_an_old_job_that_has_ended_makes_none(job: Job) -> None:
    assert not expected(job)


def test_a_deleted_job_that_a_stuck_pod_keeps_there_is_not_waited_for_for_ever() -> None:
    gone = deleted(OLD, asked=100, grace_s=0)
    assert [expected(gone, FIRST, now=now) for now in (100, 159, 160)] == [True, True, False]


def test_the_moments_at_which_something_is_given_up_are_known_beforehand() -> None:
    observed = TrainingJobSnapshot(
        job=training_job(),
        pods=(deleted(running(1, node="gpu-4"), asked=150),),
        old_jobs=(deleted(OLD, asked=100, grace_s=0), workers()),
        old_pods=(STUCK, running(2), deleted(failed(3, 1, at=stamp(1)), asked=100)),
        nodes=SILENT,
    )
    assert sorted(give_up_times(observed, TIMING)) == [at(160), at(190), at(240)]
    assert list(give_up_times(TrainingJobSnapshot(job=training_job(), old_pods=(STUCK,), nodes=READY), TIMING)) == []


def named(pod: Pod, uid: str) -> Pod:
    return structs.replace(pod, metadata=structs.replace(pod.metadata, uid=uid))


@pytest.mark.parametrize("nodes", [READY, SILENT, GONE])
def test_a_worker_given_up_with_its_node_holds_up_nobody_and_others_do(nodes: dict[str, Node]) -> None:
    lost, other = named(running(0), "lost"), named(running(1), "other")
    told = deleted(lost, asked=100)
    observed = TrainingJobSnapshot(
        job=training_job(), old_pods=(told, other), nodes=nodes, lost_pods=frozenset(("lost",))
    )
    assert blocking_pods(observed, at(101), TIMING, observed.running_old_pods) == (other,)
