"""How a GPUWorkload outlives its tries, on every engine."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS, NODES, PODS
from holdfast.runtime.process import utc_now
from holdfast.times import parse_time
from tests.contract.engine import ROOMY, Engine
from tests.contract.pods import POOL, pod
from tests.contract.pool import Pool
from tests.contract.waiting import gone, until
from tests.gpuworkload.controller.lab import GPU, GPUWorkloadLab, choose, placing


@pytest.mark.usefixtures("operator")
class TestWithAnOperator:
    @pytest.mark.every_engine
    async def test_a_failure_is_tried_again_on_another_node(self, lab: GPUWorkloadLab, pool: Pool) -> None:
        first = await pool.add("a", resources={GPU: "8"})
        second = await pool.add("b", resources={GPU: "2"})
        await lab.submit(retryPolicy={"backoffSeconds": 3})
        assert (await lab.until_phase("Running")).node == first
        await pool.end(*await pool.running(1, job="eval-job"), exit_code=3)
        waiting = await lab.until(lambda it: it.status.next_retry_time, "waits")
        assert (waiting.status.phase, waiting.status.retry_count, waiting.status.avoided_node) == ("Pending", 1, first)
        assert "exited with code 3" in waiting.message
        assert f"next try at {waiting.status.next_retry_time}" in waiting.message
        again = await lab.until_job("eval-job-1")
        assert (again.node, again.status.next_retry_time, again.status.avoided_node) == (second, None, None)
        await gone(lab.cluster, JOBS, lab.key("eval-job"))
        assert "Retrying" in await lab.event_reasons(last="Retrying")

    async def test_a_failed_job_stays_until_the_next_attempt(self, lab: GPUWorkloadLab, pool: Pool) -> None:
        await pool.add(resources={GPU: "2"})
        await lab.submit(retryPolicy={"backoffSeconds": 200})
        (failed,) = await pool.running(1, job="eval-job")
        await pool.end(failed, exit_code=3)
        await lab.until(lambda it: it.status.next_retry_time, "waits")
        await until(lab.cluster, JOBS, lab.key("eval-job"), lambda job: job.condition("Failed"), "has failed")
        assert (await lab.cluster.get(PODS, failed.metadata.key)).status.phase == "Failed"
        assert not (await lab.jobs())["eval-job"].metadata.deletion_timestamp

    async def test_retries_come_to_an_end_with_the_reason(self, lab: GPUWorkloadLab, pool: Pool) -> None:
        await pool.add(resources={GPU: "2"})
        await lab.submit(retryPolicy={"backoffSeconds": 1, "maxRetries": 1})
        await pool.end(*await pool.running(1, job="eval-job"), exit_code=3)
        await pool.end(*await pool.running(1, job="eval-job-1"), exit_code=3)
        failed = await lab.until_phase("Failed")
        assert failed.holds("Failed")
        assert failed.message.endswith("exited with code 3 (after 1 of 1 retries)")
        assert {each.reason for each in failed.status.conditions} == {"RetriesExhausted"}
        assert "Failed" in await lab.event_reasons(last="Failed")
        await lab.submit("next")
        await lab.until_phase("Running", "next")

    async def test_without_retries_the_first_failure_is_the_last(self, lab: GPUWorkloadLab, pool: Pool) -> None:
        await pool.add(resources={GPU: "2"})
        await lab.submit(retryPolicy={"maxRetries": 0})
        await pool.end(*await pool.running(1, job="eval-job"), exit_code=3)
        assert (await lab.until_phase("Failed")).status.retry_count == 0

    async def test_a_pod_taken_away_costs_no_retry(self, lab: GPUWorkloadLab, pool: Pool) -> None:
        await pool.add(resources={GPU: "2"})
        await lab.submit(retryPolicy={"maxRetries": 0})
        (lost,) = await pool.running(1, job="eval-job")
        await lab.until_phase("Running")
        await lab.cluster.delete(PODS, lost.metadata.key, DeleteOptions(uid=lost.metadata.uid))
        again = await lab.until_job("eval-job-1")
        assert again.status.retry_count == 0
        assert "Replacing" in await lab.event_reasons(last="Replacing")

    async def test_a_job_deleted_by_hand_is_replaced(self, lab: GPUWorkloadLab, pool: Pool) -> None:
        await pool.add(resources={GPU: "2"})
        await lab.submit(retryPolicy={"maxRetries": 0})
        await lab.until_phase("Running")
        await lab.cluster.delete(JOBS, lab.key("eval-job"))
        assert (await lab.until_job("eval-job-1")).status.retry_count == 0

    @pytest.mark.every_engine
    async def test_a_node_that_vanishes_is_replaced_without_a_retry(
        self, lab: GPUWorkloadLab, pool: Pool, engine: Engine
    ) -> None:
        lost = f"{pool.name}-lost"
        await engine.add_node(lost, resources={**ROOMY, GPU: "8"}, labels={POOL: pool.name})
        other = await pool.add("b", resources={GPU: "2"})
        await lab.submit(retryPolicy={"maxRetries": 0})
        assert (await lab.until_phase("Running")).node == lost
        await lab.cluster.delete(NODES, Key("", lost))
        again = await lab.until_job("eval-job-1")
        assert (again.node, again.status.retry_count) == (other, 0)

    async def test_a_deleted_workload_on_a_silent_node_is_held_up_only_for_a_while(
        self, lab: GPUWorkloadLab, pool: Pool, engine: Engine
    ) -> None:
        node = await pool.add(resources={GPU: "2"})
        await lab.submit()
        (stuck,) = await pool.running(1, job="eval-job")
        await lab.until_phase("Running")
        await engine.break_node(node)
        await until(lab.cluster, NODES, Key("", node), lambda seen: not seen.is_ready, "is lost")
        await lab.cluster.patch(PODS, stuck.metadata.key, {"metadata": {"finalizers": ["test.holdfast.dev/stuck"]}})
        await lab.delete()
        await until(lab.cluster, PODS, stuck.metadata.key, lambda seen: seen.is_terminating, "is told to stop")
        await lab.cluster.delete(PODS, stuck.metadata.key, DeleteOptions(grace_period_s=1))
        await lab.gone()
        assert (await lab.cluster.get(PODS, stuck.metadata.key)).metadata.uid == stuck.metadata.uid
        await lab.cluster.patch(PODS, stuck.metadata.key, {"metadata": {"finalizers": None}})
        await lab.cluster.delete(PODS, stuck.metadata.key, DeleteOptions(grace_period_s=0))


@pytest.mark.every_engine
async def test_one_whose_node_was_taken_by_hand_is_placed_anew(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster
) -> None:
    """Between the choice and the pod somebody took the GPUs without asking the scheduler."""
    full = await pool.add("a", resources={GPU: "8"})
    other = await pool.add("b", resources={GPU: "2"})
    await cluster.create(PODS, pod("intruder", pool.name, requests={GPU: "8"}, nodeName=full), namespace=lab.namespace)
    await lab.submit()
    await choose(lab, "eval", full)
    async with placing(cluster, lab.namespace, bind_timeout_s=2.0, reservation_timeout_s=5.0):
        again = await lab.until_job("eval-job-1")
        assert f"its pod did not get node {full} within 2 s" in await lab.event("Replacing", "eval")
    assert (again.node, again.status.retry_count) == (other, 0)
    held = [each for each in await lab.pods() if each.spec.node_name == full and not each.is_finished]
    assert [each.metadata.name for each in held] == ["intruder"]


CLOSED: dict[str, dict[str, Any]] = {
    "cordoned": {"unschedulable": True},
    "tainted": {"taints": [{"key": "team", "value": "other", "effect": "NoSchedule"}]},
}


@pytest.mark.parametrize("closing", CLOSED.values(), ids=CLOSED)
async def test_one_whose_node_was_closed_before_its_pod_came_is_placed_anew(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster, closing: dict[str, Any]
) -> None:
    closed = await pool.add("a", resources={GPU: "8"})
    other = await pool.add("b", resources={GPU: "2"})
    await cluster.patch(NODES, Key("", closed), {"spec": closing})
    await lab.submit()
    await choose(lab, "eval", closed)
    async with placing(cluster, lab.namespace, bind_timeout_s=2.0):
        assert (await lab.until_job("eval-job-1")).node == other


@pytest.mark.parametrize("closing", CLOSED.values(), ids=CLOSED)
async def test_one_that_runs_stays_where_it_is_when_its_node_is_closed(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster, closing: dict[str, Any]
) -> None:
    node = await pool.add("a", resources={GPU: "4"})
    async with placing(cluster, lab.namespace):
        await lab.submit()
        await lab.until_phase("Running")
        await cluster.patch(NODES, Key("", node), {"spec": closing})
        await lab.submit("next")
        assert "closed to it" in (await lab.until_phase("Pending", "next")).message
        await pool.end(*await pool.running(1, job="eval-job"))
        done = await lab.until_phase("Succeeded")
    assert (done.node, done.status.job_name) == (node, "eval-job")


async def test_a_name_that_stays_taken_is_left_for_the_next_one(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster
) -> None:
    """The node is not kept for a Job that can't be made."""
    await pool.add(resources={GPU: "2"})
    container = {"name": "main", "image": "registry.invalid/main:1"}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    body = {"metadata": {"name": "eval-job"}, "spec": {"suspend": True, "template": template}}
    foreign = await cluster.create(JOBS, body, namespace=lab.namespace)
    async with placing(cluster, lab.namespace, bind_timeout_s=2.0):
        await lab.submit()
        again = await lab.until_job("eval-job-1")
        told = await lab.event("Replacing", "eval")
    assert "Job eval-job is there already and belongs to nobody that this workload knows" in told
    assert again.status.retry_count == 0
    assert (await lab.jobs())["eval-job"].metadata.uid == foreign.metadata.uid


NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "a node that is not there": ({"assignedNode": "nowhere"}, "eval-job-1"),
    "the Job of another": ({"jobName": "other-job"}, "eval-job-1"),
    "no phase": ({"phase": None}, "eval-job"),
    "times of another age": (
        {"nextRetryTime": "2999-12-31T23:59:59Z", "lastScheduleTime": "1970-01-01T00:00:00Z"},
        "eval-job",
    ),
}


@pytest.mark.parametrize(("nonsense", "then"), NONSENSE.values(), ids=NONSENSE)
@pytest.mark.every_engine
async def test_a_status_that_somebody_has_written_into_is_survived(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster, nonsense: dict[str, Any], then: str
) -> None:
    """It ends as it should, it keeps its place before those who came later, and nobody else suffers."""
    node = await pool.add(resources={GPU: "4"})
    async with placing(cluster, lab.namespace):
        await lab.submit("other")
        await lab.until_phase("Running", "other")
        await lab.submit()
        await lab.until_phase("Running")
        await lab.submit("last")
        await lab.until_phase("Pending", "last")
        others = (await lab.jobs())["other-job"].metadata.uid
        await cluster.patch_status(GPU_WORKLOADS, lab.key("eval"), {"status": nonsense})
        mended = await lab.until(
            lambda it: (
                (it.status.phase, it.node, it.status.job_name, it.status.next_retry_time)
                == ("Running", node, then, None)
            ),
            "is mended",
        )
        assert mended.status.retry_count == 0
        await pool.end(*await pool.running(1, job=then))
        await lab.until_phase("Succeeded")
        await lab.until_phase("Running", "last")
    assert (await lab.jobs())["other-job"].metadata.uid == others


async def test_a_restarted_operator_goes_on_where_it_was(lab: GPUWorkloadLab, pool: Pool, cluster: Cluster) -> None:
    await pool.add(resources={GPU: "2"})
    async with placing(cluster, lab.namespace):
        await lab.submit("first")
        await lab.submit("second")
        await lab.until_phase("Running", "first")
        await lab.until_phase("Pending", "second")
    before = await lab.get("first")
    async with placing(cluster, lab.namespace):
        await pool.end(*await pool.running(1, job="first-job"))
        await lab.until_phase("Succeeded", "first")
        await lab.until_phase("Running", "second")
    assert (await lab.get("first")).status.last_schedule_time == before.status.last_schedule_time
    assert set(await lab.jobs()) == {"first-job", "second-job"}


async def test_the_wait_before_a_retry_outlives_the_operator(lab: GPUWorkloadLab, pool: Pool, cluster: Cluster) -> None:
    await pool.add(resources={GPU: "2"})
    async with placing(cluster, lab.namespace):
        await lab.submit(retryPolicy={"backoffSeconds": 3})
        await pool.end(*await pool.running(1, job="eval-job"), exit_code=3)
        waiting = await lab.until(lambda it: it.status.next_retry_time, "waits")
    async with placing(cluster, lab.namespace):
        again = await lab.until_job("eval-job-1")
    assert waiting.status.next_retry_time
    assert again.status.last_schedule_time
    assert parse_time(again.status.last_schedule_time) >= parse_time(waiting.status.next_retry_time)
    assert again.status.retry_count == 1


async def test_a_choice_that_is_written_is_carried_out_by_the_next_operator(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster
) -> None:
    """The operator died between the status and the Job: the choice stands, and nobody else gets its room."""
    await pool.add("a", resources={GPU: "8"})
    chosen = await pool.add("b", resources={GPU: "2"})
    await lab.submit("first")
    await choose(lab, "first", chosen)
    await lab.submit("second", 2, selector={"kubernetes.io/hostname": chosen}, priority=9)
    async with placing(cluster, lab.namespace):
        assert (await lab.until_phase("Running", "first")).node == chosen
        await lab.until_phase("Pending", "second")


@pytest.mark.every_engine
async def test_a_job_that_was_made_before_the_crash_is_found_again(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster
) -> None:
    await pool.add(resources={GPU: "2"})
    async with placing(cluster, lab.namespace):
        await lab.submit()
        await lab.until_phase("Running")
    made = (await lab.jobs())["eval-job"].metadata.uid
    await cluster.patch_status(GPU_WORKLOADS, lab.key("eval"), {"status": {"phase": "Scheduling"}})
    async with placing(cluster, lab.namespace):
        await lab.until_phase("Running")
    assert {name: job.metadata.uid for name, job in (await lab.jobs()).items()} == {"eval-job": made}


@pytest.mark.parametrize("ahead", [timedelta(hours=-3), timedelta(hours=3)])
async def test_a_clock_apart_from_the_cluster_s_costs_no_attempt(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster, ahead: timedelta
) -> None:
    """Nobody gives up a pod that the scheduler turns away for a moment, however old its Job seems to be."""
    node = await pool.add(resources={GPU: "2"})
    async with placing(cluster, lab.namespace, now=lambda: utc_now() + ahead):
        intruder = pod("intruder", pool.name, requests={GPU: "2"}, nodeName=node)
        held = await cluster.create(PODS, intruder, namespace=lab.namespace)
        await lab.submit()
        await choose(lab, "eval", node)
        await lab.until(lambda it: "Insufficient nvidia.com/gpu" in it.message, "is turned away")
        await cluster.delete(PODS, held.metadata.key, DeleteOptions(grace_period_s=0))
        await lab.until_job("eval-job")


@pytest.mark.parametrize("jump", [timedelta(hours=-3), timedelta(hours=3)])
async def test_a_clock_that_jumps_loses_nobody(
    lab: GPUWorkloadLab, pool: Pool, cluster: Cluster, jump: timedelta
) -> None:
    await pool.add(resources={GPU: "2"})
    ahead = timedelta()

    def now() -> datetime:
        return utc_now() + ahead

    async with placing(cluster, lab.namespace, now=now):
        await lab.submit("first", retryPolicy={"backoffSeconds": 200})
        await pool.end(*await pool.running(1, job="first-job"), exit_code=3)
        await lab.until(lambda it: it.status.next_retry_time, "waits", "first")
        ahead = jump
        await lab.patch("first", priority=1)  # any news: a timer of the old clock is not to be waited for
        await lab.until_job("first-job-1", name="first")
        await lab.submit("second")
        await lab.until_phase("Pending", "second")
        await pool.end(*await pool.running(1, job="first-job-1"))
        await lab.until_phase("Running", "second")
