"""How a TrainingJob outlives its workers, on every engine."""

import asyncio
from typing import Any

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, NODES, PODS
from holdfast.runtime.operator import Operator
from tests.contract.engine import Engine
from tests.contract.pods import pod_spec
from tests.contract.pool import Pool
from tests.contract.waiting import gone, until
from tests.control_plane.waiting import eventually
from tests.trainingjob.controller.lab import TrainingJobLab

pytestmark = pytest.mark.usefixtures("operator")


@pytest.mark.every_engine
async def test_a_gang_starts_anew_as_a_whole_when_one_worker_fails(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    first, second = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await pool.end(second, exit_code=7)
    workers = await pool.running(2, job="bert-training-1", other_than=(first.metadata.uid, second.metadata.uid))
    again = await lab.until_state("Running", attempt=1)
    assert again.status.restarts
    assert (again.status.restarts.application, again.status.restart_count) == (1, 1)
    assert "worker 1" in again.failure
    assert "exited with code 7" in again.failure
    assert second.spec.node_name in again.failure
    assert "exited with code 7" in await lab.event("Restarting")
    await gone(lab.cluster, JOBS, lab.key("bert-training"))
    await pool.end(*workers)
    done = await lab.until_state("Completed")
    assert done.failure == ""
    assert done.status.restarts == again.status.restarts


@pytest.mark.parametrize("owner", ["nobody", "another"])
async def test_a_foreign_pod_with_a_workers_labels_holds_up_nothing_and_is_left_alone(
    lab: TrainingJobLab, pool: Pool, owner: str
) -> None:
    labels = {
        "training-job": "bert",
        "app.kubernetes.io/managed-by": "holdfast",
        "holdfast.dev/attempt": "0",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    metadata: dict[str, Any] = {"name": "foreign", "labels": labels}
    if owner != "nobody":
        other = await lab.cluster.create(CONFIG_MAPS, {"metadata": {"name": "other"}}, namespace=lab.namespace)
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other.metadata.uid}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    made = {"metadata": metadata, "spec": {**pod_spec("none"), "nodeSelector": {"nowhere": "to-be-found"}}}
    foreign = await lab.cluster.create(PODS, made, namespace=lab.namespace)
    await pool.add()
    await lab.submit(numWorkers=1)
    await pool.end(*await pool.running(1, job="bert-training"), exit_code=7)
    await pool.end(*await pool.running(1, job="bert-training-1"))
    await lab.until_state("Completed")
    left = await lab.cluster.get(PODS, foreign.metadata.key)
    assert (left.metadata.uid, left.metadata.deletion_timestamp) == (foreign.metadata.uid, "")


async def test_the_limit_ends_a_job_that_fails_again_and_again(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"backoffLimit": 2}, numWorkers=1)
    for attempt in range(3):
        suffix = f"-{attempt}" if attempt else ""
        await pool.end(*await pool.running(1, job=f"bert-training{suffix}"), exit_code=7)
    failed = await lab.until_state("Failed")
    assert failed.reason("Failed") == "BackoffLimitExceeded"
    assert "exited with code 7" in failed.failure
    assert "after 2 of 2 restarts" in failed.failure
    assert failed.status.restart_count == 2
    assert "exited with code 7" in await lab.event("Failed")


async def test_between_attempts_that_do_not_last_it_waits_and_says_until_when(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(numWorkers=1)
    await pool.end(*await pool.running(1, job="bert-training"), exit_code=7)
    at_once = await lab.until_state("Running", attempt=1)
    assert at_once.status.next_retry_time is None
    await pool.end(*await pool.running(1, job="bert-training-1"), exit_code=7)
    waiting = await lab.until(lambda job: job.status.next_retry_time, "waits")
    assert f"next try at {waiting.status.next_retry_time}" in waiting.message
    await lab.until_state("Running", attempt=2)


@pytest.mark.parametrize("policy", ["OnFailure", "Never", "ExitCode"])
async def test_a_worker_taken_away_costs_nothing_whatever_the_policy(
    lab: TrainingJobLab, pool: Pool, policy: str
) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"backoffLimit": 0, "restartPolicy": policy})
    lost, _ = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await pool.end(lost, exit_code=137, disrupted=True)
    await pool.end(*await pool.running(2, job="bert-training-1"))
    done = await lab.until_state("Completed")
    assert done.status.restarts
    assert done.status.restarts.infrastructure + done.status.restarts.preemption == 1
    assert done.status.restarts.application == 0


@pytest.mark.every_engine
async def test_a_worker_deleted_by_hand_costs_nothing(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"backoffLimit": 0})
    lost, _ = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await lab.cluster.delete(PODS, lost.metadata.key, DeleteOptions(uid=lost.metadata.uid))
    await pool.running(2, job="bert-training-1")
    again = await lab.until_state("Running", attempt=1)
    assert again.status.restarts
    assert again.status.restarts.infrastructure == 1
    assert "worker 0" in again.failure


async def test_a_job_whose_workers_job_is_deleted_by_hand_starts_anew(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await lab.cluster.delete(JOBS, lab.key("bert-training"))
    await pool.running(2, job="bert-training-1")
    again = await lab.until_state("Running", attempt=1)
    assert again.status.restarts
    assert again.status.restarts.infrastructure == 1


@pytest.mark.parametrize(("exit_code", "goes_on"), [(3, False), (143, True)])
async def test_with_exit_code_only_signals_are_tried_again(
    lab: TrainingJobLab, pool: Pool, exit_code: int, goes_on: bool
) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"restartPolicy": "ExitCode"})
    first, _ = await pool.running(2)
    await lab.until_state("Running")
    await pool.end(first, exit_code=exit_code)
    if goes_on:
        await lab.until_state("Running", attempt=1)
    else:
        assert (await lab.until_state("Failed")).reason("Failed") == "PermanentExitCode"
        await pool.running(0)


async def test_never_fails_at_the_first_failure_of_the_training_and_stops_the_others(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"restartPolicy": "Never"})
    first, _ = await pool.running(2)
    await lab.until_state("Running")
    await pool.end(first, exit_code=143)
    assert (await lab.until_state("Failed")).reason("Failed") == "RestartPolicyNever"
    await pool.running(0)


@pytest.mark.every_engine
async def test_an_elastic_gang_keeps_its_attempt(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(command=["torchrun", "--nnodes=1:2", "train.py"])
    lost, kept = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await pool.end(lost, exit_code=137, disrupted=True)
    replaced = await pool.running(1, job="bert-training", other_than=(lost.metadata.uid, kept.metadata.uid))
    await lab.until_state("Running")
    await pool.end(kept, *replaced)
    assert (await lab.until_state("Completed")).status.restart_count == 0


@pytest.mark.every_engine
async def test_the_attempts_of_a_broken_gang_never_overlap(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(podTemplate={"terminationGracePeriodSeconds": 2})
    start = (await lab.cluster.list(PODS, namespace=lab.namespace)).resource_version
    for attempt in range(3):
        suffix = f"-{attempt}" if attempt else ""
        lost, _ = await pool.running(2, job=f"bert-training{suffix}")
        await pool.end(lost, exit_code=9)
    await pool.running(2, job="bert-training-3")
    assert await attempts_at_once(lab.cluster, lab.namespace, start, last=3) == 1


@pytest.mark.every_engine
async def test_a_pod_stuck_on_a_lost_node_holds_up_the_restart_only_for_a_while(
    lab: TrainingJobLab, pool: Pool, engine: Engine
) -> None:
    cluster = lab.cluster
    gone_node = await pool.add("a", resources={"pods": "1"})
    await pool.add("b", resources={"pods": "1"})
    await lab.submit()
    workers = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    stuck = next(pod for pod in workers if pod.spec.node_name == gone_node)
    await engine.break_node(gone_node)
    await until(cluster, NODES, Key("", gone_node), lambda seen: not seen.is_ready, "is lost")
    await cluster.delete(PODS, stuck.metadata.key, DeleteOptions(uid=stuck.metadata.uid))
    await lab.until(lambda job: job.status.restart_count == 1, "starts anew")
    await pool.add("c", resources={"pods": "1"})
    await pool.running(2, job="bert-training-1")
    await lab.until_state("Running", attempt=1)
    old = await cluster.get(PODS, stuck.metadata.key)
    assert old.metadata.uid == stuck.metadata.uid
    await cluster.delete(PODS, stuck.metadata.key, DeleteOptions(grace_period_s=0))
    await gone(cluster, PODS, stuck.metadata.key)


async def attempts_at_once(cluster: Cluster, namespace: str, since: str, *, last: int) -> int:
    """The most attempts that had a pod on a node at the same moment, by the watch's history until `last` runs."""
    alive: dict[str, str] = {}
    most = 0
    async with cluster.watch(PODS, resource_version=since, namespace=namespace) as events, asyncio.timeout(60):
        async for event in events:
            pod: Any = event.object
            if not isinstance(pod, Pod):
                continue
            attempt = pod.metadata.labels["holdfast.dev/attempt"]
            if event.change == "DELETED" or pod.is_finished:
                alive.pop(pod.metadata.uid, None)
            elif pod.spec.node_name:
                alive[pod.metadata.uid] = attempt
            most = max(most, len(set(alive.values())))
            if list(alive.values()).count(str(last)) == 2:
                return most
    raise AssertionError("the watch ended early")


async def test_the_operator_shows_the_wait_the_restart_and_what_is_not_saved(
    lab: TrainingJobLab, pool: Pool, operator: Operator
) -> None:
    of_job = {"namespace": lab.namespace, "training_job": "bert"}

    async def until_shown(name: str, labels: dict[str, str], value: float | None = None) -> None:
        """With any value, or with this one. The operator's cache may be a moment behind what the lab sees."""

        async def shown() -> float | None:
            return operator.registry.get_sample_value(f"trainingjob_{name}", labels)

        def is_right(found: float | None) -> bool:
            return found is not None and value in (None, found)

        await eventually(shown, is_right, what=f"{name} with {labels}")

    await lab.submit()
    waiting = await lab.until_state("Pending")
    reason = next(each.reason for each in waiting.status.conditions if each.type == "Running")
    await until_shown("waiting_seconds", {**of_job, "reason": reason})
    await until_shown("jobs", {"namespace": lab.namespace, "state": "Pending", "reason": reason}, 1)
    await pool.add()
    _, second = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await until_shown("unsaved_seconds", of_job)
    await until_shown("failed_attempts_total", of_job, 0)
    await pool.end(second, exit_code=7)
    await lab.until_state("Running", attempt=1)
    await until_shown("failed_attempts_total", of_job, 1)
    by_class = {"namespace": lab.namespace, "class": "application"}
    await until_shown("restarts_total", by_class, 1)
    await until_shown("lost_gpu_seconds_total", by_class)
