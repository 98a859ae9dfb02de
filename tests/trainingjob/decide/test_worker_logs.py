"""Whose logs are kept: what is seen of a broken attempt → workers, and the container to read of each."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import ContainerStatus, Node, Pod
from holdfast.decisions import CleanUp, Finish, Retry, StateReason, Wait
from holdfast.pods.failure import WorkerFailure
from holdfast.trainingjob.decide.decision import Action, DeleteQueuedJob, EnsureJob, RecreateJob, StartNewAttempt
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from holdfast.trainingjob.decide.worker_logs import MOST_WORKERS, LogToSave, is_outdated, logs_to_save
from tests.trainingjobs import deleted, failed, node, running, stamp, training_job, worker, workers

FAILED = Finish(StateReason("Failed", "BackoffLimitExceeded", "too often"))


def again(cause: str = "application") -> StartNewAttempt:
    return StartNewAttempt(Retry(WorkerFailure(cause=cause, message="as told"), None, 1))  # type: ignore[arg-type]  # any class of loss


def whose(
    *pods: Pod, course: Action | None = None, nodes: Iterable[Node] | None = None, given_up: Iterable[str] = ()
) -> tuple[LogToSave, ...]:
    seen = {each.metadata.name: each for each in ((node(),) if nodes is None else nodes)}
    observed = TrainingJobSnapshot(job=training_job(), pods=pods, nodes=seen, lost_pods=frozenset(given_up))
    return logs_to_save(observed, course or again())


def stopping(*pods: Pod, course: Action, suspend: bool = False, queued: bool = False) -> tuple[LogToSave, ...]:
    """`suspend`: the Job is suspended already."""
    made = workers(suspend=suspend)
    observed = TrainingJobSnapshot(
        job=training_job(), current_job=made, pods=pods, nodes={"gpu-3": node()}, queued=queued
    )
    return logs_to_save(observed, course)


def indexes(found: Iterable[LogToSave]) -> list[int]:
    return [each.index for each in found]


def with_init(pod: Pod, *statuses: dict[str, Any]) -> Pod:
    added = msgspec.convert(statuses, tuple[ContainerStatus, ...])
    return structs.replace(pod, status=structs.replace(pod.status, init_container_statuses=added))


def ended(name: str, exit_code: int) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": exit_code, "finishedAt": stamp(1)}}}


def test_the_worker_that_failed_is_kept_with_how_and_where_it_ended() -> None:
    found, speaker = whose(running(0), failed(1, 7, at=stamp(60), reason="OOMKilled"))
    assert (speaker.index, speaker.end) == (0, None)
    assert (found.index, found.node, found.container) == (1, "gpu-3", "trainer")
    assert found.pod == ("ml", "bert-training-1-abcde")
    assert found.end is not None
    assert (found.end.exit_code, found.end.reason, found.end.finished_at) == (7, "OOMKilled", stamp(60))


def test_of_many_the_first_to_fail_are_kept() -> None:
    pods = [failed(index, 1, at=stamp(100 - index)) for index in range(8)]
    assert indexes(whose(*pods)) == [7, 6, 5, 4, 3, 0]


def test_of_those_that_failed_in_the_same_second_the_lowest_are_kept() -> None:
    pods = [failed(index, 1, at=stamp(60)) for index in (9, 2, 5, 0, 7, 1)]
    assert indexes(whose(*pods)) == [0, 1, 2, 5, 7]


def test_those_that_the_job_ends_because_of_the_first_come_after_it() -> None:
    stopped = [deleted(failed(index, 143, at=stamp(60)), asked=60) for index in range(7)]
    assert indexes(whose(*stopped, failed(7, 1, at=stamp(60)))) == [7, 0, 1, 2, 3]


@given(st.lists(st.integers(0, 5), max_size=12))
def test_nobody_who_is_left_out_failed_before_one_who_is_kept(seconds: list[int]) -> None:
    found = whose(*(failed(index, 1, at=stamp(second)) for index, second in enumerate(seconds)))
    kept = indexes(found)[:MOST_WORKERS]
    assert len(kept) == min(len(seconds), MOST_WORKERS)
    assert [each.index for each in found[MOST_WORKERS:]] in ([], [0])
    left_out = [second for index, second in enumerate(seconds) if index not in kept]
    assert max((seconds[index] for index in kept), default=0) <= min(left_out, default=5)


@pytest.mark.parametrize(
    "course",
    [
        CleanUp(),
        RecreateJob(),
        Wait(None),
        DeleteQueuedJob(),
        EnsureJob(suspended=False),
        EnsureJob(suspended=True),
    ],
)
def test_an_attempt_that_did_not_break_leaves_no_logs(course: Action) -> None:
    assert whose(failed(0, 1, at=stamp(60)), running(1), course=course) == ()


def test_a_job_that_fails_for_good_leaves_the_logs_of_its_last_attempt() -> None:
    assert indexes(whose(failed(0, 1, at=stamp(60)), running(1), course=FAILED)) == [0]


@pytest.mark.parametrize("nodes", [[], [node(ready=False)]], ids=["gone", "silent"])
def test_a_worker_whose_node_is_lost_is_not_asked(nodes: list[Node]) -> None:
    assert whose(failed(0, 1, at=stamp(60)), nodes=nodes) == ()
    assert indexes(whose(failed(0, 1, at=stamp(60)), failed(1, 1, at=stamp(60), node="a"), nodes=[node("a")])) == [1]


def test_nor_is_one_whose_node_is_lost_and_nobody_has_noticed_yet() -> None:
    pod = failed(0, 1, at=stamp(60))
    lost = structs.replace(pod, metadata=structs.replace(pod.metadata, uid="lost"))
    assert whose(lost, given_up=["lost"]) == ()
    assert indexes(whose(lost)) == [0]


def test_a_worker_that_never_got_a_node_or_was_turned_away_has_no_log() -> None:
    turned_away = worker(1, {"phase": "Failed", "reason": "OutOfcpu"}, node="gpu-3")
    assert whose(worker(0, {"phase": "Failed"}), turned_away) == ()


def test_when_none_failed_those_that_were_told_to_go_are_kept() -> None:
    found, speaker = whose(running(0), deleted(running(1), asked=60), course=again("preemption"))
    assert speaker.index == 0
    assert (found.index, found.container, found.end) == (1, "trainer", None)


def test_of_the_survivors_of_a_lost_node_worker_0_is_kept() -> None:
    found = whose(running(0), running(1), running(2, node="gone"), course=again("infrastructure"))
    assert indexes(found) == [0]


def test_worker_0_is_kept_when_an_attempt_makes_way_for_another_spec() -> None:
    assert indexes(whose(running(0), running(1), course=StartNewAttempt(None))) == [0]


@pytest.mark.parametrize("course", [again("hang"), Finish(StateReason("Failed", "DeadlineExceeded", "too late"))])
def test_when_nobody_was_lost_those_that_run_are_kept(course: Action) -> None:
    pods = [running(index) for index in range(6, -1, -1)]
    assert indexes(whose(*pods, course=course)) == [0, 1, 2, 3, 4]
    assert whose(worker(0, {"phase": "Pending"}, node="gpu-3"), course=course) == ()


def test_the_log_of_an_init_container_is_kept_when_that_failed() -> None:
    pod = worker(0, {"phase": "Failed"}, node="gpu-3")
    (found,) = whose(with_init(pod, ended("fine", 0), ended("fetch", 4)))
    assert found.container == "fetch"
    assert found.end is not None
    assert found.end.exit_code == 4


def test_the_end_of_the_sidecar_explains_nothing() -> None:
    (found,) = whose(with_init(failed(0, 7, at=stamp(60)), ended("holdfast-sidecar", 143)))
    assert (found.container, found.end and found.end.exit_code) == ("trainer", 7)


def test_the_training_comes_before_containers_beside_it() -> None:
    pod = failed(0, 7, at=stamp(60))
    beside = msgspec.convert(ended("agent", 2), ContainerStatus)
    both = structs.replace(
        pod, status=structs.replace(pod.status, container_statuses=(beside, *pod.status.container_statuses))
    )
    assert [each.container for each in whose(both)] == ["trainer"]


def test_of_a_worker_that_was_replaced_the_last_pod_counts() -> None:
    first, last = failed(0, 3, at=stamp(60)), failed(0, 4, at=stamp(90))
    later = structs.replace(last, metadata=structs.replace(last.metadata, creation_timestamp=stamp(70)))
    (found,) = whose(later, first, course=FAILED)
    assert found.end is not None
    assert found.end.exit_code == 4


@pytest.mark.parametrize(("index", "on_one_machine", "attempts"), [(0, False, 16), (1, False, 3), (1, True, 100)])
def test_so_many_attempts_are_kept_with_the_one_that_breaks(index: int, on_one_machine: bool, attempts: int) -> None:
    kept = [number for number in range(201) if not is_outdated(number, index, 200, on_one_host=on_one_machine)]
    assert kept == list(range(201 - attempts, 201))
    assert not is_outdated(0, index, attempts - 1, on_one_host=on_one_machine)


@pytest.mark.parametrize("course", [EnsureJob(suspended=True), DeleteQueuedJob()])
def test_worker_0_is_kept_when_the_job_is_suspended(course: Action) -> None:
    pods = (running(0), running(1))
    assert indexes(stopping(*pods, course=course)) == [0]
    assert stopping(*pods, course=course, suspend=True) == (), "its Job is suspended: its pods are not terminating yet"


def test_a_job_that_waits_in_a_queue_is_not_stopped_by_its_operator() -> None:
    assert stopping(running(0), course=EnsureJob(suspended=True), queued=True) == ()


@pytest.mark.parametrize("course", [EnsureJob(suspended=False), EnsureJob(suspended=True), Wait(None), CleanUp()])
def test_worker_0_is_kept_while_it_terminates_whoever_stops_it(course: Action) -> None:
    pods = (deleted(running(0), asked=60), deleted(running(1), asked=60))
    (found,) = stopping(*pods, course=course, suspend=True)
    assert (found.index, found.container, found.end) == (0, "trainer", None)
    (found,) = stopping(deleted(failed(0, 143, at=stamp(61)), asked=60), course=course, suspend=True)
    assert found.end is not None
    assert found.end.exit_code == 143
    assert stopping(deleted(worker(0, {"phase": "Pending"}, node="gpu-3"), asked=60), course=course) == ()


def test_worker_0_is_kept_when_a_job_is_completed_while_it_runs() -> None:
    completed = Finish(StateReason("Completed", "TargetReached", "accuracy 0.9"))
    assert indexes(stopping(running(0), running(1), course=completed)) == [0]
