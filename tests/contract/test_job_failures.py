"""What a Job does about pods that fail, and when it gives up."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.api.core.objects import Job
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster, DeleteOptions, Propagation
from holdfast.cluster.resources import JOBS, PODS

from .engine import Engine
from .kinds import JOBS as WHOLE_JOBS
from .pods import INDEX, indexed
from .pool import Pool
from .waiting import gone, listed, until

# The Job controller waits from 10 s on before it replaces a failed pod, counted from its end: one of long ago is over.
LONG_AGO = "2020-01-01T00:00:00Z"
PAUSE = timedelta(seconds=10)


async def failed(cluster: Cluster, key: Key) -> Job:
    return await until(cluster, JOBS, key, lambda j: j.condition("Failed"), "has failed")


def reason(job: Job) -> str:
    condition = job.condition("Failed")
    return condition.reason if condition else ""


def failed_at(job: Job) -> str:
    condition = job.condition("Failed")
    return condition.last_transition_time if condition else ""


async def test_a_failed_pod_is_replaced_for_its_index(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, backoffLimit=3), namespace=pool.name)
    zeroth, first = await pool.running(2)
    await pool.end(first, exit_code=1, ended=LONG_AGO)
    kept, replaced = await pool.running(2)
    assert kept.metadata.uid == zeroth.metadata.uid
    assert replaced.metadata.uid != first.metadata.uid
    assert replaced.metadata.labels[INDEX] == "1"
    counted = await until(pool.cluster, JOBS, key, lambda j: j.status.failed == 1, "counts the failure")
    assert (counted.status.active, counted.status.succeeded) == (2, 0)
    assert counted.condition("Failed") is None


async def test_a_failed_pod_is_replaced_after_a_pause(pool: Pool) -> None:
    await pool.add()
    await pool.cluster.create(JOBS, indexed("one", pool.name, 1), namespace=pool.name)
    (first,) = await pool.running(1)
    ended = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=7)
    await pool.end(first, exit_code=1, ended=ended.isoformat())
    (second,) = await pool.running(1)
    assert datetime.fromisoformat(second.metadata.creation_timestamp) >= ended + PAUSE


async def test_a_job_gives_up_when_its_backoff_limit_is_exceeded(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, backoffLimit=1), namespace=pool.name)
    zeroth, first = await pool.running(2)
    await pool.end(first, exit_code=1, ended=LONG_AGO)
    _, second = await pool.running(2)
    await pool.end(second, exit_code=1, ended=LONG_AGO)
    over = await failed(pool.cluster, key)
    assert reason(over) == "BackoffLimitExceeded"
    assert over.condition("Complete") is None
    # What still ran is stopped, and counts as failed: 2 that failed, and the one that was stopped.
    assert (over.status.failed, over.status.active) == (3, 0)
    await listed(
        pool.cluster,
        PODS,
        pool.name,
        lambda pods: zeroth.metadata.uid not in {pod.metadata.uid for pod in pods},
        "the pod that still ran is gone",
    )


async def test_a_job_without_retries_fails_with_its_first_pod(pool: Pool) -> None:
    await pool.add()
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, backoffLimit=0), namespace=pool.name)
    zeroth, _ = await pool.running(2)
    await pool.end(zeroth, exit_code=137)
    assert reason(await failed(pool.cluster, Key(pool.name, "one"))) == "BackoffLimitExceeded"


def policy(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"podFailurePolicy": {"rules": list(rules)}}


@pytest.mark.every_engine
async def test_an_exit_code_can_fail_the_job_at_once(pool: Pool) -> None:
    await pool.add()
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    body = indexed("one", pool.name, 2, backoffLimit=6, **policy(rule))
    await pool.cluster.create(JOBS, body, namespace=pool.name)
    zeroth, _ = await pool.running(2)
    await pool.end(zeroth, exit_code=42)
    over = await failed(pool.cluster, Key(pool.name, "one"))
    assert reason(over) == "PodFailurePolicy"
    condition = over.condition("Failed")
    assert condition is not None
    assert "exit code 42" in condition.message
    assert zeroth.metadata.name in condition.message


async def test_a_disrupted_pod_is_replaced_without_counting(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    await pool.cluster.create(JOBS, indexed("one", pool.name, 1, backoffLimit=0, **policy(rule)), namespace=pool.name)
    (first,) = await pool.running(1)
    await pool.end(first, exit_code=143, ended=LONG_AGO, disrupted=True)
    (second,) = await pool.running(1)
    assert second.metadata.uid != first.metadata.uid
    await pool.end(second)
    done = await until(pool.cluster, JOBS, key, lambda j: j.condition("Complete"), "is complete")
    assert (done.status.failed, done.status.succeeded) == (0, 1)


async def test_a_pod_that_is_deleted_counts_as_failed(pool: Pool) -> None:
    await pool.add()
    await pool.cluster.create(JOBS, indexed("one", pool.name, 1, backoffLimit=0), namespace=pool.name)
    (pod,) = await pool.running(1)
    await pool.cluster.delete(PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))
    over = await failed(pool.cluster, Key(pool.name, "one"))
    assert reason(over) == "BackoffLimitExceeded"
    assert over.status.failed == 1


# How an attempt runs that nobody but its owner may repeat: the first pod lost ends it, and a pod keeps its place until
# it has really ended.
ONE_ATTEMPT = {"backoffLimit": 0, "podReplacementPolicy": "Failed"}


@pytest.mark.every_engine
async def test_an_attempt_fails_as_a_whole_and_only_when_all_its_pods_have_ended(engine: Engine, pool: Pool) -> None:
    node = await pool.add("lost")
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, **ONE_ATTEMPT), namespace=pool.name)
    zeroth, first = await pool.running(2)
    await engine.break_node(node)
    await pool.end(zeroth, exit_code=1)
    doomed = await until(pool.cluster, JOBS, key, lambda j: j.condition("FailureTarget"), "is to fail")
    assert doomed.condition("Failed") is None
    stopped = await until(
        pool.cluster, PODS, first.metadata.key, lambda p: p.metadata.deletion_timestamp, "is being deleted"
    )
    assert stopped.status.phase == "Running"
    waiting = await until(pool.cluster, WHOLE_JOBS, key, lambda j: j.status.get("terminating") == 1, "waits for it")
    assert waiting.status.get("active", 0) == 0
    await pool.end(first, exit_code=143)
    over = await failed(pool.cluster, key)
    assert (reason(over), over.status.failed) == ("BackoffLimitExceeded", 2)


async def test_a_deleted_pod_keeps_its_place_until_it_has_ended(engine: Engine, pool: Pool) -> None:
    node = await pool.add("lost")
    key = Key(pool.name, "one")
    body = indexed("one", pool.name, 1, backoffLimit=6, podReplacementPolicy="Failed")
    await pool.cluster.create(JOBS, body, namespace=pool.name)
    (pod,) = await pool.running(1)
    await engine.break_node(node)
    await pool.add("sound")
    await pool.cluster.delete(PODS, pod.metadata.key, DeleteOptions(grace_period_s=30))
    leaving = await until(pool.cluster, WHOLE_JOBS, key, lambda j: j.status.get("terminating") == 1, "sees it leave")
    assert (leaving.status.get("active", 0), leaving.status.get("failed", 0)) == (0, 0)
    assert len((await pool.cluster.list(PODS, namespace=pool.name)).items) == 1
    await pool.end(pod, exit_code=143, ended=LONG_AGO)
    (second,) = await pool.running(1)
    assert second.metadata.uid != pod.metadata.uid
    counted = await until(pool.cluster, JOBS, key, lambda j: j.status.failed == 1, "counts the failure")
    assert counted.condition("Failed") is None


async def test_a_pod_deleted_from_an_attempt_fails_it_once_it_has_ended(pool: Pool) -> None:
    await pool.add()
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, **ONE_ATTEMPT), namespace=pool.name)
    zeroth, _ = await pool.running(2)
    await pool.cluster.delete(PODS, zeroth.metadata.key, DeleteOptions(uid=zeroth.metadata.uid))
    over = await failed(pool.cluster, Key(pool.name, "one"))
    assert (reason(over), over.status.failed) == ("BackoffLimitExceeded", 2)
    assert (over.status.active, over.status.succeeded) == (0, 0)


async def test_a_pod_that_succeeded_stays_counted_in_an_attempt_that_fails(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, **ONE_ATTEMPT), namespace=pool.name)
    zeroth, first = await pool.running(2)
    await pool.end(zeroth)
    await until(pool.cluster, JOBS, key, lambda j: j.status.succeeded == 1, "counts the success")
    await pool.end(first, exit_code=9)
    over = await failed(pool.cluster, key)
    assert (over.status.completed_indexes, over.status.succeeded, over.status.failed) == ("0", 1, 1)


async def test_deleting_a_job_lets_go_of_pods_that_a_lost_machine_never_ends(engine: Engine, pool: Pool) -> None:
    node = await pool.add()
    await pool.cluster.create(JOBS, indexed("one", pool.name, 1, **ONE_ATTEMPT), namespace=pool.name)
    (pod,) = await pool.running(1)
    await engine.break_node(node)
    await pool.cluster.delete(JOBS, Key(pool.name, "one"), DeleteOptions(propagation=Propagation.FOREGROUND))
    await until(pool.cluster, PODS, pod.metadata.key, lambda p: p.metadata.deletion_timestamp, "is being deleted")
    await until(pool.cluster, PODS, pod.metadata.key, lambda p: not p.metadata.finalizers, "is let go")
    await pool.cluster.delete(PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid, grace_period_s=0))
    await gone(pool.cluster, JOBS, Key(pool.name, "one"))


async def test_a_job_past_its_deadline_fails_and_stops_its_pods(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(JOBS, indexed("one", pool.name, 2, activeDeadlineSeconds=2), namespace=pool.name)
    over = await failed(pool.cluster, key)
    assert reason(over) == "DeadlineExceeded"
    started, ended = (datetime.fromisoformat(at) for at in (over.status.start_time, failed_at(over)))
    assert ended >= started + timedelta(seconds=2)
    assert (over.status.active, over.status.ready) == (0, 0)
    await listed(pool.cluster, PODS, pool.name, lambda pods: not pods, "its pods are gone")
    whole = await pool.cluster.get(WHOLE_JOBS, key)
    assert not any(whole.status.get("uncountedTerminatedPods", {}).values())
    assert whole.status.get("terminating", 0) == 0


@pytest.mark.every_engine
async def test_a_success_policy_lets_one_index_decide(pool: Pool) -> None:
    await pool.add()
    key = Key(pool.name, "one")
    body = indexed("one", pool.name, 2, successPolicy={"rules": [{"succeededIndexes": "0"}]})
    await pool.cluster.create(JOBS, body, namespace=pool.name)
    zeroth, _ = await pool.running(2)
    await pool.end(zeroth)
    done = await until(pool.cluster, JOBS, key, lambda j: j.condition("Complete"), "is complete")
    assert done.status.completed_indexes == "0"
