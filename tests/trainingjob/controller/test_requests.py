"""What a job costs: each request of the operator from its creation to its end."""

import pytest

from tests.contract.pool import Pool
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjob.controller.operating import operating
from tests.trainingjob.controller.requests import RecordingCluster

# No test depends on how fast workers start: counts wait for the next state, and nobody asks why it takes so long.
PATIENT = {"counts_s": 3600.0, "explain_s": 3600.0}


@pytest.mark.every_engine
async def test_a_job_costs_one_write_per_object_one_per_state_and_one_event(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    recording = RecordingCluster(lab.cluster)
    async with operating(recording.cluster, lab.namespace, **PATIENT):
        await lab.submit(numWorkers=4)
        await lab.until_state("Running")
        await pool.end(*await pool.running(4))
        done = await lab.until_state("Completed")
    assert (done.workers.active, done.workers.succeeded) == (0, 4)
    assert recording.states() == ["Initializing", "Running", "Completed"]
    counts = recording.counts()
    del counts["patch_status", "trainingjobs"]
    assert counts == {
        ("create", "configmaps"): 1,
        ("create", "services"): 2,
        ("create", "serviceaccounts"): 1,
        ("create", "jobs"): 1,
        ("create", "events"): 1,
    }
    (created,) = (each.body for each in recording.asked if (each.verb, each.plural) == ("create", "jobs"))
    assert created["spec"]["suspend"] is False


async def test_counts_are_shown_after_a_while_although_no_state_changes(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    async with operating(lab.cluster, lab.namespace, counts_s=0.5):
        await lab.submit(numWorkers=3)
        await lab.until_state("Running")
        first, *_ = await pool.running(3)
        await pool.end(first)
        halfway = await lab.until(lambda job: job.workers.succeeded == 1, "is counted")
        assert halfway.status.state == "Running"


async def test_an_operator_that_was_away_counts_what_it_missed(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    async with operating(lab.cluster, lab.namespace, **PATIENT):
        await lab.submit(numWorkers=3)
        await lab.until_state("Running")
        first, *_ = await pool.running(3)
        await pool.end(first)
    async with operating(lab.cluster, lab.namespace, counts_s=0.5):
        await lab.until(lambda job: job.workers.succeeded == 1, "is counted")
