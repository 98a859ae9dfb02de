"""Where no pod comes of a Job: what a workload is told, keeps and gives back."""

from collections.abc import AsyncIterator

import pytest

from holdfast.api.core.objects import Job
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import EVENTS, JOBS
from holdfast.runtime.process import utc_now
from holdfast.times import format_time
from tests.gpuworkload.controller.lab import GPUWorkloadLab, placing
from tests.gpuworkload.controller.still import NAMESPACE, add_node, still_cluster

REFUSED = 'Error creating: pods "eval-job-abcde" is forbidden: exceeded quota: gpus, used: 8, limited: 8'


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with still_cluster() as cluster:
        yield cluster


@pytest.fixture
def lab(cluster: Cluster) -> GPUWorkloadLab:
    return GPUWorkloadLab(cluster, NAMESPACE)


async def look_at(lab: GPUWorkloadLab, name: str) -> Job:
    """As the Job controller does, without a pod."""
    started = {"status": {"startTime": format_time(utc_now())}}
    return await lab.cluster.patch_status(JOBS, lab.key(name), started)


async def refuse(lab: GPUWorkloadLab, job: Job) -> None:
    about = {"kind": "Job", "namespace": NAMESPACE, "name": job.metadata.name, "uid": job.metadata.uid}
    event = {
        "metadata": {"generateName": "refused-"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FailedCreate",
        "message": REFUSED,
        "lastTimestamp": format_time(utc_now()),
    }
    await lab.cluster.create(EVENTS, event, namespace=NAMESPACE)


async def test_a_job_that_nobody_looks_at_keeps_its_node_and_says_so(lab: GPUWorkloadLab) -> None:
    await add_node(lab.cluster, "a", 2)
    async with placing(lab.cluster, NAMESPACE, bind_timeout_s=0.3, explain_s=1.0):
        await lab.submit()
        await lab.until_phase("Scheduled")
        await lab.submit("next")
        await lab.until_phase("Pending", "next")
        await lab.until(
            lambda it: it.message == "its pod can't start on a yet: the Job controller has not looked at it yet",
            "says who is late, which is after three times as long as a pod may be turned away",
        )
        assert (await lab.get("next")).status.phase == "Pending"
        assert set(await lab.jobs()) == {"eval-job"}


async def test_the_reason_of_a_refused_pod_is_shown_and_its_node_is_given_back(lab: GPUWorkloadLab) -> None:
    await add_node(lab.cluster, "a", 2)
    async with placing(lab.cluster, NAMESPACE, bind_timeout_s=2.0, explain_s=0.2):
        await lab.submit()
        await lab.until_phase("Scheduled")
        await refuse(lab, await look_at(lab, "eval-job"))
        refused = "it is refused: exceeded quota: gpus, used: 8, limited: 8"
        await lab.until(lambda it: it.message == f"its pod can't start on a yet: {refused}", "says why")
        await lab.submit("urgent", priority=1)
        await lab.until_phase("Scheduled", "urgent")
        given_back = await lab.get()
        assert (given_back.status.phase, given_back.node, given_back.status.retry_count) == ("Pending", "", 0)
        assert await lab.event("Replacing", "eval") == (
            f"its pod did not get node a within 2 s: {refused}; looking for another node"
        )


async def test_a_job_that_somebody_suspended_does_not_keep_its_node_for_ever(lab: GPUWorkloadLab) -> None:
    await add_node(lab.cluster, "a", 2)
    async with placing(lab.cluster, NAMESPACE, bind_timeout_s=1.0):
        await lab.submit()
        await lab.until_phase("Scheduled")
        await lab.cluster.patch(JOBS, lab.key("eval-job"), {"spec": {"suspend": True}})
        await lab.until_job("eval-job-1", "Scheduled")
        assert "Job eval-job was suspended by somebody else" in await lab.event("Replacing", "eval")
