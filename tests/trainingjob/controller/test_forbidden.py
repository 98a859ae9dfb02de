"""What the operator forbids, on every engine."""

from msgspec import structs

from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import JOBS
from holdfast.pods.template import ForbiddenFeature
from tests.contract.pool import Pool
from tests.controllers.operating import DEFAULTS
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjob.controller.operating import operating

FORBIDDING = structs.replace(DEFAULTS, forbidden=frozenset({ForbiddenFeature.ROOT}))
ASKING = {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}, "terminationGracePeriodSeconds": 1}
SAID = "spec.podTemplate asks for leave to run as root, which the operator forbids (--forbid root): leave it out"


async def test_a_job_that_asks_for_it_fails_at_once_and_no_pod_is_made(
    cluster: Cluster, namespace: str, lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    async with operating(cluster, namespace, defaults=FORBIDDING):
        await lab.submit(podTemplate=ASKING)
        failed = await lab.until_state("Failed")
        assert (failed.failure, failed.reason("Failed")) == (SAID, "Refused")
        assert failed.status.restart_count == 0
        assert (await cluster.list(JOBS, namespace=namespace)).items == ()
        assert SAID in await lab.event("Failed")
    async with operating(cluster, namespace):  # another option, another job
        await lab.submit("again", podTemplate=ASKING)
        await pool.running(2, job="again-training")


async def test_what_runs_goes_on_until_its_next_attempt(
    cluster: Cluster, namespace: str, lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    async with operating(cluster, namespace):
        await lab.submit(podTemplate=ASKING)
        await lab.until_state("Running")
    async with operating(cluster, namespace, defaults=FORBIDDING):
        first, _ = await pool.running(2, job="bert-training")
        assert (await lab.until_state("Running")).failure == ""
        await pool.end(first, exit_code=7)
        failed = await lab.until_state("Failed")
        assert failed.failure == SAID
        jobs = (await cluster.list(JOBS, namespace=namespace)).items
        assert "bert-training-1" not in {job.metadata.name for job in jobs}
