"""The life of a GPUWorkload, on every engine."""

import pytest

from holdfast.cluster.protocol import DeleteOptions, Propagation
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS
from holdfast.gpuworkload.apply import FINALIZER
from tests.contract.pool import Pool
from tests.contract.waiting import gone, until
from tests.gpuworkload.controller.lab import GPU, GPUWorkloadLab

pytestmark = pytest.mark.usefixtures("operator")


@pytest.mark.every_engine
async def test_a_workload_gets_a_node_runs_there_and_succeeds(lab: GPUWorkloadLab, pool: Pool) -> None:
    node = await pool.add(resources={GPU: "4"})
    await lab.submit()
    running = await lab.until_phase("Running")
    assert (running.node, running.status.job_name, running.status.retry_count) == (node, "eval-job", 0)
    assert running.status.last_schedule_time
    assert (running.holds("Scheduled"), running.holds("Running")) == (True, True)
    (pod,) = await pool.running(1, job="eval-job")
    assert pod.spec.node_name == node
    await pool.end(pod)
    done = await lab.until_phase("Succeeded")
    assert done.holds("Succeeded")
    assert not done.holds("Running")
    assert done.message == f"the workload succeeded on {node}"
    assert done.status.observed_generation == done.metadata.generation
    assert await lab.event_reasons(last="Succeeded") == ["NodeChosen", "Started", "Succeeded"]


async def test_its_job_is_its_own_and_pinned_to_the_node(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "4"})
    it = await lab.submit()
    await lab.until_phase("Running")
    job = (await lab.jobs())["eval-job"]
    owner = job.metadata.controller
    assert owner
    assert (owner.kind, owner.uid) == ("GPUWorkload", it.metadata.uid)
    assert (await lab.get()).metadata.finalizers == (FINALIZER,)


@pytest.mark.every_engine
async def test_a_deleted_workload_is_gone_when_its_pod_is(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "2"})
    await lab.submit()
    await lab.until_phase("Running")
    await lab.delete()
    await lab.gone()
    assert [pod for pod in await lab.pods() if not pod.is_finished] == []
    await gone(lab.cluster, JOBS, lab.key("eval-job"))


@pytest.mark.every_engine
async def test_the_job_of_a_deleted_workload_may_be_orphaned(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "2"})
    await lab.submit()
    await lab.until_phase("Running")
    await lab.cluster.delete(GPU_WORKLOADS, lab.key("eval"), DeleteOptions(propagation=Propagation.ORPHAN))
    await lab.gone()
    job = (await lab.jobs())["eval-job"]
    assert (job.metadata.owner_references, job.metadata.deletion_timestamp) == ((), "")
    await pool.running(1, job="eval-job")


async def test_one_that_is_deleted_while_it_waits_goes_at_once_and_gives_up_its_place(
    lab: GPUWorkloadLab, pool: Pool
) -> None:
    await pool.add(resources={GPU: "2"})
    await lab.submit("first")
    await lab.until_phase("Running", "first")
    await lab.submit("second")
    await lab.until_phase("Pending", "second")
    await lab.submit("third")
    await lab.until(lambda it: "2nd in line" in it.message, "waits", "third")
    await lab.delete("second")
    await lab.gone("second")
    await pool.end(*await pool.running(1, job="first-job"))
    await lab.until_phase("Running", "third")


async def test_a_workload_that_is_suspended_gives_its_gpus_back_and_goes_on_later(
    lab: GPUWorkloadLab, pool: Pool
) -> None:
    await pool.add(resources={GPU: "2"})
    await lab.submit("first")
    await lab.until_phase("Running", "first")
    await lab.submit("second")
    await lab.until_phase("Pending", "second")
    await lab.patch("first", suspend=True)
    await lab.until_phase("Running", "second")
    stopped = await lab.until_phase("Pending", "first")
    assert not stopped.node
    await lab.until(lambda it: "set it to false to go on" in it.message, "says how to go on", "first")
    await lab.patch("first", suspend=False)
    await lab.until(lambda it: "1st in line" in it.message, "waits again", "first")
    await pool.end(*await pool.running(1, job="second-job"))
    again = await lab.until_job("first-job-1", name="first")
    assert again.status.retry_count == 0


async def test_a_workload_whose_time_to_live_is_over_is_deleted(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "2"})
    await lab.submit(ttlSecondsAfterFinished=0)
    await pool.end(*await pool.running(1, job="eval-job"))
    await lab.gone()
    await gone(lab.cluster, JOBS, lab.key("eval-job"))


@pytest.mark.every_engine
async def test_a_job_of_somebody_else_is_left_alone_and_named(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "2"})
    container = {"name": "main", "image": "registry.invalid/main:1"}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    body = {"metadata": {"name": "eval-job"}, "spec": {"suspend": True, "template": template}}
    foreign = await lab.cluster.create(JOBS, body, namespace=lab.namespace)
    await lab.submit()
    told = await lab.until(lambda it: "Job eval-job is there already" in it.message, "says so")
    assert told.status.phase == "Scheduling"
    assert (await lab.jobs())["eval-job"].metadata.uid == foreign.metadata.uid


async def test_a_workload_made_again_under_its_name_starts_anew(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "2"})
    first = await lab.submit()
    await lab.until_phase("Running")
    await lab.delete()
    await lab.gone()
    second = await lab.submit()
    running = await lab.until_phase("Running")
    assert running.metadata.uid == second.metadata.uid != first.metadata.uid
    assert running.status.job_name == "eval-job"


@pytest.mark.every_engine
async def test_a_second_look_at_a_settled_workload_writes_nothing(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "2"})
    await lab.submit("runs")
    await lab.until_phase("Running", "runs")
    await lab.submit("waits")
    await lab.until_phase("Pending", "waits")
    before = {name: (await lab.get(name)).metadata.resource_version for name in ("runs", "waits")}
    # The Job controller's last word about it.
    job = await until(lab.cluster, JOBS, lab.key("runs-job"), lambda job: job.status.ready == 1, "is ready")
    for name in before:
        note = {"metadata": {"annotations": {"looked": "again"}}}
        before[name] = (await lab.cluster.patch(GPU_WORKLOADS, lab.key(name), note)).metadata.resource_version
    await lab.submit("later", 4)
    await lab.until_phase("Pending", "later")  # everyone before it was looked at
    after = {name: (await lab.get(name)).metadata.resource_version for name in before}
    assert after == before
    assert (await lab.jobs())["runs-job"].metadata.resource_version == job.metadata.resource_version
