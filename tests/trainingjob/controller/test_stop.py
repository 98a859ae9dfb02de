"""What is stopped, and how gently: what is seen → deletes."""

from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Job, Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import Conflict, NotFound, Unreachable
from holdfast.cluster.protocol import DELETE, DeleteOptions, Propagation, Resource
from holdfast.cluster.resources import JOBS
from holdfast.decisions import Retry
from holdfast.runtime.children import stop_jobs
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker
from holdfast.trainingjob.apply import stop_finished, stop_old_attempts, stop_pods
from holdfast.trainingjob.decide.decision import StartNewAttempt, decide
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobSnapshot, TrainingJobTiming
from holdfast.trainingjob.decide.status import next_status
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjobs import at, deleted, failed, running, stamp, training_job, workers


class Deleting(ScriptedCluster):
    """Keeps how each object was to be deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[tuple[str, str, str, Any]] = []

    async def delete(self, resource: Resource[Any], key: Key, options: DeleteOptions = DELETE) -> None:
        how = options.propagation if resource == JOBS else options.grace_period_s
        self.deleted.append((resource.kind, key.name, options.uid, how))
        self._called("delete", resource, key)

    def session(self) -> TrackedClient:
        informers = Informers(self, (), metrics=Metrics(), random=Random(1))
        return WriteTracker(self, informers).for_key(Key("ml", "bert"))


def named(pod: Pod) -> Pod:
    return structs.replace(pod, metadata=structs.replace(pod.metadata, uid=f"uid-of-{pod.metadata.name}"))


def restarting(
    *pods: Pod, reason: str = "WorkerFailed", earlier: tuple[Job, ...] = (), spec: dict[str, Any] | None = None
) -> TrainingJobSnapshot:
    """At attempt 2, for this reason."""
    condition = {
        "type": "Restarting",
        "status": "True",
        "reason": reason,
        "message": "",
        "lastTransitionTime": stamp(0),
    }
    job = training_job(spec, status={"state": "Restarting", "restartCount": 2, "conditions": [condition]})
    return TrainingJobSnapshot(job=job, old_pods=tuple(map(named, pods)), old_jobs=earlier)


async def stopped(observed: TrainingJobSnapshot) -> list[tuple[str, str, str, Any]]:
    cluster = Deleting()
    await stop_old_attempts(
        cluster.session(), observed, TrainingJobTiming(restart_grace_s=5, restart_upload_grace_s=20)
    )
    return cluster.deleted


OLD = "bert-training-0-abcde"


async def test_survivors_of_a_broken_gang_get_a_short_grace_each_by_its_own_uid() -> None:
    assert await stopped(restarting(running(0, attempt=1))) == [("Pod", OLD, f"uid-of-{OLD}", 5)]


@pytest.mark.parametrize(
    ("storage", "grace_s"),
    [
        ({"type": "pvc"}, 5),
        ({"type": "nfs", "nfsServer": "a", "nfsPath": "/b"}, 5),
        ({"type": "s3", "s3Bucket": "runs"}, 20),
        ({"type": "gcs", "gcsBucket": "runs"}, 20),
        ({"type": "azure", "azureContainer": "runs", "azureAccount": "account"}, 20),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
async def test_survivors_get_more_where_a_checkpoint_may_be_on_its_way(storage: dict[str, Any], grace_s: int) -> None:
    spec = {"checkpoint": {"storage": storage}}
    assert await stopped(restarting(running(0, attempt=1), spec=spec)) == [("Pod", OLD, f"uid-of-{OLD}", grace_s)]
    off = {"checkpoint": {"enabled": False, "storage": storage}}
    assert await stopped(restarting(running(0, attempt=1), spec=off)) == [("Pod", OLD, f"uid-of-{OLD}", 5)]


async def test_workers_that_make_way_for_another_spec_get_all_the_time_that_they_have() -> None:
    assert await stopped(restarting(running(0, attempt=1), reason="SpecChanged")) == [
        ("Pod", OLD, f"uid-of-{OLD}", None)
    ]


async def test_they_keep_it_while_they_are_waited_for() -> None:
    """The status that says so is written between their deletion and the next look at them."""
    job = training_job(status={"state": "Running", "startTime": stamp(0)})
    outdated = TrainingJobSnapshot(job=job, current_job=workers(), pods=(running(0),), spec_changed=True)
    status = next_status(outdated, StartNewAttempt(None), at(60))
    leaving = deleted(running(0), asked=60, grace_s=30)
    waiting = TrainingJobSnapshot(job=structs.replace(job, status=status), old_pods=(leaving,), old_jobs=(workers(),))
    shown = next_status(waiting, decide(waiting, at(61), TIMING), at(61))
    assert shown != status
    later = structs.replace(waiting, job=structs.replace(job, status=shown))
    assert [kind for kind, *_ in await stopped(later)] == ["Job"]


async def test_a_worker_that_was_given_more_time_is_hastened_and_one_that_was_not_is_left() -> None:
    slow = deleted(running(0, attempt=1), asked=0, grace_s=30)
    fast = deleted(running(1, attempt=1), asked=0, grace_s=5)
    assert [name for _, name, *_ in await stopped(restarting(slow, fast))] == [OLD]
    assert await stopped(restarting(slow, reason="SpecChanged")) == []


async def test_nobody_is_hastened_for_a_job_that_is_suspended() -> None:
    slow = named(deleted(running(0), asked=0, grace_s=30))
    job = training_job({"suspend": True}, status={"state": "Suspended", "restartCount": 1})
    assert await stopped(TrainingJobSnapshot(job=job, old_pods=(slow, named(running(1))))) == [
        ("Pod", "bert-training-1-abcde", "uid-of-bert-training-1-abcde", None)
    ]


async def test_who_has_ended_is_left_to_be_looked_at() -> None:
    ended = failed(0, 1, at=stamp(1))
    assert await stopped(restarting(ended)) == []
    cluster = Deleting()
    await stop_pods(cluster.session(), (ended,), None)
    assert cluster.deleted == []


@pytest.mark.parametrize("label", ["2", "3", "", "x", "-1", "²"])
async def test_only_workers_of_earlier_attempts_are_this_jobs_to_stop(label: str) -> None:
    pod = running(0)
    pod.metadata.labels["holdfast.dev/attempt"] = label
    assert await stopped(restarting(pod)) == []


async def test_an_old_job_goes_in_the_foreground_once() -> None:
    leaving = deleted(workers(name="bert-training"), asked=0, grace_s=0)
    assert await stopped(restarting(earlier=(leaving, workers(name="bert-training-1")))) == [
        ("Job", "bert-training-1", "uid-of-bert-training-1", Propagation.FOREGROUND)
    ]


@pytest.mark.parametrize("error", [NotFound("gone"), Conflict("another uid")])
async def test_what_is_gone_or_replaced_meanwhile_does_not_keep_the_others_from_being_stopped(error: Exception) -> None:
    cluster = Deleting()
    cluster.errors["delete"] = [error, error]
    await stop_pods(cluster.session(), (running(0), running(1)), None)
    cluster.errors["delete"] = [error]
    await stop_jobs(cluster.session(), (workers(name="a"), workers(name="b")))
    assert [name for _, name, *_ in cluster.deleted] == [OLD, "bert-training-1-abcde", "a", "b"]


async def test_a_server_that_can_not_be_reached_is_not_taken_for_a_worker_that_is_gone() -> None:
    cluster = Deleting()
    cluster.errors["delete"] = [Unreachable("no route")]
    with pytest.raises(Unreachable):
        await stop_pods(cluster.session(), (running(0), running(1)), None)
    assert len(cluster.deleted) == 1


async def test_a_job_that_broke_and_is_restarted_hastens_those_that_were_stopped_before() -> None:
    """A loss while the workers make way for another spec: those that are left have nothing to save any more."""
    broken = TrainingJobSnapshot(
        job=training_job(status={"state": "Restarting"}), current_job=workers(), pods=(failed(0, 1, at=stamp(50)),)
    )
    course = decide(broken, at(60), TIMING)
    assert isinstance(course, StartNewAttempt)
    assert isinstance(course.retry, Retry)
    status = next_status(broken, course, at(60))
    slow = named(deleted(running(1), asked=59, grace_s=30))
    seen = TrainingJobSnapshot(job=structs.replace(broken.job, status=status), old_pods=(slow,))
    assert [how for *_, how in await stopped(seen)] == [5]


ENDED = training_job(status={"state": "Failed"})


async def ended(job: Job, *pods: Pod, **more: Any) -> tuple[bool, list[str]]:
    """Whether the Job is suspended afterwards, and what was deleted."""
    cluster = Deleting()
    there = cluster.put(JOBS, job, namespace="ml")
    await stop_finished(
        cluster.session(), TrainingJobSnapshot(job=ENDED, current_job=there, pods=tuple(map(named, pods)), **more)
    )
    body = cluster.peek(JOBS, there.metadata.key)
    return body.get("spec", {}).get("suspend", False), [kind for kind, *_ in cluster.deleted]


async def test_a_job_that_ended_before_its_workers_did_makes_no_others_in_their_place() -> None:
    assert await ended(workers(), running(0), running(1)) == (True, ["Pod", "Pod"])
    assert await ended(workers()) == (True, [])


@pytest.mark.parametrize("kind", ["Failed", "FailureTarget", "Complete"])
async def test_a_job_that_makes_no_more_is_left_as_it_is(kind: str) -> None:
    assert await ended(workers(conditions={kind: "X"}), running(0), failed(1, 1, at=stamp(1))) == (False, ["Pod"])


async def test_a_second_time_nothing_is_written() -> None:
    stopping = deleted(running(0), asked=0)
    assert await ended(workers(suspend=True), stopping) == (True, [])
    assert await ended(deleted(workers(), asked=0, grace_s=0), stopping) == (False, [])


async def test_a_queued_job_is_deleted_since_its_suspend_is_not_ours() -> None:
    assert await ended(workers(), running(0), queued=True) == (False, ["Job", "Pod"])


async def test_an_ended_job_without_workers_needs_nothing() -> None:
    cluster = Deleting()
    await stop_finished(cluster.session(), TrainingJobSnapshot(job=ENDED))
    assert cluster.calls == []


async def test_a_job_that_vanished_meanwhile_does_not_keep_its_workers_running() -> None:
    cluster = Deleting()
    await stop_finished(
        cluster.session(), TrainingJobSnapshot(job=ENDED, current_job=workers(), pods=(named(running(0)),))
    )
    assert [kind for kind, *_ in cluster.deleted] == ["Pod"]
