"""What a job costs: each request of the operator from its creation to its end."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.trainingjob.controller import UnwrittenCounts
from tests.contract.pool import Pool
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjob.controller.operating import operating
from tests.trainingjob.controller.requests import RecordingCluster
from tests.trainingjobs import at, training_job

# No test depends on how fast workers start: counts wait for the next state, and nobody asks why it takes so long.
PATIENT: dict[str, Any] = {"counts_s": 3600.0, "counts_cap_s": 3600.0, "explain_s": 3600.0}


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


def waits(counts: UnwrittenCounts, state: str, *changes: tuple[float, int]) -> list[float]:
    """When something is written of a job in that state whose workers are counted at these moments."""
    job, written = training_job(status={"state": state, "workers": {"desired": 9}}), []
    for second, active in changes:
        status = msgspec.convert({"state": state, "workers": {"desired": 9, "active": active}}, TrainingJobStatus)
        if not counts.can_wait(job, status, at(second)) and status != job.status:
            written.append(second)
            job = structs.replace(job, status=status)
    return written


def test_while_a_state_lasts_counts_are_written_at_growing_intervals() -> None:
    counts, moments = UnwrittenCounts(5, 20), [(float(second), second) for second in range(1, 201)]
    assert waits(counts, "Initializing", *moments) == [6, 17, 38, 59, 80, 101, 122, 143, 164, 185]
    key = training_job().metadata.key
    assert counts.due(key, at(200)) == at(206)


def test_another_state_is_written_at_once_and_its_counts_wait_anew() -> None:
    counts = UnwrittenCounts(5, 20)
    job = training_job(status={"state": "Initializing"})
    key = job.metadata.key
    waits(counts, "Initializing", *[(float(second), second) for second in range(1, 100)])
    running = msgspec.convert({"state": "Running", "workers": {"active": 4}}, TrainingJobStatus)
    assert not counts.can_wait(job, running, at(100))
    assert counts.due(key, at(100)) is None
    assert waits(counts, "Running", *[(float(second), second) for second in range(101, 110)]) == [106]


def test_counts_that_are_as_before_again_need_no_write() -> None:
    counts = UnwrittenCounts(5, 20)
    assert waits(counts, "Running", (0, 1), (1, 2), (2, 0), (9, 0)) == []


def test_counts_whose_write_has_failed_are_written_with_the_next_try() -> None:
    counts, job = UnwrittenCounts(5, 20), training_job(status={"state": "Running"})
    key, status = job.metadata.key, msgspec.convert({"state": "Running", "workers": {"active": 4}}, TrainingJobStatus)
    assert counts.can_wait(job, status, at(0))
    assert counts.due(key, at(0)) == at(5)
    assert [counts.can_wait(job, status, at(second)) for second in (5, 6)] == [False, False]
    assert counts.due(key, at(6)) is None
