"""TrainingJobs and GPUWorkloads are not given the same GPUs, on a cluster where no pod is ever bound."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import JOBS
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.controller import training_job_controller
from tests.contract.waiting import until
from tests.controllers.operating import DEFAULTS, namespace_operator, running
from tests.gpuworkload.controller.lab import GPUWorkloadLab, choose
from tests.gpuworkload.controller.still import NAMESPACE, add_node, still_cluster
from tests.trainingjob.controller.lab import TrainingJobLab


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with still_cluster() as cluster:
        yield cluster


@asynccontextmanager
async def operating(cluster: Cluster) -> AsyncIterator[None]:
    """An operator for both kinds works inside the block."""
    operator = namespace_operator(cluster, NAMESPACE)
    ledger = SharedLedger(operator)
    operator.add(training_job_controller(operator, cluster, defaults=DEFAULTS, now=utc_now, ledger=ledger))
    operator.add(gpu_workload_controller(operator, cluster, defaults=DEFAULTS, now=utc_now, ledger=ledger))
    async with running(operator):
        yield


@pytest.fixture
async def lab(cluster: Cluster) -> AsyncIterator[GPUWorkloadLab]:
    async with operating(cluster):
        yield GPUWorkloadLab(cluster, NAMESPACE)


@pytest.fixture
def jobs(cluster: Cluster) -> TrainingJobLab:
    return TrainingJobLab(cluster, NAMESPACE)


async def test_a_gang_does_not_count_on_what_a_workload_was_given(lab: GPUWorkloadLab, jobs: TrainingJobLab) -> None:
    await add_node(lab.cluster, "a", 4)
    await lab.submit(gpus=2)
    await lab.until_phase("Scheduled")
    await jobs.submit("gang", numWorkers=2, gpusPerWorker=2)
    await jobs.until(lambda job: "needs 2 × 2 GPUs; 1 node has 2 free" in job.message, "waits", "gang")
    await lab.delete()
    await lab.gone()
    await until(lab.cluster, JOBS, lab.key("gang-training"), lambda job: not job.spec.suspend, "may start")


async def test_a_workload_does_not_count_on_what_a_gang_was_given(lab: GPUWorkloadLab, jobs: TrainingJobLab) -> None:
    await add_node(lab.cluster, "a", 4)
    await jobs.submit("gang", numWorkers=2, gpusPerWorker=2)
    await until(lab.cluster, JOBS, lab.key("gang-training"), lambda job: not job.spec.suspend, "may start")
    await lab.submit(gpus=2)
    waiting = await lab.until_phase("Pending")
    assert waiting.message == "needs 2 GPUs on one node; no node has any free; 1st in line"
    await jobs.patch("gang", suspend=True)
    await lab.until_phase("Scheduled")


async def test_of_both_at_once_each_gpu_goes_to_one(lab: GPUWorkloadLab, jobs: TrainingJobLab) -> None:
    await add_node(lab.cluster, "a", 4)
    await add_node(lab.cluster, "b", 4)
    for number in range(4):
        await jobs.submit(f"gang-{number}", numWorkers=1, gpusPerWorker=2)
        await lab.submit(f"w-{number}", 2)
    started, waiting = 0, 0
    for number in range(4):
        gang = await jobs.until(
            lambda job: job.status.state in ("Initializing", "Pending"), "is judged", f"gang-{number}"
        )
        it = await lab.until(lambda it: it.status.phase in ("Scheduled", "Pending"), "is judged", f"w-{number}")
        for waits in (gang.status.state == "Pending", it.status.phase == "Pending"):
            started, waiting = started + (not waits), waiting + waits
    assert (started, waiting) == (4, 4)


async def test_what_a_workload_was_given_before_a_restart_is_not_given_to_a_gang(
    cluster: Cluster, jobs: TrainingJobLab
) -> None:
    """The operator died before it made the Job; the gang comes first in the alphabet, and with the controllers."""
    await add_node(cluster, "a", 4)
    lab = GPUWorkloadLab(cluster, NAMESPACE)
    await jobs.submit("gang", numWorkers=2, gpusPerWorker=2)
    for number in range(20):
        await lab.submit(f"w-{number}", 4)
    await lab.submit()
    await choose(lab, "eval", "a")
    async with operating(cluster):
        await jobs.until(lambda job: "needs 2 × 2 GPUs; 1 node has 2 free" in job.message, "waits", "gang")
        await lab.until_phase("Scheduled")
    assert {name for name, job in (await lab.jobs()).items() if not job.spec.suspend} == {"eval-job"}
