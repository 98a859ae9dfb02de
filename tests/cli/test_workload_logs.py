"""logs of GPUWorkloads, on both engines."""

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import GPU_WORKLOADS
from holdfast.gpuworkload.job import WORKLOAD_LABEL
from holdfast.trainingjob.objects.names import JOB_NAME_LABEL
from tests.cli.lab import CommandLab, finished

SAID = "line 1\nline 2\nline 3\n"
RUNNING = {"phase": "Running", "assignedNode": "gpu-3", "jobName": "eval-job"}


async def workload(lab: CommandLab, status: JSON | None = None) -> None:
    body = {"metadata": {"name": "eval"}, "spec": {"modelName": "resnet50", "gpuCount": 1}}
    await lab.cluster.create(GPU_WORKLOADS, body, namespace=lab.namespace)
    if status is not None:
        await say(lab, status)


async def say(lab: CommandLab, status: JSON) -> None:
    await lab.cluster.patch_status(GPU_WORKLOADS, Key(lab.namespace, "eval"), {"status": status})


async def pod(lab: CommandLab, name: str, job: str) -> None:
    await lab.pod(name, {WORKLOAD_LABEL: "eval", JOB_NAME_LABEL: job})


async def test_a_workload_has_the_log_of_its_pod(lab: CommandLab) -> None:
    await workload(lab, RUNNING)
    await pod(lab, "eval-job-x", "eval-job")
    assert await lab.good("logs", "eval") == SAID
    assert await lab.good("logs", "gpuw/eval", "--tail", "1") == "line 3\n"


async def test_a_pod_of_an_earlier_attempt_is_another_one(embedded: CommandLab) -> None:
    await workload(embedded, {**RUNNING, "phase": "Scheduled", "jobName": "eval-job-1"})
    await pod(embedded, "eval-job-x", "eval-job")
    assert "it is Scheduled" in await embedded.refused("logs", "eval")


async def test_what_a_workload_waits_for_is_said_where_there_is_no_log(lab: CommandLab) -> None:
    await workload(lab)
    assert "eval has no pod: it is Pending" in await lab.refused("logs", "eval")
    await say(lab, {"phase": "Pending", "message": "needs 1 GPU on one node; no node is there"})
    assert "it is Pending: needs 1 GPU on one node; no node is there" in await lab.refused("logs", "gpuw/eval")
    assert "leave --attempt out" not in await lab.refused("logs", "gpuw/eval", "--attempt", "1")


async def test_an_attempt_is_of_training_jobs_alone(embedded: CommandLab) -> None:
    await workload(embedded, RUNNING)
    await pod(embedded, "eval-job-x", "eval-job")
    assert "leave --attempt out" in await embedded.refused("logs", "eval", "--attempt", "0", code=2)


async def test_following_waits_for_the_next_attempt(embedded: CommandLab) -> None:
    await workload(embedded, {"phase": "Pending", "jobName": "eval-job", "message": "exit code 1"})
    await pod(embedded, "eval-job-x", "eval-job")
    following = await embedded.start("logs", "-f", "eval")
    await pod(embedded, "short-x", "eval-job-1")
    await say(embedded, {**RUNNING, "jobName": "eval-job-1"})
    assert (await finished(following)).out == SAID


async def test_following_a_workload_that_ended_without_a_pod_ends(embedded: CommandLab) -> None:
    await workload(embedded, {"phase": "Failed", "message": "refused"})
    assert "it is Failed: refused" in await embedded.refused("logs", "-f", "eval")
