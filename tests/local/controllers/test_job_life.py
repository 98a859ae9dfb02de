"""Jobs from their beginning to their end, on the embedded engine in virtual time."""

import asyncio
from datetime import timedelta

from holdfast.api.core.objects import JobStatus
from holdfast.cluster.protocol import DeleteOptions, Propagation
from holdfast.cluster.resources import PODS
from holdfast.local.controllers.job_pods import FAILURES, index_of
from holdfast.local.controllers.objects import JOBS, TemplatedJob
from holdfast.times import parse_time
from tests.local.controllers.bench import PRIORITY_CLASSES, a_cluster, indexed, now, pod_spec
from tests.runtime.virtual import virtual


def reason(job: TemplatedJob) -> str:
    return next(c.reason for c in job.status.conditions if c.type in ("Complete", "Failed"))


def kinds(job: TemplatedJob) -> list[str]:
    return [c.type for c in job.status.conditions if c.status == "True"]


@virtual
async def test_a_job_without_indexes_counts_its_successes() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(completions=3, parallelism=2)
        await bench.end((await bench.running(2))[0])
        await bench.job(key, lambda job: job.status.succeeded == 1)
        for pod in await bench.running(2):
            await bench.end(pod)
        done = await bench.finished(key)
        assert kinds(done) == ["SuccessCriteriaMet", "Complete"]
        assert (done.status.succeeded, done.status.active, done.status.completed_indexes) == (3, 0, "")
        assert all(not pod.metadata.finalizers for pod in await bench.pods())


@virtual
async def test_a_work_queue_ends_with_its_workers_after_the_first_success() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(parallelism=3)
        first, second, third = await bench.running(3)
        await bench.end(first)
        await bench.end(second, 1)
        waiting = await bench.job(key, lambda job: (job.status.succeeded, job.status.failed) == (1, 1))
        assert (waiting.status.active, waiting.finished_at) == (1, "")
        await bench.end(third)
        assert (await bench.finished(key)).status.succeeded == 2


@virtual
async def test_failed_pods_are_replaced_after_a_time_that_doubles() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(1, backoffLimit=3))
        waits = []
        for _ in range(3):
            (pod,) = await bench.running(1)
            ended_at = now()
            await bench.end(pod, 1)
            await bench.job(key, lambda job: job.status.active == 0)
            (pod,) = await bench.running(1)
            waits.append(round((parse_time(pod.metadata.creation_timestamp) - ended_at).total_seconds()))
        assert waits == [10, 20, 40]
        await bench.end(pod, 1)
        failed = await bench.finished(key)
        assert (kinds(failed), reason(failed)) == (["FailureTarget", "Failed"], "BackoffLimitExceeded")
        assert failed.status.failed == 4


@virtual
async def test_a_deadline_holds_while_nothing_happens() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(2, activeDeadlineSeconds=600))
        await bench.running(2)
        failed = await bench.finished(key)
        assert reason(failed) == "DeadlineExceeded"
        lived = parse_time(failed.finished_at) - parse_time(failed.status.start_time)
        assert timedelta(seconds=600) <= lived < timedelta(seconds=610)
        assert failed.status.failed == 2


@virtual
async def test_a_finished_job_stays_for_its_time_and_then_goes_with_its_pods() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(ttlSecondsAfterFinished=120)
        (pod,) = await bench.running(1)
        await bench.end(pod)
        done = await bench.finished(key)
        await bench.gone(JOBS, key)
        assert now() - parse_time(done.finished_at) >= timedelta(seconds=120)
        await bench.gone(PODS, pod.metadata.key)


@virtual
async def test_a_job_whose_policy_says_failed_waits_until_the_old_pod_has_ended() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(1, podReplacementPolicy="Failed"))
        (pod,) = await bench.running(1)
        bench.machines.broken.add("m-1")
        await bench.cluster.delete(PODS, pod.metadata.key)
        waiting = await bench.job(key, lambda job: job.status.terminating == 1)
        assert (waiting.status.active, len(await bench.pods())) == (0, 1)
        bench.machines.broken.clear()
        await bench.end(pod, 143)
        (again,) = await bench.running(1)
        assert again.metadata.uid != pod.metadata.uid
        assert (await bench.job(key, lambda job: job.status.active == 1)).status.failed == 1


@virtual
async def test_an_index_that_fails_on_its_own_does_not_take_the_others_along() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(2, backoffLimitPerIndex=1))
        zeroth, first = await bench.running(2)
        await bench.end(zeroth)
        await bench.end(first, 1)
        await bench.job(key, lambda job: job.status.completed_indexes == "0")
        (again,) = await bench.running(1)
        assert (index_of(again), again.metadata.annotations[FAILURES]) == (1, "1")
        await bench.end(again, 1)
        failed = await bench.finished(key)
        assert reason(failed) == "FailedIndexes"
        status = failed.status
        assert (status.completed_indexes, status.failed_indexes, status.failed) == ("0", "1", 2)


@virtual
async def test_too_many_failed_indexes_end_the_job() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(3, backoffLimitPerIndex=0, maxFailedIndexes=0))
        zeroth, *_ = await bench.running(3)
        await bench.end(zeroth, 1)
        failed = await bench.finished(key)
        assert (reason(failed), failed.status.failed_indexes) == ("MaxFailedIndexesExceeded", "0")


@virtual
async def test_pods_that_restart_in_place_use_up_the_backoff_limit() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(backoffLimit=2, template={"spec": pod_spec(restartPolicy="OnFailure")})
        (pod,) = await bench.running(1)
        status = {"name": "main", "image": "", "imageID": "", "ready": True, "restartCount": 2}
        await bench.cluster.patch_status(PODS, pod.metadata.key, {"status": {"containerStatuses": [status]}})
        assert reason(await bench.finished(key)) == "BackoffLimitExceeded"


@virtual
async def test_pods_left_by_a_job_that_is_gone_are_let_go() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        for policy in (Propagation.ORPHAN, Propagation.FOREGROUND, Propagation.BACKGROUND):
            key = await bench.run_job(f"by-{policy.lower()}")
            (pod,) = await bench.running(1)
            await bench.cluster.delete(JOBS, key, DeleteOptions(propagation=policy))
            await bench.gone(JOBS, key)
            if policy is Propagation.ORPHAN:
                orphan = await bench.until(PODS, pod.metadata.key, lambda pod: not pod.metadata.finalizers)
                assert (orphan.metadata.controller, orphan.status.phase) == (None, "Running")
                await bench.cluster.delete(PODS, pod.metadata.key)
            await bench.gone(PODS, pod.metadata.key)


@virtual
async def test_a_job_of_another_manager_is_left_alone() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        theirs = await bench.run_job("theirs", managedBy="example.com/queue")
        ours = await bench.run_job("ours", managedBy="kubernetes.io/job-controller")
        await bench.job(ours, lambda job: job.status.active == 1)
        assert (await bench.cluster.get(JOBS, theirs)).status == JobStatus()
        assert len(await bench.pods()) == 1


@virtual
async def test_pods_that_are_refused_keep_the_job_trying() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(template={"spec": pod_spec(priorityClassName="missing")})
        begun = await bench.job(key, lambda job: job.status.start_time)
        assert (begun.status.active, await bench.pods()) == (0, [])
        body = {"metadata": {"name": "missing"}, "value": 5}
        await bench.cluster.create(PRIORITY_CLASSES, body)
        (pod,) = await bench.running(1)
        assert pod.spec.priority == 5


@virtual
async def test_time_spent_suspended_does_not_count_towards_the_deadline() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(1, activeDeadlineSeconds=100))
        await bench.running(1)
        await asyncio.sleep(60)
        await bench.cluster.patch(JOBS, key, {"spec": {"suspend": True}})
        rested = await bench.job(key, lambda job: "Suspended" in kinds(job))
        assert rested.status.start_time == ""
        await asyncio.sleep(600)
        assert not (await bench.cluster.get(JOBS, key)).finished_at
        await bench.cluster.patch(JOBS, key, {"spec": {"suspend": False}})
        await bench.running(1)
        resumed_at = now()
        failed = await bench.finished(key)
        assert reason(failed) == "DeadlineExceeded"
        assert now() - resumed_at > timedelta(seconds=95)


@virtual
async def test_an_exit_code_can_give_up_an_index_at_once() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        rule = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}}
        key = await bench.run_job(**indexed(2, backoffLimitPerIndex=5, podFailurePolicy={"rules": [rule]}))
        zeroth, first = await bench.running(2)
        await bench.end(zeroth, 42)
        await bench.job(key, lambda job: job.status.failed_indexes == "0")
        await bench.end(first)
        failed = await bench.finished(key)
        assert (reason(failed), failed.status.completed_indexes, failed.status.failed) == ("FailedIndexes", "1", 1)


@virtual
async def test_a_job_with_no_parallelism_rests_until_it_gets_some() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(completions=2, parallelism=2)
        first, second = await bench.running(2)
        await bench.cluster.patch(JOBS, key, {"spec": {"parallelism": 0}})
        for pod in (first, second):
            await bench.gone(PODS, pod.metadata.key)
        resting = await bench.job(key, lambda job: job.status.active == 0)
        assert (resting.status.failed, resting.finished_at) == (0, "")
        await bench.cluster.patch(JOBS, key, {"spec": {"parallelism": 1}})
        for _ in range(2):
            (pod,) = await bench.running(1)
            await bench.end(pod)
            await bench.job(key, lambda job: job.finished_at or job.status.active == 1)
        assert (await bench.finished(key)).status.succeeded == 2


@virtual
async def test_a_job_grows_and_shrinks_without_losing_what_it_has_done() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(3))
        zeroth, *_, last = await bench.running(3)
        await bench.end(zeroth)
        await bench.end(last)
        await bench.job(key, lambda job: job.status.completed_indexes == "0,2")
        await bench.cluster.patch(JOBS, key, {"spec": {"completions": 2, "parallelism": 2}})
        smaller = await bench.job(key, lambda job: job.status.completed_indexes == "0")
        assert (smaller.status.succeeded, smaller.status.active) == (1, 1)
        await bench.cluster.patch(JOBS, key, {"spec": {"completions": 4, "parallelism": 4}})
        pods = await bench.running(3)
        assert [index_of(pod) for pod in pods] == [1, 2, 3]
        for pod in pods:
            await bench.end(pod)
        done = await bench.finished(key)
        assert (done.status.succeeded, done.status.completed_indexes) == (4, "0-3")


@virtual
async def test_one_index_can_decide_for_all_and_stops_the_others() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        key = await bench.run_job(**indexed(3, successPolicy={"rules": [{"succeededIndexes": "1"}]}))
        _, decisive, _ = await bench.running(3)
        await bench.end(decisive)
        done = await bench.finished(key)
        assert (reason(done), done.status.completed_indexes, done.status.active) == ("SuccessPolicy", "1", 0)
        assert [pod.metadata.uid for pod in await bench.pods()] == [decisive.metadata.uid]
